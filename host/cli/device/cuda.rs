//! The first NVIDIA GPU.

use super::{Buffer, Device, Planning};
use crate::cli::error::{CliError, Result};
use cake_rmsnorm::backend::cuda::{Cuda, Device as Gpu, DeviceBuffer};
use cake_rmsnorm::backend::{Backend, Bound, Launcher};
use cake_rmsnorm::kernels::KERNELS;
use cake_rmsnorm::kernels::contract::{Kernel, Program};
use cake_rmsnorm::kernels::device::Words4;
use cake_rmsnorm::kernels::params::CompareParams;
use cake_rmsnorm::plan::{Launch, Routes};
use std::sync::Arc;

/// A GPU. Clones share the stream.
#[derive(Clone)]
pub struct CudaDevice(Cuda);

impl CudaDevice {
    /// The first GPU of the driver.
    pub fn open(planning: &Planning) -> Result<Self> {
        Ok(CudaDevice(planned(Cuda::new(gpu(0)?), planning)))
    }

    /// GPU `ordinal`, with a stream of its own.
    pub fn of(ordinal: u32) -> Result<Self> {
        Self::on(gpu(ordinal)?)
    }

    /// A GPU that is open, with a stream of its own.
    pub fn on(gpu: Gpu) -> Result<Self> {
        Ok(CudaDevice(Cuda::on_new_stream(gpu)?))
    }

    /// The same with a stream of its own, whose work can be captured.
    pub fn on_new_stream(planning: &Planning) -> Result<Self> {
        let cuda = Cuda::on_new_stream(gpu(0)?)?;
        Ok(CudaDevice(planned(cuda, planning)))
    }

    /// The same GPU with another stream, launched on in the same way.
    pub fn beside(&self) -> Result<Self> {
        let beside = CudaDevice::on(self.0.device().clone())?;
        Ok(match self.0.graph_launches() {
            true => beside.with_graph_launches(),
            false => beside,
        })
    }

    /// The same with calls launched by way of graphs.
    pub fn with_graph_launches(self) -> Self {
        CudaDevice(self.0.with_graph_launches())
    }

    /// The backend.
    pub fn cuda(&self) -> &Cuda {
        &self.0
    }
}

fn planned(cuda: Cuda, planning: &Planning) -> Cuda {
    let cuda = match planning.sm_count {
        Some(sm_count) => cuda.with_sm_count(sm_count),
        None => cuda,
    };
    let cuda = match &planning.routes {
        Some(routes) => cuda.with_routes(Arc::clone(routes)),
        None => cuda,
    };
    match planning.graph_launches {
        true => cuda.with_graph_launches(),
        false => cuda,
    }
}

fn gpu(ordinal: u32) -> Result<Gpu> {
    Gpu::open(ordinal).map_err(|error| match error {
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

    fn launcher(&self) -> Option<&dyn Launcher> {
        Some(&self.0)
    }

    fn backend_by(&self, routes: Arc<Routes>, sm_count: u32) -> Option<Box<dyn Backend + '_>> {
        let cuda = self.0.clone().with_routes(routes);
        Some(Box::new(cuda.with_sm_count(sm_count)))
    }

    fn load_every_kernel(&self) -> Result<()> {
        let (major, minor) = self.0.device().properties().compute_capability;
        let loadable = |kernel: &&Kernel| kernel.min_sm <= 10 * major + minor;
        let kernels: Vec<&Kernel> = KERNELS.iter().filter(loadable).collect();
        Ok(self.0.load(&kernels)?)
    }

    /// Compared on the device, but for what is left of the last 16 bytes.
    fn equal(&self, a: &dyn Buffer, b: &dyn Buffer, bytes: usize) -> Result<bool> {
        let mut flag = self.alloc("flag", size_of::<f32>())?;
        flag.write(&[0; size_of::<f32>()])?;
        self.compare(a, b, bytes, &mut *flag)?;
        self.0.synchronize()?;
        let mut raised = [0; size_of::<f32>()];
        flag.read(&mut raised)?;
        let tail = bytes % size_of::<Words4>();
        let read = |buffer: &dyn Buffer| -> Result<Vec<u8>> {
            let mut contents = vec![0; if tail > 0 { bytes } else { 0 }];
            buffer.read(&mut contents)?;
            Ok(contents)
        };
        Ok(raised == [0; size_of::<f32>()] && read(a)? == read(b)?)
    }

    fn copy(&self, to: &mut dyn Buffer, from: &dyn Buffer, bytes: usize) -> Result<()> {
        // SAFETY: two buffers, of at least as many bytes; the driver keeps what it still copies.
        unsafe { self.0.copy(to.address(), from.address(), bytes)? };
        Ok(())
    }

    fn compare(
        &self,
        a: &dyn Buffer,
        b: &dyn Buffer,
        bytes: usize,
        flag: &mut dyn Buffer,
    ) -> Result<()> {
        let gpu = self.0.device();
        let found = KERNELS.iter().find(|it| it.program == Program::Compare);
        let kernel = found.unwrap_or_else(|| unreachable!("the comparison is in the table"));
        gpu.load(&[kernel])?;
        let params = CompareParams {
            a: a.address() as *const Words4,
            b: b.address() as *const Words4,
            flag: flag.address() as *mut f32,
            words: (bytes / size_of::<Words4>()) as u32,
        };
        let launch = Launch {
            kernel,
            grid: gpu.properties().sm_count * 4,
            block: 256,
            shared_bytes: 0,
            dependent: false,
        };
        let params = (&raw const params).cast();
        // SAFETY: the parameters are the kernel's; the buffers hold the bytes. Freeing one waits
        // for the kernel.
        unsafe { self.0.launch(&[Bound { launch, params }])? };
        Ok(())
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

    fn write_at(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        Ok(self.buffer.write_at(at, bytes)?)
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

    fn read_at(&self, at: usize, bytes: &mut [u8]) -> Result<()> {
        Ok(self.buffer.read_at(at, bytes)?)
    }

    fn poison(&mut self, byte: u8) -> Result<()> {
        Ok(self.buffer.set(byte)?)
    }
}
