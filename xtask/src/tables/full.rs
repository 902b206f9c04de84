//! Every figure of every measurement.

use super::{
    data::{
        Accuracy, AccuracyOutcome, Check, File, Form, Measurements, OURS, Op, Outcome, Output,
        Peers, Record, SanitizerRun, Timed, Weight,
    },
    markdown::{self, Case, FRACTION, NOTHING, origin, percent, share, table, yes},
};
use std::collections::BTreeMap;

/// The region's text.
pub fn render(measurements: &Measurements) -> String {
    let mut parts = Vec::new();
    for file in &measurements.peers {
        peers(file, &mut parts);
    }
    for file in &measurements.checks {
        parts.push(heading(&file.name, &file.record));
        parts.push(checks(&file.content));
        parts.extend(failures(&file.content));
    }
    for file in &measurements.sanitizer {
        parts.push(heading(&file.name, &file.record));
        parts.push(sanitizer(&file.content));
    }
    if parts.is_empty() {
        return NOTHING.to_owned();
    }
    let parts: Vec<_> = parts.iter().map(|part| part.trim_end()).collect();
    parts.join("\n\n")
}

fn heading(name: &str, record: &Record) -> String {
    format!(
        "## [{name}]({name})\n\n{}; `{}`.",
        origin(record),
        record.command.replace('`', "'")
    )
}

