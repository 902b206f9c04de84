//! The first NVIDIA GPU.

use super::{Buffer, Device};
use crate::cli::error::{CliError, Result};
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cuda::{Cuda, Device as Gpu, DeviceBuffer};

/// A GPU.
pub struct CudaDevice(Cuda);

impl CudaDevice {
    /// The first GPU of the driver.
    pub fn open(sm_count: Option<u32>) -> Result<Self> {
        let cuda = Cuda::new(first_gpu()?);
        Ok(CudaDevice(match sm_count {
            Some(sm_count) => cuda.with_sm_count(sm_count),
            None => cuda,
        }))
    }

    /// The same with a stream of its own, whose work can be captured.
    pub fn on_new_stream() -> Result<Self> {
        Ok(CudaDevice(Cuda::on_new_stream(first_gpu()?)?))
    }

    /// The same GPU with another stream.
    pub fn beside(&self) -> Result<Self> {
        Ok(CudaDevice(Cuda::on_new_stream(self.0.device().clone())?))
    }

    /// The backend.
    pub fn cuda(&self) -> &Cuda {
        &self.0
    }
}

fn first_gpu() -> Result<Gpu> {
    Gpu::open(0).map_err(|error| match error {
        // Nothing was launched yet: there is no driver, or no GPU behind it.
        cake_rmsnorm::Error::Cuda {
            call: "cuInit" | "cuDeviceGet",
            ..
        } => CliError::NoDevice {
            device: "cuda",
            reason: error.to_string(),
        },
        other => other.into(),
    })
}

impl Device for CudaDevice {
    fn kind(&self) -> &'static str {
        "cuda"
    }

    fn name(&self) -> String {
        let properties = Backend::properties(&self.0);
        let (major, minor) = properties.compute_capability;
        format!(
            "cuda ({}, compute capability {major}.{minor}, {} multiprocessors)",
            self.0.device().name(),
            properties.sm_count,
        )
    }

    fn alloc(&self, _: &'static str, bytes: usize) -> Result<Box<dyn Buffer>> {
        let buffer = DeviceBuffer::new(self.0.device(), bytes)?;
        Ok(Box::new(GpuMemory {
            cuda: self.0.clone(),
            buffer,
        }))
    }

    fn backend(&self) -> &dyn Backend {
        &self.0
    }

    fn synchronize(&self) -> Result<()> {
        Ok(self.0.synchronize()?)
    }
}

struct GpuMemory {
    cuda: Cuda,
    buffer: DeviceBuffer,
}

impl Buffer for GpuMemory {
    fn address(&self) -> u64 {
        self.buffer.address()
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.buffer.write(bytes)?)
    }

    fn fill(&mut self, pattern: &[u8]) -> Result<()> {
        Ok(self.buffer.fill(pattern)?)
    }

    /// The pool crosses the bus once; its blocks are copied on the device.
    fn write_blocks(
        &mut self,
        pool: &[u8],
        block: usize,
        order: &[u32],
        total: usize,
    ) -> Result<()> {
        let mut source = DeviceBuffer::new(self.cuda.device(), pool.len())?;
        source.write(pool)?;
        let total = total.min(self.buffer.len());
        for (i, &index) in order.iter().enumerate() {
            let start = i * block;
            let bytes = block.min(total.saturating_sub(start));
            let from = index as usize * block;
            if bytes == 0 || from + bytes > pool.len() {
                continue;
            }
            let (to, from) = (
                self.buffer.address() + start as u64,
                source.address() + from as u64,
            );
            // SAFETY: inside both buffers, which live until the copies are done, below.
            unsafe { self.cuda.copy(to, from, bytes)? };
        }
        Ok(self.cuda.synchronize()?)
    }

    fn read(&self, bytes: &mut [u8]) -> Result<()> {
        Ok(self.buffer.read(bytes)?)
    }

    fn poison(&mut self, byte: u8) -> Result<()> {
        Ok(self.buffer.write(&vec![byte; self.buffer.len()])?)
    }
}
