//! `bench`: times of the operators beside the time of a copy.

pub mod case;
mod plot;
mod record;
pub mod timer;

use super::DtypeArg;
use super::device::{Buffer, DeviceArg, Planning};
use super::error::{CliError, Result};
use super::operands::Operands;
use super::output::{Output, columns, thousands};
use super::progress::Progress;
use super::weight_type;
use cake_rmsnorm::inputs::Spec;
use cake_rmsnorm::{Dtype, MAX_ROWS, RmsNorm};
use case::{Case, Op, Repeats, Summary};
use record::{Ceiling, Outcome, Run};
use std::collections::BTreeMap;
use std::path::PathBuf;
use timer::{Cache, Copy, Timer};

/// Arguments of `bench`.
#[derive(clap::Args)]
pub struct Args {
    /// What to time. `auto`: the GPU if there is one, else the golden implementation on the CPU.
    #[arg(long, value_enum, default_value = "auto")]
    device: DeviceArg,
    /// Elements of a row (H); 256 stands for per-head norms.
    #[arg(long, value_delimiter = ',', default_value = "256,2048,4096,6144")]
    hidden: Vec<u64>,
    /// Rows (T) [default: 1,32,128,256,1024,4096,16384,65536; on the CPU 1,32,256,1024].
    #[arg(long, value_delimiter = ',')]
    rows: Vec<u64>,
    /// Operations: forward, backward, or a checkpointed step (forward twice, backward).
    #[arg(long, value_enum, value_delimiter = ',', default_value = "fwd,bwd")]
    op: Vec<Op>,
    /// The weight's element type.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "f32")]
    weight: Vec<DtypeArg>,
    /// The residual form: h = x + residual is normalised, dh is added to dx.
    #[arg(long)]
    residual: bool,
    /// Routes to plan by, of `cake-rmsnorm tune`.
    #[arg(long, value_name = "FILE.json")]
    routes: Option<PathBuf>,
    /// Half as many samples.
    #[arg(long)]
    quick: bool,
    /// Write every figure to a file, in the format of docs/measurements.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the fraction of the copy's speed and the bandwidth against T.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Rows that are made; more are copies of them. No kernel's time depends on the values.
const MADE_ROWS: u64 = 4096;

/// Rows where none are asked for.
const GPU_ROWS: [u64; 8] = [1, 32, 128, 256, 1024, 4096, 16_384, 65_536];
const CPU_ROWS: [u64; 4] = [1, 32, 256, 1024];

/// Runs the benchmark.
pub fn run(args: &Args, out: &mut Output) -> Result<()> {
    let progress = Progress::new();
    let done = bench(args, out, &progress);
    progress.finish();
    done
}

fn bench(args: &Args, out: &mut Output, progress: &Progress) -> Result<()> {
    let operators = operators(args)?;
    let planning = Planning::new(None, args.routes.as_deref())?;
    let (timer, fallback) = timer::open(args.device, &planning)?;
    let mut rows = match (&args.rows[..], timer.device().kind()) {
        ([], "cpu") => CPU_ROWS.to_vec(),
        ([], _) => GPU_ROWS.to_vec(),
        (rows, _) => rows.to_vec(),
    };
    rows.sort_unstable();
    rows.dedup();
    out.line(format!("device  {}", timer.device().name()))?;
    if let Some(why) = fallback {
        out.line(format!("        {why}"))?;
    }

    progress.stage("timing nothing");
    let mut bench = Bench::new(&*timer, args, progress)?;
    bench.save()?;
    progress.expect((operators.len() * rows.len() * args.op.len()) as u64);
    for op in operators {
        bench.operator(op, &rows)?;
    }
    progress.finish();
    table(&bench.run, &*timer, out)?;
    if let Some(path) = &args.plot {
        plot::write(path, &bench.run)?;
    }
    Ok(())
}

/// The operators of every width and weight, refused before anything is opened.
fn operators(args: &Args) -> Result<Vec<RmsNorm>> {
    let mut operators = Vec::new();
    for &weight in &args.weight {
        for &hidden in &args.hidden {
            operators.push(RmsNorm::new(hidden, weight.into(), 1e-6)?);
        }
    }
    for &rows in &args.rows {
        if rows == 0 {
            return Err(CliError::Usage {
                option: "--rows",
                reason: "nothing is launched for 0 rows: accepted are 1 and more".to_owned(),
            });
        }
        if rows > MAX_ROWS {
            return Err(cake_rmsnorm::Error::TooManyRows { rows }.into());
        }
    }
    Ok(operators)
}

/// A benchmark under way.
struct Bench<'a> {
    timer: &'a dyn Timer,
    args: &'a Args,
    progress: &'a Progress,
    run: Run,
    ceilings: BTreeMap<u64, Ceiling>,
}

