//! `tune`: measures every choice of programs on this GPU, and writes routes.

mod measure;
mod points;

use super::DtypeArg;
use super::bench::timer;
use super::device::{DeviceArg, Planning};
use super::error::{CliError, Result};
use super::output::{Output, thousands};
use super::progress::Progress;
use cake_rmsnorm::{MAX_ROWS, RmsNorm};
use measure::Measure;
use points::{Direction, Measured, Point, Points};
use std::path::PathBuf;

/// Arguments of `tune`.
#[derive(clap::Args)]
pub struct Args {
    /// What to measure on: a GPU.
    #[arg(long, value_enum, default_value = "cuda")]
    device: DeviceArg,
    /// Elements of a row (H), multiples of 8. The routes serve these alone.
    #[arg(long, value_delimiter = ',', default_value = "256,2048,4096,6144")]
    hidden: Vec<u64>,
    /// Rows (T). Between two of them the nearer one's route serves (by their ratio).
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,32,64,128,256,512,1024,2048,4096,16384,65536"
    )]
    rows: Vec<u64>,
    /// The weight's element type.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "f32,bf16")]
    weight: Vec<DtypeArg>,
    /// The residual form, instead of the plain one.
    #[arg(long)]
    residual: bool,
    /// The file of routes to write. Beside it, with .points.jsonl at the end of its name, every
    /// point is kept as soon as it is measured: the same command goes on where it was stopped.
    #[arg(long, value_name = "FILE.json")]
    out: PathBuf,
}

/// Runs the measurements.
pub fn run(args: &Args, out: &mut Output) -> Result<()> {
    let progress = Progress::new();
    let done = tune(args, out, &progress);
    progress.finish();
    done
}

fn tune(args: &Args, out: &mut Output, progress: &Progress) -> Result<()> {
    let operators = operators(args)?;
    if matches!(args.device, DeviceArg::Cpu | DeviceArg::Sim) {
        return Err(CliError::Usage {
            option: "--device",
            reason: "programs are chosen for a GPU: accepted is cuda".to_owned(),
        });
    }
    let (timer, _) = timer::open(DeviceArg::Cuda, &Planning::default())?;
    let device = timer.device();
    out.line(format!("device  {}", device.name()))?;
    device.load_every_kernel()?;
    let mut points = Points::open(&args.out, &device.name())?;
    let mut rows = args.rows.clone();
    rows.sort_unstable();
    rows.dedup();
    progress.expect((operators.len() * rows.len() * Direction::BOTH.len()) as u64);
    for op in operators {
        let point = |rows, direction| Point::new(&op, rows, args.residual, direction);
        // The largest first: smaller ones use a part of the same memory.
        let mut measure: Option<Measure> = None;
        for &t in rows.iter().rev() {
            for direction in Direction::BOTH {
                let point = point(t, direction);
                if points.has(&point) {
                    progress.advance(1);
                    continue;
                }
                progress.stage(format!("{direction:?} H {}, T {t}", op.hidden()));
                let measure = match &mut measure {
                    Some(measure) => measure,
                    none => none.insert(Measure::new(&*timer, op, t, args.residual)?),
                };
                let measured = measure.point(point)?;
                progress.hidden(|| out.line(line(&measured)))?;
                points.add(measured)?;
                progress.advance(1);
            }
        }
    }
    progress.finish();
    points.write_routes(&args.out, &device.name())?;
    out.line(format!("\nwritten: {}", args.out.display()))?;
    out.line(
        "no route changes a bit: `cake-rmsnorm check --routes FILE` compares them all the same",
    )
}

fn operators(args: &Args) -> Result<Vec<RmsNorm>> {
    for &rows in &args.rows {
        if rows == 0 || rows > MAX_ROWS {
            return Err(CliError::Usage {
                option: "--rows",
                reason: format!("{rows} rows: accepted are 1 to 2^31 - 1"),
            });
        }
    }
    let mut operators = Vec::new();
    for &weight in &args.weight {
        for &hidden in &args.hidden {
            operators.push(RmsNorm::new(hidden, weight.into(), 1e-6)?);
        }
    }
    Ok(operators)
}

fn line(measured: &Measured) -> String {
    let Point {
        direction,
        hidden,
        rows,
        ref weight,
        ..
    } = measured.point;
    format!(
        "{direction:?} H {hidden} T {:>7} {weight}: {:.2} us, built-in {:.2} us, {} tried, {}",
        thousands(rows),
        measured.us,
        measured.built_in_us,
        measured.tried,
        measured.route.program,
    )
}
