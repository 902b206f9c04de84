//! The README's table: a few figures of the newest measurement of each GPU.

use super::{
    data::{
        Check, File, Finding, FindingStatus, Form, Measurements, OURS, Op, Peers, SanitizerRun,
        Weight,
    },
    markdown::{
        self, Case, FRACTION, NOTHING, best_peer, geometric_mean, largest, least, newest, origin,
        ours, percent, share, table, yes,
    },
};
use std::collections::{BTreeMap, BTreeSet};

const ROWS: [u64; 8] = [1, 32, 128, 256, 1024, 4096, 16384, 65536];

/// The region's text.
pub fn render(measurements: &Measurements) -> String {
    let mut parts = Vec::new();
    for group in newest(&measurements.peers) {
        parts.extend(speeds(&group));
    }
    if !parts.is_empty() {
        parts.push(format!(
            "{FRACTION} Cells: geometric mean over the hidden sizes H (least–largest). The best peer is chosen anew for every shape. Every time, other forms and what was not run: [docs/measurements](docs/measurements/README.md)."
        ));
    }
    for group in newest(&measurements.checks) {
        parts.push(checks(&group));
    }
    for group in newest(&measurements.sanitizer) {
        parts.push(sanitizer(&group));
    }
    for group in newest(&measurements.reliability) {
        parts.push(reliability(&group));
    }
    if parts.is_empty() {
        return NOTHING.to_owned();
    }
    parts.join("\n\n")
}

/// Fractions in one case: this library's and the best peer's.
type Pair = (Option<f64>, Option<f64>);

/// Tables of one run, a table for each type of weight; none where only other forms were measured.
fn speeds(group: &[&File<Peers>]) -> Vec<String> {
    let mut pairs = BTreeMap::<(Weight, u64), Vec<(Case, Pair)>>::new();
    let mut peers = BTreeSet::new();
    for file in group {
        for (case, candidates) in markdown::cases(&file.content) {
            if case.form != Form::Plain
                || !matches!(case.op, Op::Fwd | Op::Bwd)
                || !ROWS.contains(&case.rows)
            {
                continue;
            }
            let peer = best_peer(&candidates);
            let pair = (ours(&candidates).map(|t| t.frac), peer.map(|t| t.frac));
            pairs
                .entry((case.weight, case.rows))
                .or_default()
                .push((case, pair));
            let names = candidates.iter().map(|timed| timed.candidate.as_str());
            peers.extend(names.filter(|name| *name != OURS));
        }
    }
    let mut parts = Vec::new();
    let weights: BTreeSet<_> = pairs.keys().map(|key| key.0).collect();
    for weight in weights {
        let rows: Vec<_> = pairs
            .range((weight, 0)..=(weight, u64::MAX))
            .map(|((_, rows), pairs)| speed_row(*rows, pairs))
            .collect();
        parts.push(format!("{} weight:", markdown::weight(weight)));
        let header = ["T", "H", "backward", "best peer", "forward", "best peer"];
        parts.push(table(&header, &rows).trim_end().to_owned());
    }
    if parts.is_empty() {
        return parts;
    }
    let peers: Vec<_> = peers.into_iter().collect();
    let peers = match peers.as_slice() {
        [] => "none".to_owned(),
        names => format!("{} ({})", names.join(", "), versions(group)),
    };
    let timer = &group[0].content.timer;
    let origin = origin(&group[0].record);
    parts.insert(0, format!("**Speed** on {origin}: fraction of the copy ceiling, plain form, T rows of H elements. Peers of the same run: {peers}."));
    let left_out = unpaired(pairs.values().flatten());
    parts.push(format!(
        "A kernel of one element takes {:.1} µs by the same timer: at small T launching is most of the time, for the copy too.{left_out}",
        timer.one_element_kernel.us
    ));
    parts
}

/// The packages of all files of a run.
fn versions(group: &[&File<Peers>]) -> String {
    let lists = group
        .iter()
        .flat_map(|file| markdown::versions(&file.content));
    let packages: BTreeSet<_> = lists.collect();
    packages.into_iter().collect::<Vec<_>>().join(", ")
}

fn speed_row(rows: u64, pairs: &[(Case, Pair)]) -> Vec<String> {
    let hidden: BTreeSet<_> = pairs.iter().map(|(case, _)| case.hidden).collect();
    let list: Vec<_> = hidden.iter().map(u64::to_string).collect();
    let text = if list.len() <= 4 {
        list.join(", ")
    } else {
        format!(
            "{} from {} to {}",
            list.len(),
            list[0],
            list[list.len() - 1]
        )
    };
    let mut cells = vec![rows.to_string(), text];
    for op in [Op::Bwd, Op::Fwd] {
        let of_op: Vec<_> = pairs.iter().filter(|(case, _)| case.op == op).collect();
        // Means are comparable over the same shapes alone.
        let both = |pair: &Pair| pair.0.is_some() && pair.1.is_some();
        let paired = of_op.iter().any(|(_, pair)| both(pair));
        let column = |side: fn(&Pair) -> Option<f64>| {
            let kept = of_op.iter().filter(|(_, pair)| !paired || both(pair));
            let fractions: Vec<_> = kept
                .filter_map(|(case, pair)| Some((case.hidden, side(pair)?)))
                .collect();
            spread(&fractions, hidden.len())
        };
        cells.extend([column(|pair| pair.0), column(|pair| pair.1)]);
    }
    cells
}

