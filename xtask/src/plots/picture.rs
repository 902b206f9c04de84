//! Pictures of panels one under the other, narrow enough to be read on a phone.

use plotters::coord::Shift;
use plotters::prelude::*;
use std::error::Error;
use std::ops::Range;

/// Width of a picture.
const WIDTH: u32 = 480;
/// Height of the title, of a line of the legend, and what is left free below the last panel.
const TITLE: u32 = 30;
const LEGEND: u32 = 20;
const FOOT: u32 = 6;
/// Sizes of text.
const LARGE: i32 = 15;
const SMALL: i32 = 13;

/// Colours for one kind of page. Pictures have no background.
pub struct Theme {
    pub name: &'static str,
    ink: RGBColor,
    grid: RGBColor,
    /// In the order in which [`Colour`] counts them.
    palette: [RGBColor; 9],
}

pub const LIGHT: Theme = Theme {
    name: "light",
    ink: RGBColor(0x33, 0x38, 0x40),
    grid: RGBColor(0xd4, 0xd8, 0xde),
    palette: [
        RGBColor(0x0b, 0x62, 0xc4),
        RGBColor(0xc4, 0x4e, 0x00),
        RGBColor(0x12, 0x80, 0x5c),
        RGBColor(0xa8, 0x2f, 0x8a),
        RGBColor(0x7a, 0x74, 0x00),
        RGBColor(0x62, 0x52, 0xc2),
        RGBColor(0xb8, 0x24, 0x2c),
        RGBColor(0x00, 0x7f, 0x92),
        RGBColor(0x6b, 0x72, 0x7c),
    ],
};

pub const DARK: Theme = Theme {
    name: "dark",
    ink: RGBColor(0xcf, 0xd5, 0xde),
    grid: RGBColor(0x3a, 0x41, 0x4c),
    palette: [
        RGBColor(0x62, 0xa8, 0xff),
        RGBColor(0xff, 0x9a, 0x4d),
        RGBColor(0x4c, 0xcb, 0x9d),
        RGBColor(0xea, 0x86, 0xd2),
        RGBColor(0xcc, 0xc4, 0x45),
        RGBColor(0xa9, 0x9c, 0xff),
        RGBColor(0xff, 0x7b, 0x80),
        RGBColor(0x49, 0xc5, 0xd8),
        RGBColor(0x9a, 0xa3, 0xb0),
    ],
};

/// A place in the palette.
pub type Colour = usize;

/// This library, wherever others are beside it, and the best of the others.
pub const OURS: Colour = 0;
pub const BEST: Colour = 1;

/// Where values lie.
pub struct Axis {
    pub title: &'static str,
    pub range: Range<f64>,
    /// How many labels fit.
    pub labels: usize,
    pub label: fn(f64) -> String,
}

impl Axis {
    /// Numbers by their logarithm to base 2, from the least to the largest.
    pub fn log2(title: &'static str, values: impl IntoIterator<Item = u64>) -> Self {
        let logarithms = values.into_iter().map(|value| (value as f64).log2());
        let (least, largest) = logarithms.fold((f64::INFINITY, 0.0_f64), |(least, largest), v| {
            (least.min(v.floor()), largest.max(v.ceil()))
        });
        let least = least.min(largest - 1.0);
        Self {
            title,
            range: least..largest,
            labels: 9,
            label: |logarithm| thousands(logarithm.exp2().round() as u64),
        }
    }

    /// From 0 to 100% and a little more.
    pub fn percent(title: &'static str) -> Self {
        Self {
            title,
            range: 0.0..1.09,
            labels: 6,
            label: |value| format!("{:.0}%", 100.0 * value),
        }
    }
}

/// 16384 as 16K.
fn thousands(value: u64) -> String {
    match value {
        0x10_0000.. if value.is_multiple_of(1 << 20) => format!("{}M", value >> 20),
        1024.. if value.is_multiple_of(1 << 10) => format!("{}K", value >> 10),
        _ => value.to_string(),
    }
}

/// What a panel shows.
pub enum Mark {
    Line {
        points: Vec<(f64, f64)>,
        colour: Colour,
    },
    /// A line of values that hold up to the next.
    Steps {
        points: Vec<(f64, f64)>,
        colour: Colour,
    },
    /// Between least and largest.
    Band {
        /// x, least, largest.
        points: Vec<(f64, f64, f64)>,
        colour: Colour,
    },
    Rectangle {
        corners: [(f64, f64); 2],
        colour: Colour,
    },
}

pub struct Panel {
    pub title: String,
    pub height: u32,
    pub x: Axis,
    pub y: Axis,
    pub marks: Vec<Mark>,
}

