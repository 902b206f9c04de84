//! `cases`: drawn calls of any shape, types, strides, alignment, options and data, one a seed.

use super::device::{self, Buffer, DeviceArg, Planning};
use super::error::{CliError, Result};
use super::output::{Output, thousands};
use super::progress::Progress;
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::cases::{Case, Device, Memory, Step};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

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
    /// Seeds from a file instead: one a line, perhaps with a size behind it; `#` starts a comment.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["count", "seed"])]
    seeds: Option<PathBuf>,
    /// Instead, a few cases whose rows are more than 2³¹ elements apart, on a GPU with 100 GiB.
    #[arg(long, conflicts_with_all = ["count", "seed", "seeds", "elements"])]
    far: bool,
    /// Launch by way of CUDA graphs. Needs `--device cuda`.
    #[arg(long)]
    graph_launches: bool,
    /// Elements of a matrix, at most about as many.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    elements: u64,
    /// Begin no case after so many seconds.
    #[arg(long, value_name = "SECONDS")]
    limit: Option<u64>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Bytes of memory that is made NaN before a case writes to it.
const LARGE_BYTES: usize = 1 << 31;
/// Failures after which no more are looked for.
const MOST_FAILURES: usize = 20;

#[derive(Serialize)]
struct Report {
    device: String,
    /// The first case.
    seed: u64,
    /// Elements of a matrix, at most about as many.
    elements: u64,
    cases: u64,
    ok: bool,
    /// How many of the cases are of a kind.
    kinds: BTreeMap<&'static str, u64>,
    seconds: f64,
    failures: Vec<Failure>,
}

#[derive(Serialize)]
struct Failure {
    seed: u64,
    elements: u64,
    case: String,
    what: Vec<String>,
}

/// Runs the cases; whether all is well.
pub fn run(args: &Args, out: &mut Output) -> Result<bool> {
    let progress = Progress::new();
    let (count, cases) = drawn(args)?;
    let planning = Planning {
        graph_launches: args.graph_launches,
        ..Planning::default()
    };
    let (device, fallback) = device::open(args.device, &planning, args.elements, &progress)?;
    let only_gpu = [
        (args.far, "--far", "host memory may not be as large"),
        (
            args.graph_launches,
            "--graph-launches",
            "others have no graphs",
        ),
    ];
    for (given, option, why) in only_gpu {
        if given && device.kind() != "cuda" {
            return Err(CliError::Usage {
                option,
                reason: format!("{why}: accepted is --device cuda"),
            });
        }
    }
    let device = Reached(&*device);
    if !args.json {
        out.line(format!("device  {}", device.0.name()))?;
        if let Some(why) = fallback {
            out.line(format!("        {why}"))?;
        }
    }
    let begin = Instant::now();
    let late = || {
        args.limit
            .is_some_and(|limit| begin.elapsed().as_secs() >= limit)
    };
    let mut report = Report {
        device: device.0.name(),
        seed: args.seed,
        elements: args.elements,
        cases: 0,
        ok: true,
        kinds: BTreeMap::new(),
        seconds: 0.0,
        failures: Vec::new(),
    };
    progress.expect(count);
    progress.stage("cases");
    for (case, elements) in cases {
        let seed = case.seed;
        if late() || report.failures.len() == MOST_FAILURES {
            break;
        }
        if report.cases == 0 {
            (report.seed, report.elements) = (seed, elements);
        }
        let found = case.run(&device);
        report.cases += 1;
        progress.advance(1);
        for kind in kinds(&case) {
            *report.kinds.entry(kind).or_default() += 1;
        }
        let broken = found.is_err();
        let what = found.unwrap_or_else(|error| vec![error.to_string()]);
        if !what.is_empty() {
            report.failures.push(Failure {
                seed,
                elements,
                case: case.to_string(),
                what,
            });
        }
        if broken {
            // Other calls of a device that failed say nothing.
            break;
        }
    }
    progress.finish();
    report.ok = report.failures.is_empty();
    report.seconds = (begin.elapsed().as_secs_f64() * 100.0).round() / 100.0;
    out.line(if args.json {
        serde_json::to_string_pretty(&report).map_err(|error| CliError::Stdout(error.into()))?
    } else {
        table(&report)
    })?;
    Ok(report.ok)
}

/// Cases, with the size that names them beside their seed.
type Cases = Box<dyn Iterator<Item = (Case, u64)>>;

/// How many cases, and which.
fn drawn(args: &Args) -> Result<(u64, Cases)> {
    let case = |(seed, elements): (u64, u64)| {
        let case = Case::from_seed(seed, usize::try_from(elements).unwrap_or(usize::MAX));
        (case, elements)
    };
    if args.far {
        let cases = Case::far();
        let count = cases.len() as u64;
        return Ok((count, Box::new(cases.into_iter().map(|case| (case, 0)))));
    }
    if let Some(path) = &args.seeds {
        let seeds = read_seeds(path, args.elements)?;
        return Ok((seeds.len() as u64, Box::new(seeds.into_iter().map(case))));
    }
    let (first, elements) = (args.seed, args.elements);
    let seeds = (0..args.count).map(move |i| (first.wrapping_add(i), elements));
    Ok((args.count, Box::new(seeds.map(case))))
}

