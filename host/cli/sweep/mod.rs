//! `sweep`: every program that a shape allows, every bit against the golden implementation.

mod group;

use super::device::{self, Device, DeviceArg, Planning};
use super::error::{CliError, Result};
use super::output::{Output, thousands};
use super::progress::Progress;
use cake_rmsnorm::plan::Routes;
use cake_rmsnorm::{Dtype, MAX_ROWS, RmsNorm};
use group::{Found, Group};
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::Instant;

/// Arguments of `sweep`.
#[derive(clap::Args)]
pub struct Args {
    /// Where to run. `auto`: the GPU if there is one, else the simulator.
    #[arg(long, value_enum, default_value = "auto")]
    device: DeviceArg,
    /// Elements of a row (H), multiples of 8 [default: a width for every program].
    #[arg(long, value_delimiter = ',')]
    hidden: Vec<u64>,
    /// Rows (T) [default: 1 to 300, both sides of every edge, 65535, 65537, 262145; few under the
    /// simulator].
    #[arg(long, value_delimiter = ',')]
    rows: Vec<u64>,
    /// Both weights with and without residual at every T up to 300, instead of each in turn.
    #[arg(long)]
    every_form: bool,
    /// Print one JSON object a line instead of the table.
    #[arg(long)]
    json: bool,
}

const WIDTHS: [u64; 11] = [8, 256, 264, 512, 1032, 2048, 4096, 5128, 6144, 8192, 16_384];
const SIM_WIDTHS: [u64; 3] = [8, 264, 1032];
const SIM_ROWS: [u64; 4] = [1, 2, 7, 33];
/// T that are large whatever H is.
const LARGE_ROWS: [u64; 3] = [65_535, 65_537, 262_145];
/// Every T up to here.
const EVERY_ROWS: u64 = 300;
/// Largest T beside an edge.
const LAST_EDGE: u64 = 20_000;
/// Elements of a tensor, at most.
const MAX_ELEMENTS: u64 = 1_100_000_000;
/// Up to as many elements, all four combinations of weight and form are run; beyond, one.
const ALL_FORMS_ELEMENTS: u64 = 1 << 24;
/// Multiprocessors that plans are made for, beside the device's own.
const SM_COUNTS: [u32; 4] = [1, 7, 100, 212];
/// Rows from which on memory is allocated apart, so that small T stay quick.
const SMALL_ROWS: u64 = 2200;

/// Weight and form.
const FORMS: [(Dtype, bool); 4] = [
    (Dtype::F32, false),
    (Dtype::F32, true),
    (Dtype::Bf16, false),
    (Dtype::Bf16, true),
];

/// What was found of a width.
#[derive(Serialize)]
struct Line {
    device: &'static str,
    hidden: u64,
    /// Pairs of T and weight and form.
    cases: u64,
    /// Launches whose every bit was compared.
    runs: u64,
    kernels: BTreeSet<&'static str>,
    ok: bool,
    /// Of how many runs, and the first of them.
    differing: u64,
    failures: Vec<String>,
    seconds: f64,
}

/// Runs the sweep; whether all bits are equal.
pub fn run(args: &Args, out: &mut Output) -> Result<bool> {
    let progress = Progress::new();
    let ok = sweep(args, out, &progress);
    progress.finish();
    ok
}

fn sweep(args: &Args, out: &mut Output, progress: &Progress) -> Result<bool> {
    if args.device == DeviceArg::Cpu {
        return Err(CliError::Usage {
            option: "--device cpu",
            reason: "the golden implementation has one program: accepted are auto, cuda and sim"
                .to_owned(),
        });
    }
    for &rows in &args.rows {
        if rows > MAX_ROWS || rows == 0 {
            return Err(CliError::Usage {
                option: "--rows",
                reason: format!("{rows} rows: accepted are 1 to 2^31 - 1"),
            });
        }
    }
    let widths = |all: &[u64]| match &args.hidden[..] {
        [] => all.to_vec(),
        hidden => hidden.to_vec(),
    };
    for hidden in widths(&WIDTHS) {
        RmsNorm::new(hidden, Dtype::F32, 0.0)?;
    }
    // No elements: the simulator rather than the CPU.
    let (device, fallback) = device::open(args.device, &Planning::default(), 0, progress)?;
    device.load_every_kernel()?;
    let simulated = device.kind() == "sim";
    let widths = widths(if simulated { &SIM_WIDTHS } else { &WIDTHS });
    if !args.json {
        out.line(format!("device  {}", device.name()))?;
        if let Some(why) = fallback {
            out.line(format!("        {why}"))?;
        }
        out.line("every program that the shape allows, every bit against golden\n")?;
        out.line(format!(
            "{:>6} {:>7} {:>9} {:>8} {:>9} {:>8}",
            "H", "cases", "runs", "kernels", "differing", "seconds"
        ))?;
    }
    progress.expect(widths.len() as u64 * FORMS.len() as u64);
    let mut ok = true;
    for (index, &hidden) in widths.iter().enumerate() {
        let line = width(args, hidden, index, &*device, progress)?;
        ok &= line.ok;
        progress.hidden(|| {
            out.line(if args.json {
                serde_json::to_string(&line).map_err(|error| CliError::Stdout(error.into()))?
            } else {
                line.text()
            })
        })?;
    }
    progress.finish();
    if !args.json {
        out.line(if ok { "\nOK" } else { "\nFAILED" })?;
    }
    Ok(ok)
}