pub struct Picture {
    pub title: String,
    /// Names of colours.
    pub legend: Vec<(String, Colour)>,
    pub panels: Vec<Panel>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error>>;

impl Picture {
    /// The picture as SVG.
    pub fn svg(&self, theme: &Theme) -> Result<String, Box<dyn Error>> {
        let legend = self.legend_places();
        let lines = legend.last().map_or(0, |(_, y)| *y as u32 / LEGEND + 1);
        let head = TITLE + LEGEND * lines;
        let height: u32 = self.panels.iter().map(|panel| panel.height).sum();
        let mut svg = String::new();
        {
            let size = (WIDTH, head + height + FOOT);
            let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
            let title = text(LARGE, theme.ink);
            root.draw_text(&self.title, &title, (8, 7))?;
            for ((name, colour), (x, y)) in self.legend.iter().zip(legend) {
                let y = TITLE as i32 + y;
                let sample = Rectangle::new(
                    [(x, y + 3), (x + 18, y + 11)],
                    theme.palette[*colour].filled(),
                );
                root.draw(&sample)?;
                root.draw_text(name, &text(SMALL, theme.ink), (x + 24, y))?;
            }
            let mut rest = root.split_vertically(head).1;
            for panel in &self.panels {
                let (area, below) = rest.split_vertically(panel.height);
                panel.draw(&area, theme)?;
                rest = below;
            }
            root.present()?;
        }
        // plotters ends no line.
        Ok(svg.trim_end().to_owned() + "\n")
    }

    /// Where names stand: as many in a line as fit.
    fn legend_places(&self) -> Vec<(i32, i32)> {
        let (mut x, mut y) = (8, 0);
        let mut places = Vec::new();
        for (name, _) in &self.legend {
            let width = 24 + 16 + 7 * name.chars().count() as i32;
            if x + width > WIDTH as i32 && x > 8 {
                (x, y) = (8, y + LEGEND as i32);
            }
            places.push((x, y));
            x += width;
        }
        places
    }
}

fn text(size: i32, colour: RGBColor) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&colour)
}

impl Panel {
    fn draw(&self, area: &Area<'_>, theme: &Theme) -> Drawn {
        let mut builder = ChartBuilder::on(area);
        builder
            .margin(6)
            .margin_right(18)
            .x_label_area_size(if self.x.title.is_empty() { 22 } else { 40 })
            .y_label_area_size(if self.y.title.is_empty() { 44 } else { 58 });
        if !self.title.is_empty() {
            builder.caption(&self.title, text(SMALL + 1, theme.ink));
        }
        let mut chart = builder.build_cartesian_2d(self.x.range.clone(), self.y.range.clone())?;
        let rectangles = self
            .marks
            .iter()
            .any(|mark| matches!(mark, Mark::Rectangle { .. }));
        chart
            .configure_mesh()
            .x_desc(self.x.title)
            .y_desc(self.y.title)
            .x_labels(self.x.labels)
            .y_labels(self.y.labels)
            .x_label_formatter(&|value| (self.x.label)(*value))
            .y_label_formatter(&|value| (self.y.label)(*value))
            .axis_style(theme.ink)
            // Lines would be hidden by areas.
            .bold_line_style(theme.grid.mix(if rectangles { 0.0 } else { 1.0 }))
            .light_line_style(TRANSPARENT)
            .label_style(text(SMALL, theme.ink))
            .axis_desc_style(text(SMALL, theme.ink))
            .draw()?;
        for mark in &self.marks {
            match mark {
                Mark::Line { points, colour } => {
                    let colour = theme.palette[*colour];
                    chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
                    let dots = points.iter().map(|&at| Circle::new(at, 3, colour.filled()));
                    chart.draw_series(dots)?;
                }
                Mark::Steps { points, colour } => {
                    let ends = points
                        .iter()
                        .skip(1)
                        .map(|&(x, _)| x)
                        .chain([self.x.range.end]);
                    let steps = points
                        .iter()
                        .zip(ends)
                        .flat_map(|(&(x, y), end)| [(x, y), (end, y)]);
                    let style = theme.palette[*colour].stroke_width(2);
                    chart.draw_series(LineSeries::new(steps, style))?;
                }
                Mark::Band { points, colour } => {
                    let lower = points.iter().map(|&(x, least, _)| (x, least));
                    let upper = points.iter().rev().map(|&(x, _, largest)| (x, largest));
                    let outline: Vec<_> = lower.chain(upper).collect();
                    let style = theme.palette[*colour].mix(0.18).filled();
                    chart.draw_series([Polygon::new(outline, style)])?;
                }
                Mark::Rectangle { corners, colour } => {
                    let style = theme.palette[*colour].filled();
                    chart.draw_series([Rectangle::new(*corners, style)])?;
                }
            }
        }
        Ok(())
    }
}