/// Seeds and sizes of a file.
fn read_seeds(path: &Path, elements: u64) -> Result<Vec<(u64, u64)>> {
    let text = std::fs::read_to_string(path).map_err(|source| CliError::Read {
        path: path.to_owned(),
        source,
    })?;
    let mut seeds = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        let read = |word: &str| word.parse::<u64>().ok();
        let name = match words[..] {
            [] => continue,
            [seed] => read(seed).map(|seed| (seed, elements)),
            [seed, size] => read(seed).zip(read(size).filter(|&size| size > 0)),
            _ => None,
        };
        seeds.push(name.ok_or_else(|| CliError::Usage {
            option: "--seeds",
            reason: format!(
                "{}, line {}: {line:?}: accepted are a seed, and a size of 1 or more",
                path.display(),
                number + 1,
            ),
        })?);
    }
    Ok(seeds)
}

/// What a case is an example of.
fn kinds(case: &Case) -> impl Iterator<Item = &'static str> {
    let (in_place, layouts) = case.places();
    let matrices = [
        layouts.x,
        layouts.residual,
        layouts.h,
        layouts.y,
        layouts.dy,
        layouts.dh,
        layouts.dx,
    ];
    let any = |what: fn(&Step) -> bool| matrices.iter().any(|layout| what(&layout.step));
    let dw = case.wants_dw();
    let kinds = [
        (case.rows == 0, "no rows"),
        (case.residual, "residual"),
        (case.weight.is_none(), "no weight"),
        (case.weight_offset != 0.0, "weight offset"),
        (
            any(|step| matches!(step, Step::Grouped { .. })),
            "rows in groups",
        ),
        (any(|step| matches!(step, Step::Same)), "a row repeated"),
        (
            any(|step| matches!(step, Step::Reversed(_))),
            "rows backwards",
        ),
        (in_place.y.is_some(), "y in place"),
        (in_place.h.is_some(), "h in place"),
        (in_place.dx.is_some(), "dx in place"),
        (!case.keeps_rstd, "rstd recomputed"),
        (!dw, "dx alone"),
        (!case.gradients.0, "dw alone"),
        (dw && case.dw.accumulates(), "dw added to"),
        (dw && case.dw.has_bf16(), "dw in BF16"),
        (case.is_bounded(), "held to FP64 too"),
    ];
    kinds
        .into_iter()
        .filter_map(|(is, kind)| is.then_some(kind))
}

fn table(report: &Report) -> String {
    let cases = thousands(report.cases);
    let mut text = match report.elements {
        0 => format!("{cases} cases with rows more than 2^31 elements apart"),
        elements => format!(
            "{cases} cases from seed {} on, matrices of up to {} elements",
            report.seed,
            thousands(elements),
        ),
    };
    text += &format!(", {:.0} s\n", report.seconds);
    let kinds = report.kinds.iter();
    let kinds: Vec<String> = kinds
        .map(|(kind, cases)| format!("{kind} {}", thousands(*cases)))
        .collect();
    text += &format!("{}\n", kinds.join(", "));
    for failure in &report.failures {
        let Failure { seed, elements, .. } = failure;
        text += &format!("\n{}\n", failure.case);
        text += &match elements {
            0 => "    cake-rmsnorm cases --far\n".to_owned(),
            _ => format!("    cake-rmsnorm cases --seed {seed} --elements {elements} --count 1\n"),
        };
        for what in &failure.what {
            text += &format!("    {what}\n");
        }
    }
    text + if report.ok { "OK" } else { "FAILED" }
}

/// A device of the program, as cases want it.
pub(super) struct Reached<'a>(pub &'a dyn device::Device);

pub(super) struct Bytes(Box<dyn Buffer>);

impl Device for Reached<'_> {
    type Error = CliError;
    type Memory = Bytes;

    fn backend(&self) -> &dyn Backend {
        self.0.backend()
    }

    fn alloc(&self, name: &'static str, bytes: usize) -> Result<Bytes> {
        let mut buffer = self.0.alloc(name, bytes)?;
        if bytes > LARGE_BYTES {
            // Cases look at the ends of large gaps alone; the rest is not to be read either.
            buffer.poison(0xff)?;
        }
        Ok(Bytes(buffer))
    }

    fn synchronize(&self) -> Result<()> {
        self.0.synchronize()
    }
}

impl Memory<CliError> for Bytes {
    fn address(&self) -> u64 {
        self.0.address()
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        self.0.write_at(at, bytes)
    }

    fn read(&self, at: usize, bytes: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; bytes];
        self.0.read_at(at, &mut bytes)?;
        Ok(bytes)
    }
}
