//! How near to the copy: this library and the best of its peers.

use super::Pictures;
use super::picture::{Axis, BEST, Mark, OURS, Panel, Picture};
use crate::tables::data::{File, Form, Op, Peers, Weight};
use crate::tables::markdown::{self, Case, best_peer, geometric_mean, ours};
use std::collections::{BTreeMap, BTreeSet};

/// Fractions of this library and of the best peer, by width and rows.
type Fractions = BTreeMap<(u64, u64), (f64, f64)>;

/// The pictures of a run.
pub fn draw(group: &[&File<Peers>]) -> Pictures {
    let Some(first) = group.first() else {
        return Pictures::new();
    };
    let origin = format!("{}, {}", first.record.gpu, first.record.date);
    let operations = [(Op::Bwd, "backward"), (Op::Fwd, "forward")];
    let fractions = operations.map(|(op, name)| (name, fractions(group, op)));
    let mut pictures = Pictures::new();
    let means = fractions.iter().filter_map(|(name, of)| mean(name, of));
    let means: Vec<_> = means.collect();
    if !means.is_empty() {
        pictures.insert("speed", picture(&origin, means));
    }
    for ((name, of), file) in fractions.iter().zip(["speed-backward", "speed-forward"]) {
        let widths: BTreeSet<_> = of.keys().map(|(hidden, _)| *hidden).collect();
        let panels: Vec<_> = widths
            .into_iter()
            .map(|hidden| width(name, hidden, of))
            .collect();
        if !panels.is_empty() {
            pictures.insert(file, picture(&origin, panels));
        }
    }
    pictures
}

fn picture(origin: &str, panels: Vec<Panel>) -> Picture {
    Picture {
        title: format!("{origin}: fraction of the copy"),
        legend: vec![
            ("cake-rmsnorm".to_owned(), OURS),
            ("best peer of each shape".to_owned(), BEST),
        ],
        panels,
    }
}

/// The plain form with an FP32 weight, where both ran.
fn fractions(group: &[&File<Peers>], op: Op) -> Fractions {
    let mut fractions = Fractions::new();
    for file in group {
        for (case, candidates) in markdown::cases(&file.content) {
            let Case { hidden, rows, .. } = case;
            let wanted = (case.form, case.weight, case.op) == (Form::Plain, Weight::F32, op);
            let pair = (ours(&candidates), best_peer(&candidates));
            if let (true, (Some(ours), Some(peer))) = (wanted, pair) {
                fractions.insert((hidden, rows), (ours.frac, peer.frac));
            }
        }
    }
    fractions
}

/// A panel of one width.
fn width(name: &str, hidden: u64, fractions: &Fractions) -> Panel {
    let of_width = || fractions.range((hidden, 0)..=(hidden, u64::MAX));
    let line = |colour, of: fn(&(f64, f64)) -> f64| Mark::Line {
        points: of_width()
            .map(|((_, rows), pair)| ((*rows as f64).log2(), of(pair)))
            .collect(),
        colour,
    };
    Panel {
        title: format!("{name}, H = {hidden}"),
        height: 178,
        x: Axis::log2("", of_width().map(|((_, rows), _)| *rows)),
        y: Axis::percent(""),
        marks: vec![line(BEST, |pair| pair.1), line(OURS, |pair| pair.0)],
    }
}

/// A panel of the means over widths, of the numbers of rows for which most widths were measured.
fn mean(name: &str, fractions: &Fractions) -> Option<Panel> {
    let mut by_rows = BTreeMap::<u64, Vec<(f64, f64)>>::new();
    for ((_, rows), pair) in fractions {
        by_rows.entry(*rows).or_default().push(*pair);
    }
    let most = by_rows.values().map(Vec::len).max()?;
    by_rows.retain(|_, pairs| 2 * pairs.len() > most);
    let marks = |colour, of: fn(&(f64, f64)) -> f64| {
        let (mut points, mut spread) = (Vec::new(), Vec::new());
        for (rows, pairs) in &by_rows {
            let x = (*rows as f64).log2();
            let values: Vec<_> = pairs.iter().map(of).collect();
            points.push((x, geometric_mean(&values)));
            spread.push((x, markdown::least(&values), markdown::largest(&values)));
        }
        let band = Mark::Band {
            points: spread,
            colour,
        };
        [band, Mark::Line { points, colour }]
    };
    let [peer_band, peer_line] = marks(BEST, |pair| pair.1);
    let [our_band, our_line] = marks(OURS, |pair| pair.0);
    Some(Panel {
        title: format!("{name}: mean, least and largest of {most} widths"),
        height: 236,
        x: Axis::log2("rows T", by_rows.keys().copied()),
        y: Axis::percent(""),
        marks: vec![peer_band, our_band, peer_line, our_line],
    })
}
