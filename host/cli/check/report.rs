//! What a check found, as a table and as JSON.

use super::Args;
use super::source::Source;
use super::verify::{Comparison, Repeats, Verdict};
use crate::cli::device::Device;
use crate::cli::dtype_name;
use crate::cli::error::{CliError, Result};
use crate::cli::output::{columns, thousands};
use cake_rmsnorm::Dtype;
use serde::Serialize;

/// What was run.
#[derive(Serialize)]
pub struct Run {
    device: &'static str,
    device_name: String,
    inputs: String,
    rows: u64,
    hidden: u64,
    input: &'static str,
    weight: &'static str,
    weight_offset: f32,
    eps: f32,
    residual: bool,
    sm_count: u32,
    #[serde(skip)]
    notes: Vec<String>,
    #[serde(skip)]
    dtypes: [Dtype; 2],
}

impl Run {
    /// What is about to be run; `fallback` says why not on a better device.
    pub fn new(
        source: &Source,
        device: &dyn Device,
        fallback: Option<String>,
        args: &Args,
    ) -> Self {
        let sm_count = args.sm_count;
        let mut notes: Vec<String> = fallback.into_iter().collect();
        if device.kind() == "cpu" && sm_count.is_some() {
            notes.push("--sm-count has no effect on the CPU, which makes no plan".to_owned());
        }
        Run {
            device: device.kind(),
            device_name: device.name(),
            inputs: source.description.clone(),
            rows: source.rows,
            hidden: source.hidden,
            input: dtype_name(source.input),
            weight: dtype_name(source.weight),
            weight_offset: args.weight_offset,
            eps: source.eps,
            residual: source.residual,
            sm_count: device.backend().properties().sm_count,
            notes,
            dtypes: [source.input, source.weight],
        }
    }

    /// What is about to be run, in words.
    pub fn heading(&self) -> String {
        let mut text = format!("device  {}\n", self.device_name);
        for note in &self.notes {
            text += &format!("        {note}\n");
        }
        text += &format!("inputs  {}\n", self.inputs);
        text += &format!(
            "shape   {} rows x {} {}, weight {}{}, eps {:e}{}\n",
            thousands(self.rows),
            thousands(self.hidden),
            self.dtypes[0],
            self.dtypes[1],
            match self.weight_offset {
                0.0 => String::new(),
                offset => format!(" + {offset}"),
            },
            self.eps,
            if self.residual { ", residual form" } else { "" },
        );
        text
    }
}

/// What a check found.
#[derive(Serialize)]
pub struct Report {
    #[serde(flatten)]
    run: Run,
    ok: bool,
    failures: Vec<String>,
    y: OutputReport,
    rstd: OutputReport,
    dx: OutputReport,
    dw: WeightGradientReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    h: Option<OutputReport>,
}

/// What was found of an output.
#[derive(Serialize)]
pub struct OutputReport {
    /// Distance from the FP64 result in units in the last place of the output's type.
    pub max_ulp: f64,
    /// Share of the elements that are the FP64 result rounded once.
    pub correctly_rounded: f64,
    pub within_bound: bool,
    pub bits_match_golden: bool,
    /// Whether repeated runs gave the same bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeat_bits: Option<bool>,
    #[serde(skip)]
    pub elements: u64,
}

#[derive(Serialize)]
struct WeightGradientReport {
    #[serde(flatten)]
    output: OutputReport,
    /// Largest error as a share of 1e-4 + 1e-4·|FP64|.
    worst_budget: f64,
    /// ‖dw − FP64‖ / ‖FP64‖.
    rel_l2: f64,
}

impl Report {
    /// Judges; of `ordinary` inputs, almost all elements must be correctly rounded too.
    pub fn new(
        run: Run,
        verdict: Verdict,
        repeats: Repeats,
        overrun: Vec<&'static str>,
        ordinary: bool,
    ) -> Self {
        let Verdict { h, y, rstd, dx, dw } = verdict;
        let mut failures = Vec::new();
        let mut judge = |name, comparison: &Comparison, columns, repeat_bits| {
            failures.extend(complaints(name, comparison, columns, ordinary, repeat_bits));
            OutputReport::new(comparison, repeat_bits)
        };
        let columns = Some(run.hidden);
        let h = h.map(|h| judge("h", &h, columns, None));
        let y = judge("y", &y, columns, None);
        let rstd = judge("rstd", &rstd, None, None);
        let dx = judge("dx", &dx, columns, Some(repeats.dx));
        let dw = WeightGradientReport {
            output: judge("dw", &dw, None, Some(repeats.dw)),
            worst_budget: dw.report.worst_budget,
            rel_l2: dw.report.rel_l2,
        };
        let overrun = overrun
            .iter()
            .map(|name| format!("{name}: written behind its end"));
        failures.extend(overrun);
        Report {
            run,
            ok: failures.is_empty(),
            failures,
            y,
            rstd,
            dx,
            dw,
            h,
        }
    }

