//! Streams that are made here.

use super::device::Device;
use super::driver::check;
use crate::error::Result;
use cust::sys;

/// A stream that is destroyed when dropped.
#[derive(Debug)]
pub(super) struct OwnedStream {
    device: Device,
    stream: sys::CUstream,
}

// SAFETY: streams may be used from any thread; every use makes the context current.
unsafe impl Send for OwnedStream {}
// SAFETY: as above; the driver's functions are thread-safe.
unsafe impl Sync for OwnedStream {}

impl OwnedStream {
    /// A stream that does not wait for the default stream.
    pub fn new(device: &Device) -> Result<Self> {
        let mut stream = std::ptr::null_mut();
        device.with_context(|| {
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            // SAFETY: the out pointer is live.
            check("cuStreamCreate", unsafe {
                sys::cuStreamCreate(&raw mut stream, flags)
            })
        })?;
        Ok(Self {
            device: device.clone(),
            stream,
        })
    }

    pub fn raw(&self) -> sys::CUstream {
        self.stream
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        let _ = self.device.with_context(|| {
            // SAFETY: created above; the driver lets enqueued work finish first. An error leaves
            // nothing to do.
            check("cuStreamDestroy", unsafe {
                sys::cuStreamDestroy_v2(self.stream)
            })
        });
    }
}
