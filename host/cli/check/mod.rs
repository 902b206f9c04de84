//! `check`: a forward and three backwards, every element against FP64, every bit against the
//! golden implementation.

pub mod execute;
pub mod gated;
mod report;
mod source;
mod verify;

use super::device::{self, DeviceArg, Planning};
use super::error::Result;
use super::output::Output;
use super::progress::Progress;
use super::{DtypeArg, tensors};
use cake_rmsnorm::{Dtype, Element};
use execute::Execution;
use half::{bf16, f16};
use report::{Report, Run};
use source::Source;
use std::path::PathBuf;
use verify::{Repeats, Results};

/// Arguments of `check`.
#[derive(clap::Args)]
pub struct Args {
    /// Where to run. `auto`: the GPU if there is one, else the simulator for small inputs, else
    /// the CPU.
    #[arg(long, value_enum, default_value = "auto")]
    device: DeviceArg,
    /// Inputs from a safetensors file: x, dy BF16 [rows, hidden], w BF16 or F32 [hidden], and
    /// perhaps residual, dh as x; metadata eps.
    #[arg(long, value_name = "FILE.safetensors", conflicts_with_all = ["rows", "hidden", "seed"])]
    input: Option<PathBuf>,
    /// Rows (T) of seeded inputs [default: 1024].
    #[arg(long)]
    rows: Option<u64>,
    /// Elements of a row (H) of seeded inputs [default: 4096].
    #[arg(long)]
    hidden: Option<u64>,
    /// Element type of the matrices of seeded inputs [default: bf16].
    #[arg(long, value_enum, conflicts_with = "input")]
    dtype: Option<DtypeArg>,
    /// The weight's element type [default: f32, or as in the file].
    #[arg(long, value_enum)]
    weight: Option<DtypeArg>,
    /// What is added to every element of the weight: 1 for zero-centred weights.
    #[arg(
        long,
        value_name = "OFFSET",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    weight_offset: f32,
    /// eps [default: of the file, else 1e-6].
    #[arg(long, allow_negative_numbers = true)]
    eps: Option<f32>,
    /// Seed of seeded inputs [default: 0].
    #[arg(long)]
    seed: Option<u64>,
    /// The residual form: h = x + residual is normalised, dh is added to dx.
    #[arg(long)]
    residual: bool,
    /// The gated form: --rows counts tokens, and --hidden is 128 where it is not given.
    #[arg(long, value_enum, conflicts_with_all = ["input", "residual", "output"])]
    gate: Option<gated::GateArg>,
    /// Heads of a token, in the gated form.
    #[arg(long, default_value = "1", requires = "gate")]
    heads: u64,
    /// Groups that a row is cut into, in the gated form.
    #[arg(long, default_value = "1", requires = "gate")]
    groups: u64,
    /// Plan for this many multiprocessors. Changes no bit of any output.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    sm_count: Option<u32>,
    /// Routes to plan by, of `cake-rmsnorm tune`. They change no bit of any output.
    #[arg(long, value_name = "FILE.json")]
    routes: Option<PathBuf>,
    /// Write y, rstd, dx, dw (and h of the residual form) to a safetensors file.
    #[arg(long, value_name = "FILE.safetensors")]
    output: Option<PathBuf>,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    json: bool,
}

/// What outputs and workspace hold before each backward: NaN, a huge number, a small one.
const POISONS: [u8; 3] = [0xff, 0x7f, 0xa5];

/// Runs the check; whether all is well.
pub fn run(args: &Args, out: &mut Output) -> Result<bool> {
    let progress = Progress::new();
    let ok = check(args, out, &progress);
    progress.finish();
    ok
}

fn check(args: &Args, out: &mut Output, progress: &Progress) -> Result<bool> {
    if let Some(gate) = args.gate {
        return gated::run(args, gate, out, progress);
    }
    let source = Source::choose(args)?;
    match source.input {
        Dtype::Bf16 => check_as::<bf16>(source, args, out, progress),
        Dtype::F16 => check_as::<f16>(source, args, out, progress),
        Dtype::F32 => check_as::<f32>(source, args, out, progress),
    }
}

/// The check of matrices of `E`.
fn check_as<E: Element>(
    source: Source,
    args: &Args,
    out: &mut Output,
    progress: &Progress,
) -> Result<bool> {
    let op = source.operator(args.weight_offset)?;
    let elements = source.rows.saturating_mul(source.hidden);
    let planning = Planning::new(args.sm_count, args.routes.as_deref())?;
    let (device, fallback) = device::open(args.device, &planning, elements, progress)?;
    // Refuses a shape before memory is allocated for it.
    let properties = device.backend().properties();
    op.forward_plan(source.rows, source.residual, properties)?;
    op.backward_plan(source.rows, source.residual, properties)?;

    let run = Run::new(&source, &*device, fallback, args);
    let ordinary = source.ordinary;
    if !args.json {
        out.line(run.heading())?;
    }

    // Made, run forward, compared; thrice backward, compared.
    progress.expect(elements.saturating_mul(8));
    progress.stage("making inputs");
    let inputs = source.inputs::<E>()?;
    progress.advance(elements);

    let mut execution = Execution::new(&*device, op, &inputs)?;
    progress.stage("forward");
    let forward = execution.forward(POISONS[0])?;
    progress.advance(elements);
    progress.stage("backward");
    let backward = execution.backward(POISONS[0])?;
    progress.advance(elements);
    let mut repeats = Repeats::new();
    for poison in &POISONS[1..] {
        let again = execution.backward(*poison)?;
        repeats.add(&backward, &again);
        progress.advance(elements);
    }
    let overrun = execution.overrun();
    drop(execution);

    let results = Results {
        op,
        inputs: &inputs,
        forward: &forward,
        backward: &backward,
    };
    let verdict = results.verify(progress)?;
    let report = Report::new(run, verdict, repeats, overrun, ordinary);
    if let Some(path) = &args.output {
        tensors::write(
            path,
            inputs.rows,
            &forward,
            &backward,
            op.eps(),
            device.kind(),
        )?;
    }
    progress.finish();
    out.line(if args.json {
        report.json()?
    } else {
        report.table()
    })?;
    Ok(report.ok())
}

#[cfg(test)]
mod tests;
