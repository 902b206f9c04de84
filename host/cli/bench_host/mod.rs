//! `bench-host`: what operators cost on the host (construction, calls), and what calls must keep
//! when they are captured, replayed, and made on two streams at once.

mod calls;
#[cfg(feature = "cuda")]
mod construction;
mod cpu;
pub mod expected;
#[cfg(feature = "cuda")]
mod gpu;
mod report;
#[cfg(feature = "cuda")]
mod streams;

use super::error::Result;
use super::output::Output;
use cake_rmsnorm::plan::DeviceProperties;
use clap::ValueEnum;
use report::Report;

/// Arguments of `bench-host`.
#[derive(clap::Args)]
pub struct Args {
    /// `cuda`: the first GPU. `none`: no driver; validation, plan and kernel parameters alone.
    #[arg(long, value_enum, default_value = "cuda")]
    device: HostDevice,
    /// Replays of each captured graph.
    #[arg(long, default_value_t = 1000)]
    replays: u64,
    /// Print one JSON object instead of lines.
    #[arg(long)]
    json: bool,
    /// Constructs operators in this process and prints how long that took: what the command runs
    /// itself as, with and without the driver's cache.
    #[arg(long, hide = true)]
    construct: bool,
}

/// What calls are made on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum HostDevice {
    Cuda,
    None,
}

/// Runs the measurements; whether every target is met.
pub fn run(args: &Args, out: &mut Output) -> Result<bool> {
    match args.device {
        HostDevice::None => {
            let mut report = Report::new("none", args.json);
            calls::without_driver(DeviceProperties::H200, &mut report, out)?;
            report.finish(out)
        }
        HostDevice::Cuda => on_gpu(args, out),
    }
}

#[cfg(feature = "cuda")]
fn on_gpu(args: &Args, out: &mut Output) -> Result<bool> {
    gpu::run(args, out)
}

#[cfg(not(feature = "cuda"))]
fn on_gpu(_: &Args, _: &mut Output) -> Result<bool> {
    Err(super::error::CliError::no_cuda())
}
