//! `partition`: what it costs that the division of rows into leaves of dw does not depend on the
//! number of multiprocessors.

mod variant;

use super::bench::case::{Repeats, Summary};
use super::bench::fill;
use super::bench::timer::{self, Cache, Timer};
use super::device::{Device, DeviceArg, Planning};
use super::error::{CliError, Result};
use super::operands::Operands;
use super::output::{Output, columns, thousands};
use super::progress::Progress;
use cake_rmsnorm::backend::Launcher;
use cake_rmsnorm::kernels::contract::Program;
use cake_rmsnorm::plan::{Choice, DeviceProperties, Routes};
use cake_rmsnorm::{Dtype, RmsNorm};
use serde::Serialize;
use variant::Variant;

/// Arguments of `partition`.
#[derive(clap::Args)]
pub struct Args {
    /// What to measure on: a GPU.
    #[arg(long, value_enum, default_value = "cuda")]
    device: DeviceArg,
    /// Elements of a row (H), multiples of 8.
    #[arg(long, value_delimiter = ',', default_value = "256,2048,4096,6144")]
    hidden: Vec<u64>,
    /// Rows (T).
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "256,512,1024,2048,4096,8192,16384,65536"
    )]
    rows: Vec<u64>,
    /// The residual form, instead of the plain one.
    #[arg(long)]
    residual: bool,
    /// Rounds in which both are timed, one after the other.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Print one JSON object a line instead of the table.
    #[arg(long)]
    json: bool,
}

/// Samples of every variant, before the best of them are measured well.
const QUICK: Repeats = Repeats {
    batch: 4,
    batches: 1,
};
/// Samples of a round.
const ROUND: Repeats = Repeats {
    batch: 4,
    batches: 1,
};
/// Variants that are measured well.
const BEST: usize = 3;
/// Largest workspace of a variant.
const WORKSPACE_BYTES: u64 = 128 << 20;

/// Both times of a shape.
#[derive(Serialize)]
struct Line {
    hidden: u64,
    rows: u64,
    residual: bool,
    sm_count: u32,
    /// Of the built-in route, whose leaves depend on T and H alone, and of the fastest variant.
    built_in: Timed,
    free: Timed,
    /// How much longer the built-in route takes, in per cent.
    cost: f64,
    /// What a division without remainder would take, between the two T next to it that a power of
    /// two of rows for every multiprocessor makes; `None` for few rows.
    fitted_us: Option<f64>,
    /// How much longer than that the built-in route takes, in per cent.
    fitted_cost: Option<f64>,
    tried: usize,
    ok: bool,
    failures: Vec<String>,
}

#[derive(Clone, Serialize)]
struct Timed {
    kernel: &'static str,
    leaf_rows: u64,
    leaves: u32,
    run_leaves: u32,
    /// Rows of the busiest block, as a multiple of the mean.
    imbalance: f64,
    us: f64,
}

/// Measures every shape; whether dx and dw of all variants are right.
pub fn run(args: &Args, out: &mut Output) -> Result<bool> {
    let progress = Progress::new();
    let ok = partition(args, out, &progress);
    progress.finish();
    ok
}

