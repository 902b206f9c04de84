//! `cases`: drawn calls of any shape, types, strides, alignment, options and data, one a seed.

use super::device::{self, Buffer, DeviceArg, Planning};
use super::error::{CliError, Result};
use super::output::{Output, thousands};
use super::progress::Progress;
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::cases::{Case, Device, Memory};
use serde::Serialize;

/// Arguments of `cases`.
#[derive(clap::Args)]
pub struct Args {
    /// Where to run. `auto`: the GPU if there is one, else the simulator for small matrices, else the
    /// CPU.
    #[arg(long, value_enum, default_value = "auto")]
    device: DeviceArg,
    /// How many cases.
    #[arg(long, default_value_t = 100)]
    count: u64,
    /// Seed of the first; the others follow. A seed and a size name the same case everywhere.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Elements of a matrix, at most about as many.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    elements: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Failures after which no more are looked for.
const MOST_FAILURES: usize = 20;

#[derive(Serialize)]
struct Report {
    device: String,
    seed: u64,
    elements: u64,
    cases: u64,
    ok: bool,
    failures: Vec<Failure>,
}

#[derive(Serialize)]
struct Failure {
    seed: u64,
    case: String,
    what: Vec<String>,
}

/// Runs the cases; whether all is well.
pub fn run(args: &Args, out: &mut Output) -> Result<bool> {
    let progress = Progress::new();
    let (device, fallback) =
        device::open(args.device, &Planning::default(), args.elements, &progress)?;
    let device = Reached(&*device);
    if !args.json {
        out.line(format!("device  {}", device.0.name()))?;
        if let Some(why) = fallback {
            out.line(format!("        {why}"))?;
        }
    }
    let mut failures = Vec::new();
    let mut cases = 0;
    progress.expect(args.count);
    progress.stage("cases");
    let elements = usize::try_from(args.elements).unwrap_or(usize::MAX);
    for seed in (0..args.count).map(|i| args.seed.wrapping_add(i)) {
        let case = Case::from_seed(seed, elements);
        let what = case.run(&device)?;
        cases += 1;
        progress.advance(1);
        if !what.is_empty() {
            let case = case.to_string();
            failures.push(Failure { seed, case, what });
        }
        if failures.len() == MOST_FAILURES {
            break;
        }
    }
    progress.finish();
    let report = Report {
        device: device.0.name(),
        seed: args.seed,
        elements: args.elements,
        cases,
        ok: failures.is_empty(),
        failures,
    };
    out.line(if args.json {
        serde_json::to_string_pretty(&report).map_err(|error| CliError::Stdout(error.into()))?
    } else {
        table(&report)
    })?;
    Ok(report.ok)
}

fn table(report: &Report) -> String {
    let mut text = format!(
        "{} cases from seed {} on, matrices of up to {} elements\n",
        thousands(report.cases),
        report.seed,
        thousands(report.elements),
    );
    for Failure { case, what, .. } in &report.failures {
        text += &format!("\n{case}\n");
        for what in what {
            text += &format!("    {what}\n");
        }
    }
    text + if report.ok { "OK" } else { "FAILED" }
}

/// A device of the program, as cases want it.
struct Reached<'a>(&'a dyn device::Device);

struct Bytes(Box<dyn Buffer>, usize);

impl Device for Reached<'_> {
    type Error = CliError;
    type Memory = Bytes;

    fn backend(&self) -> &dyn Backend {
        self.0.backend()
    }

    fn alloc(&self, name: &'static str, bytes: usize) -> Result<Bytes> {
        Ok(Bytes(self.0.alloc(name, bytes)?, bytes))
    }

    fn synchronize(&self) -> Result<()> {
        self.0.synchronize()
    }
}

impl Memory<CliError> for Bytes {
    fn address(&self) -> u64 {
        self.0.address()
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.write(bytes)
    }

    fn read(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.1];
        self.0.read(&mut bytes)?;
        Ok(bytes)
    }
}