impl<'a> Bench<'a> {
    fn new(timer: &'a dyn Timer, args: &'a Args, progress: &'a Progress) -> Result<Self> {
        let word = CopyBuffers::new(timer, 16)?;
        let repeats = Repeats::for_bytes(0, args.quick);
        let nothing = timer.samples(Cache::Cold, repeats, &mut || Ok(()))?;
        let one = word.time(timer, Copy::Kernel, 16, repeats)?;
        let intervals = [
            ("no_kernel", Summary::of(nothing)),
            ("one_element_kernel", one),
        ];
        Ok(Self {
            timer,
            args,
            progress,
            run: Run::new(timer, intervals),
            ceilings: BTreeMap::new(),
        })
    }

    /// Times every operation of an operator on every number of rows, the largest first: smaller
    /// ones use a part of the same memory.
    fn operator(&mut self, op: RmsNorm, rows: &[u64]) -> Result<()> {
        let mut operands = None;
        for &t in rows.iter().rev() {
            if operands.is_none() {
                self.progress
                    .stage(format!("making inputs: H {}, T {t}", op.hidden()));
                match self.operands(op, rows, t) {
                    Ok(made) => operands = Some(made),
                    Err(error) if error.is_out_of_memory() => {
                        for &operation in &self.args.op {
                            let case = self.case(operation, &op, t);
                            self.run.failed(case, &error);
                            self.progress.advance(1);
                        }
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            if let Some(operands) = &operands {
                for &operation in &self.args.op {
                    let case = self.case(operation, &op, t);
                    self.time(case, operands)?;
                    self.progress.advance(1);
                }
                self.save()?;
            }
        }
        Ok(())
    }

    fn case(&self, operation: Op, op: &RmsNorm, rows: u64) -> Case {
        Case {
            op: operation,
            rows,
            hidden: op.hidden(),
            weight: weight_type(op),
            residual: self.args.residual,
        }
    }

    /// Memory for `t` rows and every smaller number.
    fn operands(&self, op: RmsNorm, rows: &[u64], t: u64) -> Result<Operands> {
        let device = self.timer.device();
        let mut workspace = 0;
        for &rows in rows.iter().filter(|&&rows| rows <= t) {
            let properties = device.backend().properties();
            let routes = device.backend().routes();
            let plan = op.backward_plan_by(routes, rows, self.args.residual, properties)?;
            workspace = plan.workspace_bytes.max(workspace);
        }
        let mut operands = Operands::new(device, op, t, self.args.residual, workspace)?;
        fill(&mut operands, op, t, self.args.residual)?;
        // Backwards find what the forward leaves.
        operands.forward(device.backend(), t)?;
        device.synchronize()?;
        Ok(operands)
    }

    fn time(&mut self, case: Case, operands: &Operands) -> Result<()> {
        let Case {
            op, rows, hidden, ..
        } = case;
        self.progress
            .stage(format!("{} H {hidden}, T {rows}", op.name()));
        let repeats = Repeats::for_bytes(case.bytes(), self.args.quick);
        let ceiling = match self.ceiling(case.bytes()) {
            Ok(ceiling) => ceiling,
            Err(error) if error.is_out_of_memory() => {
                self.run.failed(case, &error);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let timer = self.timer;
        self.run.timed(case, ceiling, |cache| {
            let backend = timer.device().backend();
            let mut work = || {
                if op != Op::Bwd {
                    operands.forward(backend, rows)?;
                }
                if op == Op::Step {
                    operands.forward(backend, rows)?;
                }
                if op != Op::Fwd {
                    operands.backward(backend, rows)?;
                }
                Ok(())
            };
            let samples = timer.samples(cache, repeats, &mut work)?;
            Ok(Summary::of(samples))
        })
    }

    /// Copies of about `bytes` bytes, half read, half written; timed once for each size.
    fn ceiling(&mut self, bytes: u64) -> Result<Ceiling> {
        let half = (bytes / 32 * 16).max(16);
        if let Some(known) = self.ceilings.get(&half) {
            return Ok(*known);
        }
        let repeats = Repeats::for_bytes(bytes, self.args.quick);
        let buffers = CopyBuffers::new(self.timer, half)?;
        let ceiling = Ceiling::new(2 * half, |how| buffers.time(self.timer, how, half, repeats))?;
        self.ceilings.insert(half, ceiling);
        Ok(ceiling)
    }

    fn save(&self) -> Result<()> {
        match &self.args.json {
            Some(path) => self.run.write(path),
            None => Ok(()),
        }
    }
}

/// Makes inputs of at most [`MADE_ROWS`] rows and repeats them.
pub fn fill(operands: &mut Operands, op: RmsNorm, rows: u64, residual: bool) -> Result<()> {
    let made = rows.min(MADE_ROWS);
    let spec = Spec {
        rows: made as usize,
        hidden: op.hidden() as usize,
        weight: weight_type(&op),
        residual,
        seed: 0,
    };
    let inputs = spec.generate().map_err(|_| CliError::Memory {
        purpose: "inputs",
        bytes: made * op.hidden() * 2,
    })?;
    operands.x.fill(bytemuck::cast_slice(&inputs.x))?;
    operands.dy.fill(bytemuck::cast_slice(&inputs.dy))?;
    operands.w.write(inputs.w.as_bytes())?;
    let optional = [
        (&mut operands.residual, &inputs.residual),
        (&mut operands.dh, &inputs.dh),
    ];
    for (buffer, values) in optional {
        if let (Some(buffer), Some(values)) = (buffer, values) {
            buffer.fill(bytemuck::cast_slice(values))?;
        }
    }
    Ok(())
}

/// What a copy reads and writes.
struct CopyBuffers {
    from: Box<dyn Buffer>,
    to: Box<dyn Buffer>,
}

impl CopyBuffers {
    fn new(timer: &dyn Timer, bytes: u64) -> Result<Self> {
        let alloc = |purpose| -> Result<Box<dyn Buffer>> {
            let length = usize::try_from(bytes);
            let length = length.map_err(|_| CliError::Memory { purpose, bytes })?;
            let mut buffer = timer.device().alloc(purpose, length)?;
            buffer.fill(&[0x3c; 1 << 16])?;
            Ok(buffer)
        };
        Ok(Self {
            from: alloc("source of a copy")?,
            to: alloc("destination of a copy")?,
        })
    }

    fn time(&self, timer: &dyn Timer, how: Copy, bytes: u64, repeats: Repeats) -> Result<Summary> {
        let (to, from) = (self.to.address(), self.from.address());
        // SAFETY: two buffers of the device, of `bytes` bytes each and multiples of 16; `samples`
        // returns when the work is done.
        let mut copy = || unsafe { timer.copy(how, to, from, bytes) };
        Ok(Summary::of(timer.samples(
            Cache::Cold,
            repeats,
            &mut copy,
        )?))
    }
}

/// Everything that was timed, sorted.
fn table(run: &Run, timer: &dyn Timer, out: &mut Output) -> Result<()> {
    let mebibytes = timer.flush_bytes() >> 20;
    let intervals: BTreeMap<_, _> = run.intervals().collect();
    out.line(format!(
        "timer   {:.2} us around nothing, {:.2} us around a copy of 16 bytes (not subtracted)",
        intervals["no_kernel"], intervals["one_element_kernel"],
    ))?;
    out.line(format!(
        "cold    {mebibytes} MiB are read before every sample; medians, and the tenths below and \
         above\n"
    ))?;
    let header = [
        "op", "H", "T", "weight", "bytes", "cold us", "p10", "p90", "GB/s", "copy us", "of copy",
        "warm us",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    let mut outcomes: Vec<_> = run.results.iter().collect();
    outcomes.sort_by_key(|outcome| {
        let case = outcome.case();
        let weight = case.weight == Dtype::Bf16;
        (weight, case.hidden, case.op, case.rows)
    });
    rows.extend(outcomes.into_iter().map(cells));
    for line in columns(&rows) {
        out.line(line)?;
    }
    Ok(())
}

impl Outcome {
    fn case(&self) -> &Case {
        match self {
            Outcome::Timed(timed) => &timed.case,
            Outcome::Failed(failed) => &failed.case,
        }
    }
}

fn cells(outcome: &Outcome) -> Vec<String> {
    let case = outcome.case();
    let mut cells = vec![
        case.op.name().to_owned(),
        case.hidden.to_string(),
        case.rows.to_string(),
        super::dtype_name(case.weight).to_owned(),
        thousands(case.bytes()),
    ];
    match outcome {
        Outcome::Timed(timed) => cells.extend([
            format!("{:.2}", timed.cold.us),
            format!("{:.2}", timed.cold.us_p10),
            format!("{:.2}", timed.cold.us_p90),
            format!("{:.0}", timed.gbps),
            format!("{:.2}", timed.copy_us),
            format!("{:.1} %", 100.0 * timed.frac),
            format!("{:.2}", timed.warm.us),
        ]),
        Outcome::Failed(failed) => cells.push(format!("not timed: {}", failed.error)),
    }
    cells
}