    /// Whether all is well.
    pub fn ok(&self) -> bool {
        self.ok
    }

    /// One JSON object.
    pub fn json(&self) -> Result<String> {
        serde_json::to_string_pretty(self).map_err(|error| CliError::Stdout(error.into()))
    }

    /// A table for the reader, and a last line that says OK or FAILED.
    pub fn table(&self) -> String {
        let outputs = [
            ("y", &self.y),
            ("rstd", &self.rstd),
            ("dx", &self.dx),
            ("dw", &self.dw.output),
        ];
        let h = self.h.iter().map(|h| ("h", h));
        let mut lines = table(h.chain(outputs));
        lines.push(format!(
            "dw: worst error {:.1e} of the budget 1e-4 + 1e-4*|FP64|, relative L2 error {:.1e}",
            self.dw.worst_budget, self.dw.rel_l2,
        ));
        if self.run.device == "cpu" {
            lines.push(
                "note: cpu is the golden implementation; its golden bits are a second run of itself"
                    .to_owned(),
            );
        }
        lines.push(String::new());
        lines.extend(self.failures.iter().cloned());
        lines.push(if self.ok { "OK" } else { "FAILED" }.to_owned());
        lines.join("\n")
    }
}

impl OutputReport {
    fn new(comparison: &Comparison, repeat_bits: Option<bool>) -> Self {
        OutputReport {
            max_ulp: comparison.report.max_ulp,
            correctly_rounded: comparison.report.correctly_rounded,
            within_bound: comparison.report.out_of_bound == 0,
            bits_match_golden: comparison.differences.count == 0,
            repeat_bits,
            elements: comparison.report.elements,
        }
    }

    fn cells(&self, name: &str) -> Vec<String> {
        let say = |good: bool, yes: &str, no: &str| if good { yes } else { no }.to_owned();
        vec![
            name.to_owned(),
            thousands(self.elements),
            format!("{:.3}", self.max_ulp),
            percent(self.correctly_rounded),
            say(self.within_bound, "within", "BEYOND"),
            say(self.bits_match_golden, "equal", "DIFFERENT"),
            self.repeat_bits
                .map_or("-".to_owned(), |same| say(same, "3x equal", "DIFFERENT")),
        ]
    }
}

/// Lines of a table: a header, and a line for each output.
pub fn table<'a>(outputs: impl IntoIterator<Item = (&'a str, &'a OutputReport)>) -> Vec<String> {
    let header = [
        "output",
        "elements",
        "max ulp",
        "correctly rounded",
        "bound",
        "golden bits",
        "repeated",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(outputs.into_iter().map(|(name, output)| output.cells(name)));
    columns(&rows)
}

/// A share as a percentage that shows 100 only for all.
fn percent(share: f64) -> String {
    let text = format!("{:.4} %", 100.0 * share);
    if share < 1.0 && text.starts_with("100") {
        "99.9999 %".to_owned()
    } else {
        text
    }
}

/// What is wrong with an output; `columns` of a matrix.
fn complaints(
    name: &str,
    comparison: &Comparison,
    columns: Option<u64>,
    ordinary: bool,
    repeat_bits: Option<bool>,
) -> Vec<String> {
    let Comparison {
        report,
        differences,
    } = comparison;
    let place = |index: u64| match columns {
        Some(columns) => format!("row {}, column {}", index / columns, index % columns),
        None => format!("element {index}"),
    };
    let elements = thousands(report.elements);
    let mut complaints = Vec::new();
    if report.out_of_bound > 0 {
        let count = thousands(report.out_of_bound);
        let worst = report.worst.map_or(String::new(), |worst| {
            format!(
                "; worst at {}: {:e}, FP64 {:e}, accepted error {:.2e}",
                place(worst.index),
                worst.found,
                worst.exact,
                worst.bound,
            )
        });
        complaints.push(format!(
            "{name}: {count} of {elements} elements beyond the bound{worst}"
        ));
    }
    if differences.count > 0 {
        let count = thousands(differences.count);
        let first = differences.first.map_or(String::new(), |first| {
            format!("; first at {}", place(first))
        });
        complaints.push(format!(
            "{name}: {count} of {elements} elements differ from golden{first}"
        ));
    }
    if ordinary && report.ok() && !report.ok_for_ordinary_inputs() {
        complaints.push(format!(
            "{name}: {} of {} elements whose terms cancel little are not correctly rounded",
            thousands(report.uncancelled_misrounded),
            thousands(report.uncancelled),
        ));
    }
    if repeat_bits == Some(false) {
        complaints.push(format!("{name}: repeated runs differ in their bits"));
    }
    complaints
}
