//! Badges of the README: what `Cargo.toml` and the newest checks say.

use super::Error;
use crate::tables::data::{Check, File};
use crate::tables::markdown::newest;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Height of a badge, and width of a letter.
const HEIGHT: u32 = 20;
const LETTER: f64 = 6.6;
/// Grey of the left half, and of the right half by what it says.
const GREY: &str = "#4a5058";
const BLUE: &str = "#0b62c4";
const GREEN: &str = "#12805c";
const RED: &str = "#b8242c";

/// The badges, by file.
pub fn draw(root: &Path, checks: &[File<Vec<Check>>]) -> Result<BTreeMap<String, String>, Error> {
    let path = root.join("Cargo.toml");
    let manifest = fs::read_to_string(&path).map_err(|source| Error::Io { path, source })?;
    let field = |name: &str| {
        let start = format!("{name} = \"");
        let values = manifest
            .lines()
            .filter_map(|line| line.strip_prefix(&start));
        let value = values.filter_map(|value| value.strip_suffix('"')).next();
        value.ok_or_else(|| Error::Table {
            file: "Cargo.toml".to_owned(),
            message: format!("no {name}"),
        })
    };
    let rust = format!("{} or newer", field("rust-version")?);
    let licence = field("license")?.replace(" OR ", " or ");
    let mut badges = BTreeMap::from([
        ("badge-rust.svg".to_owned(), badge("Rust", &rust, BLUE)),
        (
            "badge-licence.svg".to_owned(),
            badge("licence", &licence, BLUE),
        ),
        // CI has none, and skips no test for it.
        (
            "badge-tests.svg".to_owned(),
            badge("to test", "no GPU, no CUDA", GREEN),
        ),
    ]);
    if let Some(group) = newest(checks).first() {
        let all: Vec<_> = group.iter().flat_map(|file| &file.content).collect();
        let equal = all
            .iter()
            .filter(|check| check.ok && check.golden_bits())
            .count();
        let gpu = group[0].record.gpu.trim_start_matches("NVIDIA ");
        let colour = if equal == all.len() { GREEN } else { RED };
        let said = format!("{equal} of {} cases", all.len());
        let title = format!("the CPU's bits on an {gpu}");
        badges.insert("badge-bits.svg".to_owned(), badge(&title, &said, colour));
    }
    Ok(badges)
}

/// Two halves with a text each.
fn badge(left: &str, right: &str, colour: &str) -> String {
    let width = |text: &str| (text.chars().count() as f64 * LETTER).round() as u32;
    let (a, b) = (width(left), width(right));
    let (first, second) = (a + 14, b + 14);
    let all = first + second;
    let text = |x: u32, width: u32, text: &str| {
        format!("<text x=\"{x}\" y=\"14\" textLength=\"{width}\">{text}</text>\n")
    };
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{all}\" height=\"{HEIGHT}\" role=\"img\" aria-label=\"{left}: {right}\">\n\
         <clipPath id=\"round\"><rect width=\"{all}\" height=\"{HEIGHT}\" rx=\"3\"/></clipPath>\n\
         <g clip-path=\"url(#round)\"><rect width=\"{first}\" height=\"{HEIGHT}\" fill=\"{GREY}\"/>\
         <rect x=\"{first}\" width=\"{second}\" height=\"{HEIGHT}\" fill=\"{colour}\"/></g>\n\
         <g fill=\"#fff\" font-family=\"Verdana,DejaVu Sans,sans-serif\" font-size=\"11\">\n{}{}</g>\n</svg>\n",
        text(7, a, left),
        text(first + 7, b, right),
    )
}
