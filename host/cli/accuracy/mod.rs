//! `accuracy`: dw of very many rows against exact sums.

mod case;
mod rows;

use super::device::{self, DeviceArg, Planning};
use super::error::{CliError, Result};
use super::output::{Output, thousands};
use super::progress::Progress;
use super::{DtypeArg, dtype_name};
use cake_rmsnorm::inputs::pool::Terms;
use cake_rmsnorm::{MAX_ROWS, RmsNorm};
use case::{Case, Outcome};
use clap::ValueEnum;
use std::path::PathBuf;

/// Arguments of `accuracy`.
#[derive(clap::Args)]
pub struct Args {
    /// Where to run. `auto`: the GPU if there is one, else the CPU.
    #[arg(long, value_enum, default_value = "auto")]
    device: DeviceArg,
    /// What the terms of dw are like.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "normal,heavy,cancelling,constant"
    )]
    inputs: Vec<InputsArg>,
    /// Seeds, from 0, of each case.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Rows (T) [default: 65537,1048576 on a GPU, 8200 elsewhere].
    #[arg(long, value_delimiter = ',')]
    rows: Vec<u64>,
    /// Elements of a row (H).
    #[arg(long, value_delimiter = ',', default_value = "256,1536,4096")]
    hidden: Vec<u64>,
    /// The weight's element type.
    #[arg(long, value_enum, default_value = "f32")]
    weight: DtypeArg,
    /// Compare y, rstd and dx of the first seed too, every row, with the golden bits.
    #[arg(long)]
    every_row: bool,
    /// Plan for this many multiprocessors. Changes no bit of any output.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    sm_count: Option<u32>,
    /// Routes to plan by, of `cake-rmsnorm tune`. They change no bit of any output.
    #[arg(long, value_name = "FILE.json")]
    routes: Option<PathBuf>,
    /// Print one JSON object a line instead of the table.
    #[arg(long)]
    json: bool,
}

/// [`Terms`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum InputsArg {
    /// x and dy bell-shaped.
    Normal,
    /// Large channels in x, heavy tails in dy, rows of many sizes.
    Heavy,
    /// Each g has a −g far off, with small differences.
    Cancelling,
    /// All rows are the same.
    Constant,
}

impl InputsArg {
    fn name(self) -> &'static str {
        match self {
            InputsArg::Normal => "normal",
            InputsArg::Heavy => "heavy",
            InputsArg::Cancelling => "cancelling",
            InputsArg::Constant => "constant",
        }
    }
}

impl From<InputsArg> for Terms {
    fn from(inputs: InputsArg) -> Terms {
        match inputs {
            InputsArg::Normal => Terms::Normal,
            InputsArg::Heavy => Terms::Heavy,
            InputsArg::Cancelling => Terms::Cancelling,
            InputsArg::Constant => Terms::Constant,
        }
    }
}

/// Runs every case; whether all is well.
pub fn run(args: &Args, out: &mut Output) -> Result<bool> {
    let progress = Progress::new();
    let ok = accuracy(args, out, &progress);
    progress.finish();
    ok
}

fn accuracy(args: &Args, out: &mut Output, progress: &Progress) -> Result<bool> {
    let operators = args
        .hidden
        .iter()
        .map(|&hidden| RmsNorm::new(hidden, args.weight.into(), 1e-6))
        .collect::<cake_rmsnorm::Result<Vec<_>>>()?;
    for &rows in &args.rows {
        if rows == 0 {
            return Err(CliError::Usage {
                option: "--rows",
                reason: "dw of 0 rows is 0: accepted are 1 and more".to_owned(),
            });
        }
        if rows > MAX_ROWS {
            return Err(cake_rmsnorm::Error::TooManyRows { rows }.into());
        }
    }
    let planning = Planning::new(args.sm_count, args.routes.as_deref())?;
    // Too large to be simulated unasked.
    let (device, fallback) = device::open(args.device, &planning, u64::MAX, progress)?;
    let rows = match (&args.rows[..], device.kind()) {
        ([], "cuda") => vec![65_537, 1 << 20],
        ([], _) => vec![8200],
        (rows, _) => rows.to_vec(),
    };
    if !args.json {
        out.line(format!("device  {}", device.name()))?;
        if let Some(why) = fallback {
            out.line(format!("        {why}"))?;
        }
        out.line(format!(
            "dw      against exact sums at the device's rstd, {} seeds a case, weight {}\n",
            args.seeds,
            dtype_name(args.weight.into()),
        ))?;
        out.line(heading())?;
    }
    let elements = rows.iter().sum::<u64>() * args.hidden.iter().sum::<u64>();
    progress.expect(elements * args.seeds * args.inputs.len() as u64);
    let mut ok = true;
    for op in operators {
        for &rows in &rows {
            for &inputs in &args.inputs {
                let case = Case {
                    op,
                    rows,
                    inputs,
                    every_row: args.every_row,
                };
                let outcome = case.run(&*device, args.seeds, progress)?;
                ok &= outcome.ok;
                progress.hidden(|| {
                    out.line(if args.json {
                        outcome.json()?
                    } else {
                        outcome.line()
                    })
                })?;
            }
        }
    }
    progress.finish();
    if !args.json {
        out.line(if ok { "\nOK" } else { "\nFAILED" })?;
    }
    Ok(ok)
}

fn heading() -> String {
    format!(
        "{:<10} {:>6} {:>9} {:>9} {:>11} {:>9} {:>9} {:>9}",
        "inputs", "H", "T", "max ulp", "rounded", "bound", "budget", "repeated"
    )
}

impl Outcome {
    /// A line of the table, and a line for each failure.
    fn line(&self) -> String {
        let mut text = format!(
            "{:<10} {:>6} {:>9} {:>9.3} {:>9.4} % {:>9.4} {:>9.1e} {:>9}",
            self.inputs,
            self.hidden,
            thousands(self.rows),
            self.max_ulp,
            // 100 is for all.
            (self.correctly_rounded * 1e6).floor() / 1e4,
            self.bound_share,
            self.worst_budget,
            if self.repeat_bits {
                "equal"
            } else {
                "DIFFERENT"
            },
        );
        if self.equal_elements > 0 {
            let elements = thousands(self.equal_elements);
            text += &format!("\n  {elements} elements of y and dx have the golden bits");
        }
        for failure in &self.failures {
            text += &format!("\n  {failure}");
        }
        text
    }
}
