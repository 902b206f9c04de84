//! Devices by number: the CPU, and CUDA ordinals.

use crate::failure::{CakeRmsnormStatus, Failure};
use crate::types::CAKE_RMSNORM_CPU;
use cake_rmsnorm::backend::{Backend, cpu::Cpu};
use std::ffi::c_void;

/// Runs `body` with the backend of a device and a stream.
///
/// # Safety
/// - `stream` is null, or a live stream of the primary context of that CUDA device.
pub(crate) unsafe fn with<T>(
    device: i32,
    stream: *mut c_void,
    body: impl FnOnce(&dyn Backend) -> Result<T, cake_rmsnorm::Error>,
) -> Result<T, Failure> {
    match device {
        CAKE_RMSNORM_CPU => Ok(body(&Cpu)?),
        // SAFETY: the caller's obligations.
        0.. => unsafe { on_gpu(device as u32, stream, body) },
        _ => Err(Failure::new(
            CakeRmsnormStatus::InvalidArgument,
            format!("device is {device}: accepted are -1 (the CPU) and CUDA ordinals"),
        )),
    }
}

/// As [`with`], on a GPU.
#[cfg(feature = "cuda")]
unsafe fn on_gpu<T>(
    ordinal: u32,
    stream: *mut c_void,
    body: impl FnOnce(&dyn Backend) -> Result<T, cake_rmsnorm::Error>,
) -> Result<T, Failure> {
    use cake_rmsnorm::backend::cuda::Cuda;

    let device = gpu(ordinal)?.clone();
    // SAFETY: the caller's obligations.
    Ok(body(&unsafe { Cuda::with_stream(device, stream.cast()) })?)
}

/// No GPU in this build.
#[cfg(not(feature = "cuda"))]
unsafe fn on_gpu<T>(
    ordinal: u32,
    _: *mut c_void,
    _: impl FnOnce(&dyn Backend) -> Result<T, cake_rmsnorm::Error>,
) -> Result<T, Failure> {
    Err(Failure::new(
        CakeRmsnormStatus::NotBuiltWithCuda,
        format!(
            "device is {ordinal}: accepted is -1 (the CPU), for this library was not built with CUDA"
        ),
    ))
}

/// A GPU with its primary context and the kernels loaded there, opened once. A failure to open one
/// is not kept: the next call tries again.
#[cfg(feature = "cuda")]
fn gpu(ordinal: u32) -> Result<&'static cake_rmsnorm::backend::cuda::Device, Failure> {
    use cake_rmsnorm::backend::cuda::Device;
    use std::sync::{Mutex, OnceLock, PoisonError};

    const MOST: usize = 64;
    static DEVICES: [OnceLock<Device>; MOST] = [const { OnceLock::new() }; MOST];
    static OPENING: Mutex<()> = Mutex::new(());

    let Some(slot) = DEVICES.get(ordinal as usize) else {
        return Err(Failure::argument(format!(
            "device is {ordinal}: accepted are at most {}",
            MOST - 1
        )));
    };
    if let Some(device) = slot.get() {
        return Ok(device);
    }
    let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    crate::driver::load()?;
    if slot.get().is_none() {
        let _ = slot.set(Device::open(ordinal)?);
    }
    slot.get()
        .ok_or_else(|| Failure::new(CakeRmsnormStatus::Internal, "an opened device is gone"))
}
