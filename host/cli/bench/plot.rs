//! A benchmark as a picture: how near to the copy, and how many bytes a second.

use super::case::Op;
use super::record::{Run, Timed};
use crate::cli::dtype_name;
use crate::cli::error::{CliError, Result};
use cake_rmsnorm::Dtype;
use plotters::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Size of a panel.
const PANEL: (u32, u32) = (560, 340);
/// Height of the title and the legend.
const TITLE: u32 = 68;
/// Grey that is readable on white and on black.
const INK: RGBColor = RGBColor(0x80, 0x80, 0x80);
/// Colours of the widths, apart from each other for most eyes, of middle lightness.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x2b, 0x83, 0xba),
    RGBColor(0xd9, 0x5f, 0x02),
    RGBColor(0x1b, 0x9e, 0x77),
    RGBColor(0xc0, 0x4a, 0xa0),
    RGBColor(0x8a, 0x8f, 0x00),
    RGBColor(0x7b, 0x6f, 0xd0),
    RGBColor(0xc8, 0x3a, 0x3a),
    RGBColor(0x00, 0x93, 0xa5),
];

/// What a panel shows of a case.
#[derive(Clone, Copy)]
struct Quantity {
    title: &'static str,
    of: fn(&Timed) -> f64,
    /// The same of the copy.
    of_copy: fn(&Timed) -> f64,
}

const QUANTITIES: [Quantity; 2] = [
    Quantity {
        title: "% of the copy's speed",
        of: |timed| 100.0 * timed.frac,
        of_copy: |_| 100.0,
    },
    Quantity {
        title: "GB/s",
        of: |timed| timed.gbps,
        of_copy: |timed| timed.bytes as f64 / timed.copy_us / 1e3,
    },
];

/// Draws the run to an SVG file; a row of two panels for each operation.
pub fn write(path: &Path, run: &Run) -> Result<()> {
    let drawn = draw(run).map_err(|error| error.to_string());
    let written = drawn.and_then(|svg| std::fs::write(path, svg).map_err(|e| e.to_string()));
    written.map_err(|detail| CliError::Write {
        path: path.to_owned(),
        detail,
    })
}

/// A line of every panel: width and weight, with its colour.
struct Line {
    hidden: u64,
    weight: Dtype,
    colour: RGBColor,
}

impl Line {
    fn has(&self, timed: &Timed) -> bool {
        (timed.case.hidden, timed.case.weight) == (self.hidden, self.weight)
    }

    fn name(&self) -> String {
        format!("H {} {}", self.hidden, dtype_name(self.weight))
    }
}

/// The picture as SVG. It has no background, so that it fits light and dark pages.
fn draw(run: &Run) -> std::result::Result<String, Box<dyn std::error::Error>> {
    let mut operations: BTreeMap<Op, Vec<&Timed>> = BTreeMap::new();
    for timed in run.timed_cases() {
        operations.entry(timed.case.op).or_default().push(timed);
    }
    let shapes: BTreeSet<_> = run
        .timed_cases()
        .map(|timed| (timed.case.hidden, timed.case.weight == Dtype::F32))
        .collect();
    let lines: Vec<_> = shapes
        .into_iter()
        .zip(COLOURS.into_iter().cycle())
        .map(|((hidden, single), colour)| Line {
            hidden,
            weight: if single { Dtype::F32 } else { Dtype::Bf16 },
            colour,
        })
        .collect();
    let mut svg = String::new();
    {
        let height = TITLE + PANEL.1 * operations.len() as u32;
        let backend = SVGBackend::with_string(&mut svg, (2 * PANEL.0, height));
        let root = backend.into_drawing_area();
        let (head, panels) = root.split_vertically(TITLE);
        legend(&head, run, &lines)?;
        let panels = panels.split_evenly((operations.len().max(1), QUANTITIES.len()));
        let mut panels = panels.iter();
        for (op, cases) in &operations {
            for quantity in QUANTITIES {
                if let Some(area) = panels.next() {
                    panel(area, *op, cases, &lines, quantity)?;
                }
            }
        }
        root.present()?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

/// The title, and what the colours stand for.
fn legend(area: &Area<'_>, run: &Run, lines: &[Line]) -> Drawn {
    let title = format!("RMSNorm on {}, {}; thin: the copy", run.gpu(), run.date());
    let style = TextStyle::from(("sans-serif", 18).into_font()).color(&INK);
    area.draw_text(&title, &style, (16, 14))?;
    let width = 2 * PANEL.0 as i32 / (lines.len().max(8) as i32);
    for (i, line) in lines.iter().enumerate() {
        let (x, y) = (16 + i as i32 * width, 50);
        let sample = PathElement::new([(x, y), (x + 18, y)], line.colour.stroke_width(3));
        area.draw(&sample)?;
        let style = TextStyle::from(("sans-serif", 13).into_font()).color(&INK);
        area.draw_text(&line.name(), &style, (x + 24, y - 6))?;
    }
    Ok(())
}

fn panel(area: &Area<'_>, op: Op, cases: &[&Timed], lines: &[Line], quantity: Quantity) -> Drawn {
    let value = |of: fn(&Timed) -> f64| cases.iter().map(move |timed| of(timed));
    let most = value(quantity.of).chain(value(quantity.of_copy));
    let most = most.fold(0.0, f64::max);
    let first = value(rows).fold(f64::INFINITY, f64::min);
    let last = value(rows).fold(1.0, f64::max).max(2.0 * first);

    let caption = format!("{}, {}", op.title(), quantity.title);
    let label = ("sans-serif", 13).into_font().color(&INK);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .margin_right(24)
        .caption(caption, ("sans-serif", 15).into_font().color(&INK))
        .x_label_area_size(36)
        .y_label_area_size(52)
        .build_cartesian_2d((first..last).log_scale().base(2.0), 0.0..most * 1.08)?;
    chart
        .configure_mesh()
        .x_desc("rows T")
        .x_labels(10)
        .x_label_formatter(&|rows| format!("{rows:.0}"))
        .y_label_formatter(&|value| format!("{value:.0}"))
        .axis_style(INK)
        .bold_line_style(INK.mix(0.3))
        .light_line_style(INK.mix(0.0))
        .label_style(label.clone())
        .axis_desc_style(label)
        .draw()?;
    for line in lines {
        let points = |of: fn(&Timed) -> f64| {
            let of_line = cases.iter().filter(|timed| line.has(timed));
            let mut points: Vec<_> = of_line.map(|timed| (rows(timed), of(timed))).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points
        };
        let (ours, copy) = (points(quantity.of), points(quantity.of_copy));
        let dots = ours
            .iter()
            .map(|&dot| Circle::new(dot, 3, line.colour.filled()));
        chart.draw_series(dots)?;
        chart.draw_series(LineSeries::new(ours, line.colour.stroke_width(2)))?;
        chart.draw_series(LineSeries::new(copy, line.colour.mix(0.7).stroke_width(1)))?;
    }
    Ok(())
}

fn rows(timed: &Timed) -> f64 {
    timed.case.rows as f64
}