fn partition(args: &Args, out: &mut Output, progress: &Progress) -> Result<bool> {
    let operators = args.hidden.iter();
    let operators = operators
        .map(|&hidden| RmsNorm::new(hidden, Dtype::F32, 1e-6))
        .collect::<cake_rmsnorm::Result<Vec<_>>>()?;
    if let Some(rows) = args.rows.iter().find(|rows| !(1..=1 << 24).contains(*rows)) {
        return Err(CliError::Usage {
            option: "--rows",
            reason: format!("{rows} rows: accepted are 1 to 2^24"),
        });
    }
    if matches!(args.device, DeviceArg::Cpu | DeviceArg::Sim) {
        return Err(CliError::Usage {
            option: "--device",
            reason: "a GPU's time is measured: accepted is cuda".to_owned(),
        });
    }
    let (timer, _) = timer::open(DeviceArg::Cuda, &Planning::default())?;
    let device = timer.device();
    if !args.json {
        out.line(format!("device  {}", device.name()))?;
        out.line(
            "backward: leaves that depend on T and H alone, beside the fastest leaves for this \
             device\n",
        )?;
    }
    progress.expect((operators.len() * args.rows.len()) as u64);
    let mut lines = Vec::new();
    for op in operators {
        for &rows in &args.rows {
            progress.stage(format!("H {}, T {}", op.hidden(), thousands(rows)));
            let line = Measure::new(&*timer, op, rows, args)?.line()?;
            if args.json {
                let text = serde_json::to_string(&line);
                let text = text.map_err(|error| CliError::Stdout(error.into()))?;
                progress.hidden(|| out.line(text))?;
            }
            lines.push(line);
            progress.advance(1);
        }
    }
    progress.finish();
    let ok = lines.iter().all(|line| line.ok);
    if !args.json {
        for line in table(&lines) {
            out.line(line)?;
        }
        for failure in lines.iter().flat_map(|line| &line.failures) {
            out.line(format!("  {failure}"))?;
        }
        out.line(if ok { "\nOK" } else { "\nFAILED" })?;
    }
    Ok(ok)
}

/// An operator with its memory.
struct Measure<'a> {
    timer: &'a dyn Timer,
    launcher: &'a dyn Launcher,
    op: RmsNorm,
    rows: u64,
    args: &'a Args,
    operands: Operands,
    device: DeviceProperties,
}

impl<'a> Measure<'a> {
    fn new(timer: &'a dyn Timer, op: RmsNorm, rows: u64, args: &'a Args) -> Result<Self> {
        let device = timer.device();
        let launcher = launcher(device)?;
        let properties = *device.backend().properties();
        launcher.load(&variant::kernels(args.residual, &properties))?;
        let most = fitting(rows, &properties).map_or(rows, |(_, above)| above);
        let mut operands = Operands::new(device, op, most, args.residual, WORKSPACE_BYTES)?;
        fill(&mut operands, op, most, args.residual)?;
        operands.forward(device.backend(), most)?;
        device.synchronize()?;
        Ok(Self {
            timer,
            launcher,
            op,
            rows,
            args,
            operands,
            device: properties,
        })
    }

    fn line(&mut self) -> Result<Line> {
        let rows = self.rows;
        let built_in = built_in(&self.op, rows, self.args.residual, &self.device)?;
        let (free, tried) = self.fastest(rows)?;
        let mut failures = Vec::new();
        let device = self.timer.device();
        let variants = [&built_in, &free];
        let different = compare(device, self.launcher, &mut self.operands, rows, variants)?;
        if let Some(different) = different {
            failures.push(format!("H {}, T {rows}: {different}", self.op.hidden()));
        }
        let [us, free_us] = self.interleaved(rows, variants)?;
        let fitted_us = match fitting(rows, &self.device) {
            Some((below, above)) => Some(self.fitted(below, above)?),
            None => None,
        };
        let cost = |other: f64| ((us / other - 1.0) * 1e4).round() / 100.0;
        Ok(Line {
            hidden: self.op.hidden(),
            rows,
            residual: self.args.residual,
            sm_count: self.device.sm_count,
            built_in: timed(&built_in, rows, us),
            free: timed(&free, rows, free_us),
            cost: cost(free_us),
            fitted_us,
            fitted_cost: fitted_us.map(cost),
            tried,
            ok: failures.is_empty(),
            failures,
        })
    }

