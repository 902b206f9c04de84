//! Pieces of Markdown, and the selections that several documents share.

use super::data::{File, Form, OURS, Op, Outcome, Peers, Record, Timed, Weight};
use std::collections::BTreeMap;

pub const NOTHING: &str = "No measurement has been recorded yet.";

/// What every table of fractions needs said.
pub const FRACTION: &str = "A fraction is the time of a device-to-device copy that moves as many bytes as the operation must at least (half read, half written; the faster of two copies, timed in the same way) divided by the operation's time: 100% is the speed of the copy, and more is better.";

/// One shape, operation and type of weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    pub form: Form,
    pub weight: Weight,
    pub op: Op,
    pub hidden: u64,
    pub rows: u64,
}

/// Candidates' times in each case.
pub fn cases(peers: &Peers) -> BTreeMap<Case, Vec<&Timed>> {
    let mut cases = BTreeMap::<_, Vec<_>>::new();
    for outcome in &peers.results {
        if let Outcome::Timed(timed) = outcome {
            let case = Case {
                form: timed.kind,
                weight: timed.w,
                op: timed.op,
                hidden: timed.hidden,
                rows: timed.rows,
            };
            cases.entry(case).or_default().push(timed);
        }
    }
    cases
}

pub fn ours<'a>(candidates: &[&'a Timed]) -> Option<&'a Timed> {
    candidates
        .iter()
        .find(|timed| timed.candidate == OURS)
        .copied()
}

/// The fastest of all others.
pub fn best_peer<'a>(candidates: &[&'a Timed]) -> Option<&'a Timed> {
    let peers = candidates.iter().filter(|timed| timed.candidate != OURS);
    peers.min_by(|a, b| a.us.total_cmp(&b.us)).copied()
}

/// The newest measurements of each GPU: all that share date, driver and commit.
pub fn newest<T>(files: &[File<T>]) -> Vec<Vec<&File<T>>> {
    let mut groups: Vec<Vec<&File<T>>> = Vec::new();
    for file in files {
        let key = |record: &Record| {
            (
                record.date.clone(),
                record.driver.clone(),
                record.commit.clone(),
            )
        };
        match groups
            .iter_mut()
            .find(|group| group[0].record.gpu == file.record.gpu)
        {
            None => groups.push(vec![file]),
            Some(group) if key(&group[0].record) == key(&file.record) => group.push(file),
            Some(_) => {}
        }
    }
    groups
}

/// GPU, date, driver, commit.
pub fn origin(record: &Record) -> String {
    let Record {
        gpu,
        date,
        driver,
        commit,
        ..
    } = record;
    format!("{gpu}, {date}, driver {driver}, commit `{commit}`")
}

/// Peers' packages and versions.
pub fn versions(peers: &Peers) -> Vec<String> {
    let known = peers.meta.versions.iter();
    known
        .filter_map(|(name, version)| Some(format!("{name} {}", version.as_ref()?)))
        .collect()
}

/// Candidates, this library first, the others by name.
pub fn candidates(peers: &Peers) -> Vec<&str> {
    let mut names: Vec<_> = peers
        .results
        .iter()
        .map(|outcome| match outcome {
            Outcome::Timed(timed) => timed.candidate.as_str(),
            Outcome::Failed(failed) => failed.candidate.as_str(),
        })
        .collect();
    names.sort_by_key(|name| (*name != OURS, *name));
    names.dedup();
    names
}

/// A table; `header` gives the number of columns.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let header: Vec<_> = header.iter().map(|&name| cell(name)).collect();
    let mut text = line(&header) + &"|---".repeat(header.len()) + "|\n";
    for row in rows {
        let cells: Vec<_> = row.iter().map(|text| cell(text)).collect();
        text += &line(&cells);
    }
    text
}

/// Text that cannot end its cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}

/// The first line of a message, 120 characters at most, as code.
pub fn message(text: &str) -> String {
    let line: String = text
        .lines()
        .next()
        .unwrap_or("")
        .chars()
        .take(120)
        .collect();
    format!("`{}`", line.replace('`', "'"))
}

pub fn percent(fraction: f64) -> String {
    format!("{:.0}%", 100.0 * fraction)
}

pub fn yes(good: bool) -> String {
    if good { "yes" } else { "NO" }.to_owned()
}

/// A share that says 100% only of the whole.
pub fn share(fraction: f64) -> String {
    if fraction >= 1.0 {
        return "100%".to_owned();
    }
    let floor = (fraction * 1e6).floor() / 1e4;
    format!("{floor:.4}%")
}

pub fn geometric_mean(values: &[f64]) -> f64 {
    let logarithms: f64 = values.iter().map(|value| value.ln()).sum();
    (logarithms / values.len() as f64).exp()
}

pub fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

pub fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

pub fn form(form: Form) -> &'static str {
    match form {
        Form::Plain => "plain",
        Form::Head => "per head",
        Form::Add => "residual",
    }
}

pub fn weight(weight: Weight) -> &'static str {
    match weight {
        Weight::F32 => "FP32",
        Weight::Bf16 => "BF16",
    }
}

pub fn op(op: Op) -> &'static str {
    match op {
        Op::Bwd => "backward",
        Op::Fwd => "forward",
        Op::FwdBwd => "forward and backward",
        Op::Step => "forward, forward again and backward",
    }
}
