//! What the newest measurements say in few words.

use super::{
    data::{Accuracy, AccuracyOutcome, File, Form, Measurements, Op, Peers, Weight},
    markdown::{
        self, Case, NOTHING, best_peer, geometric_mean, largest, newest, origin, ours, table, yes,
    },
};
use std::collections::BTreeMap;

/// The region's text.
pub fn render(measurements: &Measurements) -> String {
    let parts: Vec<_> = newest(&measurements.peers)
        .iter()
        .flat_map(|group| facts(group))
        .collect();
    if parts.is_empty() {
        return NOTHING.to_owned();
    }
    let parts: Vec<_> = parts.iter().map(|part| part.trim_end()).collect();
    parts.join("\n\n")
}

fn facts(group: &[&File<Peers>]) -> Vec<String> {
    let mut parts = vec![format!("## {}", origin(&group[0].record))];
    let timer = &group[0].content.timer;
    let mut list = vec![format!(
        "- The timer reads {:.2} µs around no kernel and {:.2} µs around a kernel of one element.",
        timer.no_kernel.us, timer.one_element_kernel.us
    )];
    let ceilings = group.iter().flat_map(|file| &file.content.ceilings);
    let rate = |bytes: u64, us: f64| bytes as f64 / us / 1e3;
    if let Some(best) = ceilings.max_by(|a, b| rate(a.bytes, a.us).total_cmp(&rate(b.bytes, b.us)))
    {
        list.push(format!(
            "- The fastest copy moves {:.0} GB/s ({:.1} MB, read and written bytes together).",
            rate(best.bytes, best.us),
            best.bytes as f64 / 1e6
        ));
    }
    parts.push(list.join("\n"));
    parts.extend(against_best(group));
    let accuracy: Vec<_> = group
        .iter()
        .flat_map(|file| &file.content.accuracy)
        .collect();
    if !accuracy.is_empty() {
        parts.push("dw against an FP64 sum, the worst of all shapes measured; error budget 1e-4 + 1e-4·|FP64|:".to_owned());
        parts.push(accuracies(&accuracy));
    }
    parts
}

/// This library's time over the best peer's, where both ran.
fn against_best(group: &[&File<Peers>]) -> Vec<String> {
    let mut groups = BTreeMap::<(Form, Weight, Op), Vec<(f64, Case)>>::new();
    for file in group {
        for (case, candidates) in markdown::cases(&file.content) {
            if let Some((ours, peer)) = ours(&candidates).zip(best_peer(&candidates)) {
                let key = (case.form, case.weight, case.op);
                groups
                    .entry(key)
                    .or_default()
                    .push((ours.us / peer.us, case));
            }
        }
    }
    if groups.is_empty() {
        return vec!["No shape was run by both cake-rmsnorm and a peer.".to_owned()];
    }
    let rows: Vec<_> = groups
        .into_iter()
        .map(|((form, weight, op), mut ratios)| {
            ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
            let at = |&(ratio, case): &(f64, Case)| {
                format!("{ratio:.2} (T={}, H={})", case.rows, case.hidden)
            };
            let values: Vec<_> = ratios.iter().map(|pair| pair.0).collect();
            vec![
                markdown::op(op).to_owned(),
                markdown::form(form).to_owned(),
                markdown::weight(weight).to_owned(),
                values.len().to_string(),
                values
                    .iter()
                    .filter(|ratio| **ratio < 1.0)
                    .count()
                    .to_string(),
                values
                    .iter()
                    .filter(|ratio| **ratio > 1.0)
                    .count()
                    .to_string(),
                format!("{:.2}", geometric_mean(&values)),
                ratios.first().map_or(String::new(), at),
                ratios.last().map_or(String::new(), at),
            ]
        })
        .collect();
    let header = [
        "operation",
        "form",
        "weight",
        "shapes",
        "faster",
        "slower",
        "mean ratio",
        "least",
        "largest",
    ];
    vec![
        "Time of cake-rmsnorm over the time of the fastest peer of each shape (below 1: cake-rmsnorm is faster); the mean is geometric:".to_owned(),
        table(&header, &rows),
    ]
}

fn accuracies(entries: &[&Accuracy]) -> String {
    #[derive(Default)]
    struct Worst {
        budget: Vec<f64>,
        l2: Vec<f64>,
        same_bits: bool,
    }
    let mut candidates = BTreeMap::<(&str, &str), Worst>::new();
    for entry in entries {
        if let AccuracyOutcome::Measured {
            dw_dtype,
            dw_worst,
            dw_rel_l2,
            dw_bitwise,
            ..
        } = &entry.outcome
        {
            let worst = candidates
                .entry((&entry.candidate, dw_dtype))
                .or_insert_with(|| Worst {
                    same_bits: true,
                    ..Worst::default()
                });
            worst.budget.push(*dw_worst);
            worst.l2.push(*dw_rel_l2);
            worst.same_bits &= dw_bitwise;
        }
    }
    let rows: Vec<_> = candidates
        .into_iter()
        .map(|((candidate, dtype), worst)| {
            vec![
                candidate.to_owned(),
                dtype.to_owned(),
                format!("{:.2e}", largest(&worst.budget)),
                format!("{:.2e}", largest(&worst.l2)),
                yes(worst.same_bits),
            ]
        })
        .collect();
    let header = [
        "candidate",
        "type of dw",
        "share of the budget",
        "relative L2",
        "same bits in five runs",
    ];
    table(&header, &rows)
}
