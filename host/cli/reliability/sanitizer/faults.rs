//! A kernel with the fault that a tool is for: a tool that finds nothing there finds nothing
//! elsewhere either.

use super::Tool;
use crate::cli::error::{CliError, Result};
use crate::cli::reliability::Args;
use crate::cli::reliability::planted::{DIVERGENT, OUTSIDE, Planted, RACE, UNWRITTEN};
use cake_rmsnorm::backend::cuda::{Cuda, Device, DeviceBuffer};

/// Bytes that the kernels are given.
const BYTES: usize = 64;

/// Launches the kernel of the tool that `--slice` names.
pub fn run(args: &Args) -> Result<bool> {
    let name = args.slice.as_deref().unwrap_or_default();
    let tool = Tool::ALL.into_iter().find(|tool| tool.name() == name);
    let tool = tool.ok_or_else(|| CliError::Usage {
        option: "--slice",
        reason: format!("{name:?}: accepted are the tools of compute-sanitizer"),
    })?;
    let cuda = Cuda::new(Device::open(0)?);
    let ptx = match tool {
        Tool::Memcheck => OUTSIDE,
        Tool::Racecheck => RACE,
        Tool::Initcheck => UNWRITTEN,
        Tool::Synccheck => DIVERGENT,
    };
    let planted = Planted::load(cuda.device(), ptx)?;
    let memory = DeviceBuffer::new(cuda.device(), BYTES)?;
    // Block sizes: one thread, or as many as the kernel's fault takes.
    let threads = match tool {
        Tool::Memcheck | Tool::Initcheck => 1,
        Tool::Racecheck | Tool::Synccheck => 64,
    };
    // SAFETY: the kernel is given memory of its size; the driver allocates in units of 512 bytes,
    // so that what it stores outside harms nothing.
    unsafe { planted.launch(&cuda, (1, threads, 0), &mut [memory.address()])? };
    cuda.synchronize()?;
    Ok(true)
}
