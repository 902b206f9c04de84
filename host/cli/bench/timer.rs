//! How work is timed, on each kind of device.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

use super::case::Repeats;
use crate::cli::device::{Device, DeviceArg, Planning};
use crate::cli::error::{CliError, Result};

/// What the caches hold when a sample begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Nothing of use: a buffer larger than they are was read just before.
    Cold,
    /// What the sample before left there.
    Warm,
}

/// A way to copy memory within the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    /// The driver's copy; on a CPU, one thread's.
    Driver,
    /// A kernel that copies 16 bytes at a time; on a CPU, all threads.
    Kernel,
}

/// Work that is enqueued on a device, over and over.
pub type Work<'a> = dyn FnMut() -> cake_rmsnorm::Result<()> + 'a;

/// A device that times what it runs.
pub trait Timer {
    /// The device, with its memory.
    fn device(&self) -> &dyn Device;

    /// Microseconds of `work`, one value a sample.
    fn samples(&self, cache: Cache, repeats: Repeats, work: &mut Work<'_>) -> Result<Vec<f64>>;

    /// Enqueues a copy of `bytes` bytes (a multiple of 16).
    ///
    /// # Safety
    /// - Both addresses are multiples of 16 in live memory of the device, of as many bytes, that
    ///   do not overlap and that nobody else uses until the copy has completed.
    unsafe fn copy(&self, how: Copy, to: u64, from: u64, bytes: u64) -> cake_rmsnorm::Result<()>;

    /// Bytes read before a cold sample.
    fn flush_bytes(&self) -> u64;

    /// The device, in the words of its maker.
    fn maker_name(&self) -> String;

    /// Versions of what drives the device: CUDA, the driver. A dash where there is none.
    fn versions(&self) -> (String, String) {
        ("-".to_owned(), "-".to_owned())
    }
}

/// The device asked for, and why it is not a better one.
pub fn open(device: DeviceArg, planning: &Planning) -> Result<(Box<dyn Timer>, Option<String>)> {
    match device {
        DeviceArg::Cpu => Ok((Box::new(cpu::CpuTimer::new()), None)),
        DeviceArg::Cuda => Ok((gpu(planning)?, None)),
        DeviceArg::Sim => Err(CliError::Usage {
            option: "--device sim",
            reason: "simulated time says nothing about a device: accepted are auto, cpu and cuda"
                .to_owned(),
        }),
        DeviceArg::Auto => match gpu(planning) {
            Ok(timer) => Ok((timer, None)),
            Err(CliError::NoDevice { reason, .. }) => {
                let why = format!("no GPU: {reason}");
                Ok((Box::new(cpu::CpuTimer::new()), Some(why)))
            }
            // A GPU that is there and does not work must not be passed over in silence.
            Err(error) => Err(error),
        },
    }
}

#[cfg(feature = "cuda")]
fn gpu(planning: &Planning) -> Result<Box<dyn Timer>> {
    Ok(Box::new(cuda::CudaTimer::open(planning)?))
}

#[cfg(not(feature = "cuda"))]
fn gpu(_: &Planning) -> Result<Box<dyn Timer>> {
    Err(CliError::no_cuda())
}
