//! dw's error of this library and its peers.

use super::Pictures;
use super::picture::{Axis, Mark, OURS, Panel, Picture};
use crate::tables::data::{self, AccuracyOutcome, File, Peers, Weight};
use std::collections::BTreeMap;

/// The picture of a run, if it looked at dw.
pub fn draw(group: &[&File<Peers>]) -> Pictures {
    // By width, candidate and rows. An error of nothing has no logarithm.
    let mut errors = BTreeMap::<u64, BTreeMap<&str, BTreeMap<u64, f64>>>::new();
    for file in group {
        for accuracy in &file.content.accuracy {
            if let (Weight::F32, AccuracyOutcome::Measured { dw_worst, .. }) =
                (accuracy.w, &accuracy.outcome)
                && *dw_worst > 0.0
            {
                let of_width = errors.entry(accuracy.hidden).or_default();
                let of_candidate = of_width.entry(&accuracy.candidate).or_default();
                of_candidate.insert(accuracy.rows, *dw_worst);
            }
        }
    }
    let Some((hidden, candidates)) = errors.iter().max_by_key(|(_, of)| of.len()) else {
        return Pictures::new();
    };
    let record = &group[0].record;
    // This library has its colour, the others take the next ones.
    let mut names: Vec<_> = candidates.keys().copied().collect();
    names.sort_by_key(|name| (*name != data::OURS, *name));
    let colours: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(i, name)| match *name == data::OURS {
            true => (*name, OURS),
            false => (*name, 1 + i % 8),
        })
        .collect();
    let marks = colours.iter().map(|(name, colour)| Mark::Line {
        points: candidates[name]
            .iter()
            .map(|(rows, error)| ((*rows as f64).log2(), error.log10()))
            .collect(),
        colour: *colour,
    });
    let all = || candidates.values().flatten();
    let logarithms = all().map(|(_, error)| error.log10());
    let (least, largest) = logarithms.fold((0.0_f64, 0.0_f64), |(least, largest), value| {
        (least.min(value.floor()), largest.max(value.ceil()))
    });
    let panel = Panel {
        title: format!("worst element of dw, H = {hidden}, against 1e-4 + 1e-4·|FP64|"),
        height: 290,
        x: Axis::log2("rows T", all().map(|(rows, _)| *rows)),
        y: Axis {
            title: "",
            range: least..largest.max(least + 1.0),
            labels: 10,
            label: |logarithm| format!("1e{logarithm:.0}"),
        },
        marks: marks.collect(),
    };
    let picture = Picture {
        title: format!("{}, {}: error of dw", record.gpu, record.date),
        legend: colours
            .into_iter()
            .map(|(name, colour)| (name.to_owned(), colour))
            .collect(),
        panels: vec![panel],
    };
    Pictures::from([("accuracy", picture)])
}
