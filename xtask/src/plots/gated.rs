//! The gated form: how near to the copy, beside what it was measured with.

use super::picture::{Axis, Mark, OURS, Panel, Picture};
use super::{Error, Pictures};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// What `benches/gated.py` calls this library.
const LABEL: &str = "ours";

/// Fraction of the copy by order, operation, candidate and rows.
type Fractions = BTreeMap<(String, String), BTreeMap<String, BTreeMap<u64, f64>>>;

/// The picture of the newest `*.gated.tsv` of a folder.
pub fn draw(folder: &Path) -> Result<Pictures, Error> {
    let io = |source| Error::Io {
        path: folder.to_owned(),
        source,
    };
    let entries = fs::read_dir(folder).map_err(io)?.flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    // Names start with the date.
    let Some(newest) = names.filter(|name| name.ends_with(".gated.tsv")).max() else {
        return Ok(Pictures::new());
    };
    let text = fs::read_to_string(folder.join(&newest)).map_err(io)?;
    let (origin, fractions) = parse(&text).map_err(|message| Error::Table {
        file: newest,
        message,
    })?;
    Ok(Pictures::from([("gated", picture(&origin, &fractions))]))
}

/// Where and when a file was measured, and its fractions with an FP32 weight.
fn parse(text: &str) -> Result<(String, Fractions), String> {
    let comment = text.lines().next().and_then(|line| line.strip_prefix("# "));
    let said = |name: &str| {
        let parts = comment.unwrap_or_default().split(", ");
        let mut values = parts.filter_map(|part| part.strip_prefix(name));
        values
            .next()
            .map(str::trim)
            .ok_or(format!("no {name}in its first line"))
    };
    let origin = format!("{}, {}", said("gpu ")?, said("date ")?);
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let header: Vec<_> = lines.next().unwrap_or_default().split('\t').collect();
    let column = |name| {
        let found = header.iter().position(|column| *column == name);
        found.ok_or(format!("no column {name}"))
    };
    let [rows, weight, order, op, candidate, frac] =
        ["rows", "weight", "order", "op", "candidate", "frac"].map(column);
    let (rows, weight, order) = (rows?, weight?, order?);
    let (op, candidate, frac) = (op?, candidate?, frac?);
    let mut fractions = Fractions::new();
    for line in lines.filter(|line| !line.trim().is_empty()) {
        let cells: Vec<_> = line.split('\t').collect();
        let cell = |column: usize| cells.get(column).copied().ok_or(format!("short: {line}"));
        if cell(weight)? != "f32" {
            continue;
        }
        let number = |column| {
            cell(column)?
                .parse::<f64>()
                .map_err(|_| format!("no number: {line}"))
        };
        let key = (cell(op)?.to_owned(), cell(order)?.to_owned());
        let candidates = fractions.entry(key).or_default();
        let points = candidates.entry(cell(candidate)?.to_owned()).or_default();
        points.insert(number(rows)? as u64, number(frac)?);
    }
    Ok((origin, fractions))
}

fn picture(origin: &str, fractions: &Fractions) -> Picture {
    let others: BTreeSet<_> = fractions
        .values()
        .flat_map(BTreeMap::keys)
        .filter(|name| *name != LABEL)
        .collect();
    let colours: BTreeMap<_, _> = others.into_iter().zip((1..9).cycle()).collect();
    let panels = fractions.iter().map(|((op, order), candidates)| {
        let op = match op.as_str() {
            "bwd" => "backward",
            "fwd" => "forward",
            other => other,
        };
        let order = match order.as_str() {
            "0" => "norm before gate",
            "1" => "gate before norm",
            other => other,
        };
        let marks = candidates.iter().rev().map(|(name, points)| Mark::Line {
            points: points
                .iter()
                .map(|(rows, frac)| ((*rows as f64).log2(), *frac))
                .collect(),
            colour: colours.get(name).copied().unwrap_or(OURS),
        });
        Panel {
            title: format!("{op}, {order}, rows of 128"),
            height: 190,
            x: Axis::log2(
                "",
                candidates
                    .values()
                    .flat_map(|points| points.keys().copied()),
            ),
            y: Axis::percent(""),
            marks: marks.collect(),
        }
    });
    let panels = panels.collect();
    let ours = ("cake-rmsnorm".to_owned(), OURS);
    let others = colours.into_iter().map(|(name, colour)| {
        let name = match name.as_str() {
            "compile" => "torch.compile",
            "fla" => "flash-linear-attention",
            name => name,
        };
        (name.to_owned(), colour)
    });
    Picture {
        title: format!("{origin}: fraction of the copy, gated form"),
        legend: [ours].into_iter().chain(others).collect(),
        panels,
    }
}
