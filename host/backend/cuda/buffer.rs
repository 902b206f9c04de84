//! Device memory.

use super::Device;
use super::driver::{check, check_with};
use crate::error::Result;
use cust::sys;

/// Bytes of device memory, aligned to 256 bytes, freed when dropped. Copies are synchronous.
#[derive(Debug)]
pub struct DeviceBuffer {
    device: Device,
    address: sys::CUdeviceptr,
    bytes: usize,
}

impl DeviceBuffer {
    /// Allocates `bytes` bytes on `device`; their contents are undefined.
    ///
    /// # Errors
    /// - [`crate::Error::Cuda`], which names the bytes, when there is not enough memory.
    pub fn new(device: &Device, bytes: usize) -> Result<Self> {
        let mut address = 0;
        if bytes > 0 {
            device.with_context(|| {
                // SAFETY: the out pointer is live.
                let result = unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) };
                check_with("cuMemAlloc", result, || format!(" for {bytes} bytes"))
            })?;
        }
        Ok(Self {
            device: device.clone(),
            address,
            bytes,
        })
    }

    /// The address; 0 for a buffer of no bytes.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Copies host bytes to the start of the buffer; at most its length is copied.
    ///
    /// # Errors
    /// - [`crate::Error::Cuda`].
    pub fn write(&mut self, source: &[u8]) -> Result<()> {
        self.write_at(0, source)
    }

    /// Copies host bytes to byte `at` and behind; at most to the buffer's end.
    ///
    /// # Errors
    /// - [`crate::Error::Cuda`].
    pub fn write_at(&mut self, at: usize, source: &[u8]) -> Result<()> {
        let bytes = source.len().min(self.bytes.saturating_sub(at));
        if bytes == 0 {
            return Ok(());
        }
        self.device.with_context(|| {
            let destination = self.address + at as u64;
            // SAFETY: both ranges hold `bytes` bytes.
            let result =
                unsafe { sys::cuMemcpyHtoD_v2(destination, source.as_ptr().cast(), bytes) };
            check("cuMemcpyHtoD", result)?;
            completed()
        })
    }

    /// Copies host bytes to the buffer over and over, until it is full.
    ///
    /// # Errors
    /// - [`crate::Error::Cuda`].
    pub fn fill(&mut self, pattern: &[u8]) -> Result<()> {
        if pattern.is_empty() {
            return Ok(());
        }
        self.device.with_context(|| {
            for start in (0..self.bytes).step_by(pattern.len()) {
                let bytes = pattern.len().min(self.bytes - start);
                let destination = self.address + start as u64;
                // SAFETY: both ranges hold `bytes` bytes.
                let result =
                    unsafe { sys::cuMemcpyHtoD_v2(destination, pattern.as_ptr().cast(), bytes) };
                check("cuMemcpyHtoD", result)?;
            }
            completed()
        })
    }

    /// Makes every byte `byte`.
    ///
    /// # Errors
    /// - [`crate::Error::Cuda`].
    pub fn set(&mut self, byte: u8) -> Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        self.device.with_context(|| {
            // SAFETY: the buffer holds that many bytes.
            let result = unsafe { sys::cuMemsetD8_v2(self.address, byte, self.bytes) };
            check("cuMemsetD8", result)?;
            completed()
        })
    }

    /// Copies the start of the buffer to host bytes; at most its length is copied.
    ///
    /// # Errors
    /// - [`crate::Error::Cuda`].
    pub fn read(&self, destination: &mut [u8]) -> Result<()> {
        self.read_at(0, destination)
    }

    /// Copies byte `at` and those behind to host bytes; at most up to the buffer's end.
    ///
    /// # Errors
    /// - [`crate::Error::Cuda`].
    pub fn read_at(&self, at: usize, destination: &mut [u8]) -> Result<()> {
        let bytes = destination.len().min(self.bytes.saturating_sub(at));
        if bytes == 0 {
            return Ok(());
        }
        self.device.with_context(|| {
            let source = self.address + at as u64;
            // SAFETY: both ranges hold `bytes` bytes.
            let result =
                unsafe { sys::cuMemcpyDtoH_v2(destination.as_mut_ptr().cast(), source, bytes) };
            check("cuMemcpyDtoH", result)
        })
    }
}

/// Waits for copies to the device: of pageable memory they return when it was read, which is
/// before a stream that does not wait for the default one may read the copy.
fn completed() -> Result<()> {
    // SAFETY: a context is current; null is its default stream.
    check("cuStreamSynchronize", unsafe {
        sys::cuStreamSynchronize(std::ptr::null_mut())
    })
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let _ = self.device.with_context(|| {
                // SAFETY: allocated above; nothing else frees it. An error leaves nothing to do.
                check("cuMemFree", unsafe { sys::cuMemFree_v2(self.address) })
            });
        }
    }
}
