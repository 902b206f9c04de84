//! Drawn cases through the backend's own interface, by address: any shape, types, strides,
//! alignment, options and data.

use super::{Findings, Result};
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cudarc::Cudarc;
use cake_rmsnorm::cases::{Case, Device, Memory};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use std::error::Error;
use std::sync::Arc;

pub fn check(gpu: &Cudarc, findings: &mut Findings) -> Result {
    let device = Gpu(gpu);
    for (cases, elements) in [(200, 1 << 12), (50, 1 << 20)] {
        for seed in 0..cases {
            let case = Case::from_seed(seed, elements);
            let wrong = case.run(&device)?;
            findings.check(wrong.is_empty(), || format!("{case}: {}", wrong.join(", ")));
        }
    }
    Ok(())
}

struct Gpu<'a>(&'a Cudarc);

struct Bytes {
    memory: CudaSlice<u8>,
    stream: Arc<CudaStream>,
}

impl Device for Gpu<'_> {
    type Error = Box<dyn Error>;
    type Memory = Bytes;

    fn backend(&self) -> &dyn Backend {
        self.0
    }

    fn alloc(&self, _: &'static str, len: usize) -> Result<Bytes> {
        let stream = self.0.stream().clone();
        let memory = stream.alloc_zeros(len.max(1))?;
        Ok(Bytes { memory, stream })
    }

    fn synchronize(&self) -> Result {
        Ok(self.0.stream().synchronize()?)
    }
}

impl Memory<Box<dyn Error>> for Bytes {
    fn address(&self) -> u64 {
        // Everything here happens on one stream: nothing else waits for it.
        self.memory.device_ptr(&self.stream).0
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result {
        if !bytes.is_empty() {
            let mut part = self.memory.slice_mut(offset..offset + bytes.len());
            self.stream.memcpy_htod(bytes, &mut part)?;
            self.stream.synchronize()?;
        }
        Ok(())
    }

    fn read(&self, offset: usize, len: usize) -> Result<Vec<u8>> {
        if len == 0 {
            return Ok(Vec::new());
        }
        Ok(self
            .stream
            .clone_dtoh(&self.memory.slice(offset..offset + len))?)
    }
}