/// Every T and form of a width.
fn width(
    args: &Args,
    hidden: u64,
    index: usize,
    device: &dyn Device,
    progress: &Progress,
) -> Result<Line> {
    let begin = Instant::now();
    let mut found = Found::default();
    let mut cases = 0;
    for (form, (weight, residual)) in FORMS.into_iter().enumerate() {
        let op = RmsNorm::new(hidden, weight, 1e-6)?;
        let rows = match (&args.rows[..], device.kind()) {
            ([], "sim") => BTreeSet::from(SIM_ROWS),
            ([], _) => rows(&op, residual, device),
            (rows, _) => rows.iter().copied().collect(),
        };
        let ours = |&rows: &u64| {
            let dense = !args.every_form
                && args.rows.is_empty()
                && rows <= EVERY_ROWS
                && device.kind() != "sim";
            let all = !dense && rows * hidden <= ALL_FORMS_ELEMENTS;
            all || (rows + index as u64) % FORMS.len() as u64 == form as u64
        };
        let (small, large): (Vec<u64>, Vec<u64>) = rows
            .into_iter()
            .filter(ours)
            .partition(|rows| *rows <= SMALL_ROWS);
        let large = large.iter().map(std::slice::from_ref);
        for rows in [&small[..]].into_iter().chain(large) {
            let Some(&most) = rows.iter().max() else {
                continue;
            };
            progress.stage(format!("H {hidden}, T up to {most}"));
            let mut group = Group::new(device, op, residual, most)?;
            for (i, &t) in rows.iter().enumerate() {
                progress.stage(format!("H {hidden}, T {t}"));
                let own = device.backend().properties().sm_count;
                let counts = [&[own][..], &SM_COUNTS].concat();
                group.compare(t, counts[i % counts.len()], &mut found)?;
                cases += 1;
            }
        }
        progress.advance(1);
    }
    Ok(Line {
        device: device.kind(),
        hidden,
        cases,
        runs: found.runs,
        kernels: found.kernels,
        ok: found.differing == 0,
        differing: found.differing,
        failures: found.failures,
        seconds: (begin.elapsed().as_secs_f64() * 100.0).round() / 100.0,
    })
}

/// Every small T, both sides of the edges of routes and of the leaf table, and some large T.
fn rows(op: &RmsNorm, residual: bool, device: &dyn Device) -> BTreeSet<u64> {
    let properties = device.backend().properties();
    let edges = op.route_limits(Routes::built_in(), residual, properties);
    let leaves = (9..=14).map(|log2| 1 << log2);
    let beside = edges
        .into_iter()
        .chain(leaves)
        .filter(|edge| *edge <= LAST_EDGE)
        .flat_map(|edge| [edge - 1, edge, edge + 1]);
    let mut rows: BTreeSet<u64> = (1..=EVERY_ROWS).chain(beside).chain(LARGE_ROWS).collect();
    rows.retain(|rows| *rows > 0 && rows * op.hidden() <= MAX_ELEMENTS);
    rows
}

impl Line {
    fn text(&self) -> String {
        let mut text = format!(
            "{:>6} {:>7} {:>9} {:>8} {:>9} {:>8.1}",
            self.hidden,
            thousands(self.cases),
            thousands(self.runs),
            self.kernels.len(),
            self.differing,
            self.seconds,
        );
        for failure in &self.failures {
            text += &format!("\n  {failure}");
        }
        text
    }
}