    /// The fastest variant of `rows` rows, and how many there are.
    fn fastest(&self, rows: u64) -> Result<(Variant, usize)> {
        let residual = self.args.residual;
        let choices = choices(&self.op, rows, residual, &self.device);
        let mut variants = Variant::all(&self.op, &choices, rows, residual, &self.device);
        variants.retain(|variant| variant.workspace_bytes <= WORKSPACE_BYTES);
        let tried = variants.len();
        let mut quick = Vec::new();
        for variant in variants {
            quick.push((variant, self.median(&variant, rows, QUICK)?));
        }
        quick.sort_by(|a, b| a.1.total_cmp(&b.1));
        let well = Repeats {
            batch: 8,
            batches: 2,
        };
        let mut best = Vec::new();
        for (variant, _) in quick.into_iter().take(BEST) {
            best.push((variant, self.median(&variant, rows, well)?));
        }
        best.sort_by(|a, b| a.1.total_cmp(&b.1));
        let best = best.first().ok_or_else(|| CliError::NoDevice {
            device: "cuda",
            reason: format!("no program divides {rows} rows"),
        })?;
        Ok((best.0, tried))
    }

    /// The time of `rows` rows on the line through those of two other numbers, the fastest of each.
    fn fitted(&self, below: u64, above: u64) -> Result<f64> {
        let (variants, at) = (
            [self.fastest(below)?.0, self.fastest(above)?.0],
            [below, above],
        );
        let mut samples = [Vec::new(), Vec::new()];
        for _ in 0..self.args.rounds {
            for i in 0..2 {
                samples[i].extend(self.samples(&variants[i], at[i], ROUND)?);
            }
        }
        let [low, high] = samples.map(|samples| Summary::of(samples).us);
        let share = (self.rows - below) as f64 / (above - below) as f64;
        Ok(((low + share * (high - low)) * 1000.0).round() / 1000.0)
    }

    /// Medians of variants that take turns.
    fn interleaved(&self, rows: u64, variants: [&Variant; 2]) -> Result<[f64; 2]> {
        let mut samples = [Vec::new(), Vec::new()];
        for _ in 0..self.args.rounds {
            for (samples, variant) in samples.iter_mut().zip(variants) {
                samples.extend(self.samples(variant, rows, ROUND)?);
            }
        }
        Ok(samples.map(|samples| Summary::of(samples).us))
    }

    fn median(&self, variant: &Variant, rows: u64, repeats: Repeats) -> Result<f64> {
        Ok(Summary::of(self.samples(variant, rows, repeats)?).us)
    }

    fn samples(&self, variant: &Variant, rows: u64, repeats: Repeats) -> Result<Vec<f64>> {
        let mut work = || variant.enqueue(self.launcher, &self.operands, rows);
        self.timer.samples(Cache::Cold, repeats, &mut work)
    }
}

fn launcher(device: &dyn Device) -> Result<&dyn Launcher> {
    device.launcher().ok_or_else(|| CliError::NoDevice {
        device: device.kind(),
        reason: "it runs without launches".to_owned(),
    })
}

/// T below and above that give every multiprocessor a power of two of rows.
fn fitting(rows: u64, device: &DeviceProperties) -> Option<(u64, u64)> {
    let each = rows / u64::from(device.sm_count.max(1));
    let below = u64::from(device.sm_count.max(1)) << each.checked_ilog2()?;
    // Beneath, one launch does all.
    (below > 1024).then_some((below, 2 * below))
}

/// The built-in route of a shape.
fn built_in(op: &RmsNorm, rows: u64, residual: bool, device: &DeviceProperties) -> Result<Variant> {
    let (route, _) = op.backward_route(Routes::built_in(), rows, residual, device)?;
    let plan = op.backward_plan(rows, residual, device)?;
    let choice = match route.choice.program {
        Program::BackwardBlock { .. } => Choice {
            run_log2: Some(plan.leaf.run_log2),
            ..route.choice
        },
        _ => route.choice,
    };
    let variant = Variant::new(op, &choice, rows, residual, device, plan.leaf.leaf_log2);
    variant.ok_or_else(|| CliError::Usage {
        option: "--hidden",
        reason: format!(
            "{:?} of H = {}: accepted are widths up to 8192",
            choice.program,
            op.hidden()
        ),
    })
}