fn peers(file: &File<Peers>, parts: &mut Vec<String>) {
    let Peers { meta, timer, .. } = &file.content;
    parts.push(heading(&file.name, &file.record));
    parts.push(format!(
        "CUDA {}; {}. L2 before every sample: {}. An interval around no kernel reads {:.2} µs, around a kernel of one element {:.2} µs (not subtracted).",
        meta.cuda, markdown::versions(&file.content).join(", "), meta.flush, timer.no_kernel.us, timer.one_element_kernel.us,
    ));
    parts.push(format!(
        "Cells: µs (fraction of the copy ceiling); the fastest of a row in bold, – was not run. {FRACTION}"
    ));
    let cases = markdown::cases(&file.content);
    let mut groups = BTreeMap::<(Form, Weight, Op), Vec<(Case, Vec<&Timed>)>>::new();
    for (case, candidates) in cases {
        let key = (case.form, case.weight, case.op);
        groups.entry(key).or_default().push((case, candidates));
    }
    for ((form, weight, op), cases) in groups {
        parts.push(format!(
            "### {}: {} form, {} weight",
            capitalised(markdown::op(op)),
            markdown::form(form),
            markdown::weight(weight)
        ));
        parts.push(times(&file.content, &cases));
    }
    if !file.content.accuracy.is_empty() {
        parts.push("### Accuracy of dw".to_owned());
        parts.push("Against an FP64 sum at the forward's rstd. Worst: largest |error| / (1e-4 + 1e-4·|FP64|). Same bits: of five runs.".to_owned());
        parts.push(accuracy(&file.content.accuracy));
    }
    parts.extend(not_run(&file.content));
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// Times of all candidates, a row for each shape.
fn times(peers: &Peers, cases: &[(Case, Vec<&Timed>)]) -> String {
    let mut names = markdown::candidates(peers);
    // This library's column stands even where it ran nothing.
    names.retain(|name| {
        *name == OURS
            || cases
                .iter()
                .any(|(_, timed)| timed.iter().any(|t| t.candidate == *name))
    });
    let rows: Vec<_> = cases
        .iter()
        .map(|(case, timed)| {
            let fastest = timed.iter().map(|t| t.us).fold(f64::INFINITY, f64::min);
            let several = timed.len() > 1;
            let mut row = vec![
                case.hidden.to_string(),
                case.rows.to_string(),
                copy(peers, case),
            ];
            row.extend(names.iter().map(|name| {
                let Some(timed) = timed.iter().find(|timed| timed.candidate == *name) else {
                    return "–".to_owned();
                };
                let text = format!("{:.2} ({})", timed.us, percent(timed.frac));
                if several && timed.us == fastest {
                    format!("**{text}**")
                } else {
                    text
                }
            }));
            row
        })
        .collect();
    let header: Vec<_> = ["H", "T", "copy"]
        .into_iter()
        .chain(names.iter().copied())
        .collect();
    table(&header, &rows)
}

fn copy(peers: &Peers, case: &Case) -> String {
    let ceiling = peers.ceilings.iter().find(|ceiling| {
        (
            ceiling.kind,
            ceiling.w,
            ceiling.op,
            ceiling.hidden,
            ceiling.rows,
        ) == (case.form, case.weight, case.op, case.hidden, case.rows)
    });
    ceiling.map_or("–".to_owned(), |ceiling| format!("{:.2}", ceiling.us))
}

fn accuracy(entries: &[Accuracy]) -> String {
    let rows: Vec<_> = entries
        .iter()
        .map(|entry| {
            let mut row = vec![
                entry.candidate.clone(),
                entry.hidden.to_string(),
                entry.rows.to_string(),
                markdown::weight(entry.w).to_owned(),
            ];
            match &entry.outcome {
                AccuracyOutcome::Measured {
                    dw_dtype,
                    dw_worst,
                    dw_rel_l2,
                    dw_bitwise,
                    dx_bitwise,
                } => row.extend([
                    dw_dtype.clone(),
                    format!("{dw_worst:.2e}"),
                    format!("{dw_rel_l2:.2e}"),
                    yes(*dw_bitwise),
                    yes(*dx_bitwise),
                ]),
                AccuracyOutcome::Failed { error } => {
                    row.push(markdown::message(error));
                    row.extend(["–"; 4].map(str::to_owned));
                }
            }
            row
        })
        .collect();
    let header = [
        "candidate",
        "H",
        "T",
        "weight",
        "type of dw",
        "worst",
        "relative L2",
        "dw same bits",
        "dx same bits",
    ];
    table(&header, &rows)
}

/// What failed and what the time was too short for.
fn not_run(peers: &Peers) -> Option<String> {
    let mut errors = BTreeMap::<(&str, String), Vec<String>>::new();
    for outcome in &peers.results {
        if let Outcome::Failed(failed) = outcome {
            let key = (failed.candidate.as_str(), markdown::message(&failed.error));
            errors.entry(key).or_default().push(format!(
                "{} {} T={} H={}",
                markdown::form(failed.kind),
                markdown::weight(failed.w),
                failed.rows,
                failed.hidden
            ));
        }
    }
    let mut lines: Vec<_> = errors
        .iter()
        .map(|((candidate, error), cases)| format!("- {candidate}: {error}: {}", cases.join(", ")))
        .collect();
    if !peers.skipped.is_empty() {
        lines.push(format!(
            "- time was too short for {} cases",
            peers.skipped.len()
        ));
    }
    (!lines.is_empty()).then(|| format!("### Not run\n\n{}", lines.join("\n")))
}

fn checks(checks: &[Check]) -> String {
    let rows: Vec<_> = checks
        .iter()
        .map(|check| {
            let ulp = |output: &Output| {
                output
                    .max_ulp
                    .map_or("∞".to_owned(), |ulp| format!("{ulp:.3}"))
            };
            let repeated = check.outputs().filter_map(|output| output.repeat_bits);
            vec![
                check.device.clone(),
                check.inputs.clone(),
                check.hidden.to_string(),
                check.rows.to_string(),
                check.weight.clone(),
                yes(check.residual).to_lowercase(),
                yes(check.ok),
                yes(check.golden_bits()),
                repeated.reduce(|a, b| a && b).map_or("–".to_owned(), yes),
                yes(check.outputs().all(|output| output.within_bound)),
                ulp(&check.y),
                ulp(&check.dx),
                ulp(&check.dw),
                share(check.dw.correctly_rounded),
            ]
        })
        .collect();
    let header = [
        "device",
        "inputs",
        "H",
        "T",
        "weight",
        "residual",
        "passed",
        "golden bits",
        "repeated bits",
        "within bound",
        "y, ulp",
        "dx, ulp",
        "dw, ulp",
        "dw correctly rounded",
    ];
    table(&header, &rows)
}

fn failures(checks: &[Check]) -> Option<String> {
    let lines: Vec<_> = checks
        .iter()
        .flat_map(|check| {
            let shape = format!("{} T={} H={}", check.inputs, check.rows, check.hidden);
            let failures = check.failures.iter();
            failures.map(move |failure| format!("- {shape}: {}", markdown::message(failure)))
        })
        .collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn sanitizer(runs: &[SanitizerRun]) -> String {
    let number = |number: Option<u64>| number.map_or("–".to_owned(), |n| n.to_string());
    let rows: Vec<_> = runs
        .iter()
        .map(|run| {
            let shape = run
                .shape
                .as_str()
                .map_or_else(|| run.shape.to_string(), str::to_owned);
            vec![
                run.tool.clone(),
                shape,
                format!("`{}`", run.command.replace('`', "'")),
                number(run.errors),
                number(run.hazards),
                yes(run.ok),
            ]
        })
        .collect();
    table(
        &["tool", "shape", "command", "errors", "hazards", "clean"],
        &rows,
    )
}
