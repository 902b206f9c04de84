//! How long it takes to prepare operators, in processes of their own: cold, where the driver
//! compiles every kernel, and warm, where its cache has them.

use super::report::Report;
use crate::cli::error::{CliError, Result};
use crate::cli::output::Output;
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cuda::{Cuda, Device};
use cake_rmsnorm::plan::{self, Views};
use cake_rmsnorm::{Dtype, RmsNorm};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Milliseconds to prepare an operator, with nothing compiled before.
const COLD_MS: f64 = 300.0;
/// The same with the driver's cache filled.
const WARM_MS: f64 = 5.0;

/// Operators of every route, both weights, both forms.
const OPERATORS: [(u64, Dtype, bool); 9] = [
    (4096, Dtype::F32, false),
    (256, Dtype::Bf16, false),
    (512, Dtype::F32, true),
    (1024, Dtype::F32, false),
    (2048, Dtype::Bf16, true),
    (6144, Dtype::F32, true),
    (8192, Dtype::F32, false),
    (16_384, Dtype::F32, true),
    (65_536, Dtype::Bf16, false),
];

/// The construction of an operator.
#[derive(Serialize, Deserialize)]
struct Construction {
    hidden: u64,
    weight: String,
    residual: bool,
    kernels: Vec<KernelJson>,
    /// Preparing it, as users do.
    ms: f64,
    /// Preparing it again.
    again_us: f64,
}

#[derive(Serialize, Deserialize)]
struct KernelJson {
    name: String,
    registers: u32,
    local_bytes: u32,
    /// Loading it alone.
    ms: f64,
}

/// What a process prints.
#[derive(Serialize, Deserialize)]
struct Constructions {
    /// Opening the device, its context included.
    open_ms: f64,
    operators: Vec<Construction>,
}

/// Constructs every operator in this process and prints how long that took.
pub fn construct(out: &mut Output) -> Result<()> {
    let start = Instant::now();
    // Keeps the context; each operator below has a device object, and kernels, of its own.
    let _context = Device::open(0)?;
    let open_ms = milliseconds(start);
    let operators = OPERATORS.map(|(hidden, weight, residual)| {
        let op = RmsNorm::new(hidden, weight, 1e-6)?;
        let cuda = Cuda::new(Device::open(0)?);
        let start = Instant::now();
        cuda.prepare(&op, residual, Views::Ordinary)?;
        let ms = milliseconds(start);
        let start = Instant::now();
        cuda.prepare(&op, residual, Views::Ordinary)?;
        let again_us = milliseconds(start) * 1e3;

        let one_by_one = Device::open(0)?;
        let kernels = plan::kernels(&op, residual, Views::Ordinary, one_by_one.properties())?;
        let kernels = kernels.into_iter().map(|kernel| {
            let start = Instant::now();
            one_by_one.load(&[kernel])?;
            let ms = milliseconds(start);
            let attributes = one_by_one.kernel_attributes(kernel)?;
            Ok(KernelJson {
                name: kernel.name.to_owned(),
                registers: attributes.registers,
                local_bytes: attributes.local_bytes,
                ms,
            })
        });
        Ok(Construction {
            hidden,
            weight: crate::cli::dtype_name(weight).to_owned(),
            residual,
            kernels: kernels.collect::<Result<_>>()?,
            ms,
            again_us,
        })
    });
    let constructions = Constructions {
        open_ms,
        operators: operators.into_iter().collect::<Result<_>>()?,
    };
    let text = serde_json::to_string(&constructions);
    out.line(text.map_err(|error| CliError::Stdout(error.into()))?)
}

fn milliseconds(since: Instant) -> f64 {
    (since.elapsed().as_secs_f64() * 1e6).round() / 1e3
}

/// Measures both, with a driver cache of our own.
pub fn measure(report: &mut Report, out: &mut Output) -> Result<()> {
    let cold = in_a_process(|command| {
        command.env("CUDA_CACHE_DISABLE", "1");
    })?;
    summarise("cold", COLD_MS, &cold, report, out)?;

    let folder = std::env::temp_dir().join(format!("cake-rmsnorm-cache-{}", std::process::id()));
    let cached = || {
        in_a_process(|command| {
            command
                .env("CUDA_CACHE_DISABLE", "0")
                .env("CUDA_CACHE_PATH", &folder);
        })
    };
    let warm = cached().and_then(|_fills_the_cache| cached());
    remove(&folder);
    summarise("warm", WARM_MS, &warm?, report, out)
}

fn remove(folder: &Path) {
    // A cache that stays behind in the temporary folder harms nobody.
    let _ = std::fs::remove_dir_all(folder);
}

/// This program, constructing operators.
fn in_a_process(environment: impl FnOnce(&mut Command)) -> Result<Constructions> {
    let failed = |detail: String| CliError::Child {
        command: "bench-host --construct",
        detail,
    };
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new(program);
    command.args(["bench-host", "--construct"]);
    environment(&mut command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let log = String::from_utf8_lossy(&output.stderr);
        return Err(failed(log.trim().to_owned()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
}

fn summarise(
    what: &str,
    target_ms: f64,
    constructions: &Constructions,
    report: &mut Report,
    out: &mut Output,
) -> Result<()> {
    let open_ms = constructions.open_ms;
    let text = format!("{what}: the device opened in {open_ms:.1} ms, context included");
    report.note(out, "construction", text, open_ms)?;
    for construction in &constructions.operators {
        let Construction {
            hidden,
            weight,
            residual,
            kernels,
            ms,
            again_us,
        } = construction;
        let one_by_one: f64 = kernels.iter().map(|kernel| kernel.ms).sum();
        let slowest = kernels.iter().max_by(|a, b| a.ms.total_cmp(&b.ms));
        let slowest = slowest.map_or(String::new(), |kernel| {
            format!("{} {:.1} ms", kernel.name, kernel.ms)
        });
        let text = format!(
            "{what}: H={hidden} {weight} {}: {} kernels in {ms:.1} ms (target {target_ms} ms); one \
             by one {one_by_one:.1} ms, slowest {slowest}; again {again_us:.0} us",
            if *residual { "residual" } else { "plain" },
            kernels.len(),
        );
        report.target(out, "construction", *ms < target_ms, text, construction)?;
    }
    let kernels = constructions.operators.iter().flat_map(|op| &op.kernels);
    let spilled: Vec<&str> = kernels
        .filter(|kernel| kernel.local_bytes > 0)
        .map(|kernel| kernel.name.as_str())
        .collect();
    let text = format!("{what}: kernels with local memory: {spilled:?}");
    report.target(out, "construction", spilled.is_empty(), text, spilled)
}