/// The programs of the built-in routes of this T, and of those beyond and beneath the window in
/// which one launch does all.
fn choices(op: &RmsNorm, rows: u64, residual: bool, device: &DeviceProperties) -> Vec<Choice> {
    let mut choices = Vec::new();
    for rows in [rows, 64, 512, 1024, 4096, 16_384] {
        if let Ok((route, _)) = op.backward_route(Routes::built_in(), rows, residual, device)
            && !choices.contains(&route.choice)
        {
            choices.push(route.choice);
        }
    }
    choices
}

/// Says what is wrong with a variant's outputs beside those of the built-in route, whose bits
/// `sweep` compares: dx must have the same bits, and dw be as close as two ways to round one sum.
fn compare(
    device: &dyn Device,
    launcher: &dyn Launcher,
    operands: &mut Operands,
    rows: u64,
    variants: [&Variant; 2],
) -> Result<Option<String>> {
    let hidden = operands.hidden() as usize;
    let bytes = rows as usize * hidden * size_of::<u16>();
    let mut other = device.alloc("dx", bytes)?;
    let mut dw = [vec![0f32; hidden], vec![0f32; hidden]];
    for (variant, dw) in variants.into_iter().zip(&mut dw) {
        std::mem::swap(&mut other, &mut operands.dx);
        operands.dx.poison(0xff)?;
        operands.dw.poison(0xff)?;
        operands.workspace.poison(0xff)?;
        variant.enqueue(launcher, operands, rows)?;
        device.synchronize()?;
        operands.dw.read(bytemuck::cast_slice_mut(dw))?;
    }
    if !device.equal(&*other, &*operands.dx, bytes)? {
        return Ok(Some("dx differs".to_owned()));
    }
    let far = far(&dw[0], &dw[1]);
    Ok((far > 0).then(|| format!("dw differs by more than 2 ulp in {far} columns")))
}

/// How many sums of two are further apart than 2 ulp, and than 10⁻⁷ of what sums are like where
/// terms cancel.
fn far(a: &[f32], b: &[f32]) -> usize {
    let squares: f64 = a.iter().map(|&dw| f64::from(dw) * f64::from(dw)).sum();
    let cancelled = 1e-7 * (squares / a.len() as f64).sqrt();
    let near = |(&a, &b): (&f32, &f32)| {
        let ulp = f64::from(a.abs().next_up()) - f64::from(a.abs());
        (f64::from(a) - f64::from(b)).abs() <= cancelled.max(2.0 * ulp)
    };
    a.iter().zip(b).filter(|pair| !near(*pair)).count()
}

fn timed(variant: &Variant, rows: u64, us: f64) -> Timed {
    Timed {
        kernel: variant.program(),
        leaf_rows: variant.leaf.leaf_rows(),
        leaves: variant.leaf.leaves,
        run_leaves: 1 << variant.leaf.run_log2,
        imbalance: (variant.imbalance(rows) * 1e3).round() / 1e3,
        us,
    }
}