/// Geometric mean, least and largest; and over how many hidden sizes, when not over `all`.
fn spread(fractions: &[(u64, f64)], all: usize) -> String {
    let hidden: BTreeSet<_> = fractions.iter().map(|pair| pair.0).collect();
    let fractions: Vec<_> = fractions.iter().map(|pair| pair.1).collect();
    let mut notes = Vec::new();
    if fractions.len() > 1 {
        notes.push(format!(
            "{:.0}–{}",
            100.0 * least(&fractions),
            percent(largest(&fractions))
        ));
    }
    if hidden.len() < all {
        notes.push(format!("{} H", hidden.len()));
    }
    match (fractions.as_slice(), notes.as_slice()) {
        ([], _) => "–".to_owned(),
        (some, []) => percent(geometric_mean(some)),
        (some, notes) => format!("{} ({})", percent(geometric_mean(some)), notes.join("; ")),
    }
}

/// A sentence on the cases that only one side ran.
fn unpaired<'a>(pairs: impl Iterator<Item = &'a (Case, Pair)>) -> String {
    let (mut ours, mut peers) = (0, 0);
    for (_, pair) in pairs {
        ours += u32::from(pair.0.is_none());
        peers += u32::from(pair.1.is_none());
    }
    if (ours, peers) == (0, 0) {
        return String::new();
    }
    format!(
        " Cases that cake-rmsnorm did not run: {ours}; that no peer ran: {peers}. Where both ran some of a cell's hidden sizes, its mean is over those, and their number is given."
    )
}

fn checks(group: &[&File<Vec<Check>>]) -> String {
    let checks: Vec<_> = group.iter().flat_map(|file| &file.content).collect();
    let devices: BTreeSet<_> = checks
        .iter()
        // The number of multiprocessors that was planned for is one of the cases.
        .map(|check| match check.device_name.split_once(", compute") {
            Some((gpu, _)) => format!("{gpu})"),
            None => check.device_name.clone(),
        })
        .collect();
    let devices: Vec<_> = devices.into_iter().collect();
    let passed = checks.iter().filter(|check| check.ok).count();
    let golden = checks.iter().filter(|check| check.golden_bits()).count();
    let rounded: Vec<_> = checks
        .iter()
        .map(|check| check.dw.correctly_rounded)
        .collect();
    let all = checks.len();
    if all == 0 {
        return format!(
            "**Check** on {}: no case was run.",
            origin(&group[0].record)
        );
    }
    format!(
        "**Check** on {} (`cake-rmsnorm check`; device: {}): {passed} of {all} cases passed; all bits equal the CPU implementation's: {} ({golden} of {all}); elements of dw that are correctly rounded, in the worst case: {}.",
        origin(&group[0].record),
        devices.join("; "),
        yes(golden == all),
        share(least(&rounded)),
    )
}

/// How many findings are as they should be, and each that is not.
fn reliability(group: &[&File<Vec<Finding>>]) -> String {
    let findings: Vec<_> = group.iter().flat_map(|file| &file.content).collect();
    let with = |status| findings.iter().filter(move |it| it.status == status);
    let of = |status, word: &str| {
        let named = with(status).map(|it| {
            // The first of many like ones says it.
            let reasons = it.reason.as_deref().unwrap_or("no reason given");
            let reason = reasons.split("; ").next().unwrap_or(reasons);
            let (part, what) = (&it.part, &it.what);
            format!(" {word} {part}: {what} ({reason}).")
        });
        named.collect::<String>()
    };
    format!(
        "**Reliability run** on {}: {} of {} findings as they should be.{}{}",
        origin(&group[0].record),
        with(FindingStatus::Pass).count(),
        findings.len(),
        of(FindingStatus::Fail, "Failed:"),
        of(FindingStatus::Skipped, "Skipped:"),
    )
}

fn sanitizer(group: &[&File<Vec<SanitizerRun>>]) -> String {
    let runs: Vec<_> = group.iter().flat_map(|file| &file.content).collect();
    let tools: BTreeSet<_> = runs.iter().map(|run| run.tool.as_str()).collect();
    let tools: Vec<_> = tools.into_iter().collect();
    let clean = runs.iter().filter(|run| run.ok).count();
    let errors: u64 = runs.iter().filter_map(|run| run.errors).sum();
    let hazards: u64 = runs.iter().filter_map(|run| run.hazards).sum();
    format!(
        "**compute-sanitizer** on {} ({}): {clean} of {} runs clean; {errors} errors, {hazards} hazards.",
        origin(&group[0].record),
        tools.join(", "),
        runs.len(),
    )
}