fn table(lines: &[Line]) -> Vec<String> {
    let heading = [
        "H",
        "T",
        "built-in us",
        "leaf x run",
        "free us",
        "leaf x run",
        "tried",
        "cost",
        "fitted us",
        "cost",
    ];
    let mut rows = vec![Vec::from(heading.map(str::to_owned))];
    for line in lines {
        let leaves = |timed: &Timed| format!("{} x {}", timed.leaf_rows, timed.run_leaves);
        let dash = || "-".to_owned();
        rows.push(vec![
            line.hidden.to_string(),
            thousands(line.rows),
            format!("{:.2}", line.built_in.us),
            leaves(&line.built_in),
            format!("{:.2}", line.free.us),
            leaves(&line.free),
            line.tried.to_string(),
            format!("{:.1} %", line.cost),
            line.fitted_us.map_or_else(dash, |us| format!("{us:.2}")),
            line.fitted_cost
                .map_or_else(dash, |cost| format!("{cost:.1} %")),
        ]);
    }
    columns(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cake_rmsnorm::golden;
    use cake_rmsnorm::inputs::Spec;

    /// Every variant under the simulator: dx has the golden bits, dw is the golden sum in another
    /// order, and has its bits where the leaves are the contract's.
    #[test]
    fn every_variant_gives_the_same_sums() {
        for (hidden, rows, residual) in [(8u64, 700u64, false), (520, 600, true)] {
            let progress = Progress::new();
            let planning = Planning::new(Some(3), None).expect("no file");
            let (device, _) = super::super::device::open(DeviceArg::Sim, &planning, 1, &progress)
                .expect("the simulator");
            let op = RmsNorm::new(hidden, Dtype::F32, 1e-6).expect("a width");
            let spec = Spec {
                rows: rows as usize,
                hidden: hidden as usize,
                weight: Dtype::F32,
                residual,
                seed: 5,
            };
            let inputs = spec.generate().expect("memory");
            let w = inputs.w.as_golden();
            let forward = golden::forward_slices(&op, &inputs.x, inputs.residual.as_deref(), w);
            let forward = forward.expect("shapes");
            let x = forward.h.as_ref().unwrap_or(&inputs.x);
            let dh = inputs.dh.as_deref();
            let golden = golden::backward_slices(&op, &inputs.dy, x, dh, w, &forward.rstd);
            let golden = golden.expect("shapes");

            let properties = *device.backend().properties();
            let choices = choices(&op, rows, residual, &properties);
            let variants = Variant::all(&op, &choices, rows, residual, &properties);
            let most = variants.iter().map(|it| it.workspace_bytes).max();
            let workspace = most.expect("variants");
            let mut operands =
                Operands::new(&*device, op, rows, residual, workspace).expect("memory");
            for (buffer, values) in [
                (Some(&mut operands.x), Some(&x[..])),
                (operands.h.as_mut(), Some(&x[..])),
                (Some(&mut operands.dy), Some(&inputs.dy[..])),
                (operands.dh.as_mut(), dh),
            ] {
                if let (Some(buffer), Some(values)) = (buffer, values) {
                    buffer.write(bytemuck::cast_slice(values)).expect("room");
                }
            }
            operands.w.write(inputs.w.as_bytes()).expect("room");
            let rstd = bytemuck::cast_slice(&forward.rstd);
            operands.rstd.write(rstd).expect("room");
            let contract = built_in(&op, rows, residual, &properties).expect("a route");
            let launcher = launcher(&*device).expect("it launches");
            let (mut same, mut other) = (0, 0);
            for variant in &variants {
                operands.dx.poison(0xff).expect("memory");
                operands.dw.poison(0xff).expect("memory");
                operands.workspace.poison(0xff).expect("memory");
                variant.enqueue(launcher, &operands, rows).expect("it runs");
                let mut dx = vec![half::bf16::ZERO; golden.dx.len()];
                let mut dw = vec![0f32; hidden as usize];
                let read = operands.dx.read(bytemuck::cast_slice_mut(&mut dx));
                read.and(operands.dw.read(bytemuck::cast_slice_mut(&mut dw)))
                    .expect("memory");
                assert_eq!(dx, golden.dx, "{variant:?}");
                assert_eq!(far(&golden.dw, &dw), 0, "{variant:?}");
                if variant.leaf.leaf_log2 == contract.leaf.leaf_log2 {
                    assert_eq!(dw, golden.dw, "{variant:?}");
                    same += 1;
                } else {
                    other += 1;
                }
            }
            assert!(same > 0 && other > 3, "{same} and {other} of {hidden}");
        }
    }

    #[test]
    fn sums_far_apart_are_counted() {
        let a = [1.0f32, -2.0, 0.0, 1e-9];
        assert_eq!(far(&a, &a), 0);
        assert_eq!(far(&a, &[1.0 + 2.0 * f32::EPSILON, -2.0, 0.0, 2e-9]), 0);
        assert_eq!(far(&a, &[1.0 + 4.0 * f32::EPSILON, -2.0, 1e-6, 1e-9]), 2);
        assert_eq!(far(&a, &[1.0, f32::NAN, 0.0, 1e-9]), 1);
    }
}
