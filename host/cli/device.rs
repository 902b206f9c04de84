//! Where a check runs: a backend with memory that it can reach.

#[cfg(feature = "cuda")]
pub mod cuda;
pub mod host;
mod sim;

use super::error::{CliError, Result};
use super::progress::Progress;
use cake_rmsnorm::backend::{Backend, Launcher};
use cake_rmsnorm::plan::Routes;
use clap::ValueEnum;
use std::path::Path;
use std::sync::Arc;

/// The device asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeviceArg {
    /// The GPU if there is one, else the simulator for small inputs, else the CPU.
    Auto,
    /// The golden implementation.
    Cpu,
    /// The kernels themselves, simulated on the CPU.
    Sim,
    /// The first NVIDIA GPU.
    Cuda,
}

/// A backend, and memory that it can reach.
pub trait Device {
    /// `cpu`, `sim` or `cuda`.
    fn kind(&self) -> &'static str;

    /// The device in words, for the reader.
    fn name(&self) -> String;

    /// Memory for `bytes` bytes at a multiple of 256, of unknown contents; `name` is for errors.
    fn alloc(&self, name: &'static str, bytes: usize) -> Result<Box<dyn Buffer>>;

    /// What runs operators on that memory.
    fn backend(&self) -> &dyn Backend;

    /// What launches kernels on that memory; `None` where operators run without them.
    fn launcher(&self) -> Option<&dyn Launcher> {
        None
    }

    /// What runs operators on that memory by other routes, as if with `sm_count` multiprocessors.
    /// `None` where operators run without plans.
    fn backend_by(&self, _: Arc<Routes>, _sm_count: u32) -> Option<Box<dyn Backend + '_>> {
        None
    }

    /// Loads every kernel, for calls that were not prepared.
    fn load_every_kernel(&self) -> Result<()> {
        Ok(())
    }

    /// Whether the first `bytes` bytes of two buffers of this device are equal.
    fn equal(&self, a: &dyn Buffer, b: &dyn Buffer, bytes: usize) -> Result<bool> {
        let read = |buffer: &dyn Buffer| -> Result<Vec<u8>> {
            let mut contents = vec![0; bytes];
            buffer.read(&mut contents)?;
            Ok(contents)
        };
        Ok(read(a)? == read(b)?)
    }

    /// Enqueues a copy of the first `bytes` bytes of a buffer of this device to another.
    fn copy(&self, to: &mut dyn Buffer, from: &dyn Buffer, bytes: usize) -> Result<()> {
        let mut contents = vec![0; bytes];
        from.read(&mut contents)?;
        to.write(&contents)
    }

    /// Enqueues a comparison of the first `bytes` bytes, a multiple of 16, of two buffers of this
    /// device: where they differ, the FP32 value at the start of `flag` becomes 1.
    fn compare(
        &self,
        a: &dyn Buffer,
        b: &dyn Buffer,
        bytes: usize,
        flag: &mut dyn Buffer,
    ) -> Result<()> {
        match self.equal(a, b, bytes)? {
            true => Ok(()),
            false => flag.write(&1f32.to_ne_bytes()),
        }
    }

    /// Waits for everything that was enqueued, and reports its errors.
    fn synchronize(&self) -> Result<()>;

    /// Bytes to allocate behind each output and look at afterwards. None where the device itself
    /// refuses to write outside an allocation.
    fn guard_bytes(&self) -> usize {
        256
    }
}

/// Memory of a device. Copies happen while nothing runs.
pub trait Buffer {
    /// Where it lies, as views name it.
    fn address(&self) -> u64;

    /// Copies `bytes` to byte `at` and behind; at most to the buffer's end.
    fn write_at(&mut self, at: usize, bytes: &[u8]) -> Result<()>;

    /// Copies `bytes` to the start of the buffer; at most its length.
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_at(0, bytes)
    }

    /// Copies `pattern` to the buffer over and over, until it is full.
    fn fill(&mut self, pattern: &[u8]) -> Result<()>;

    /// Writes blocks of `block` bytes from `pool` to the buffer, in this order, `total` bytes of
    /// them: what is left of the last one is dropped.
    fn write_blocks(
        &mut self,
        pool: &[u8],
        block: usize,
        order: &[u32],
        total: usize,
    ) -> Result<()> {
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(total)
            .map_err(|_| CliError::Memory {
                purpose: "inputs",
                bytes: total as u64,
            })?;
        for &index in order {
            let left = block.min(total - bytes.len());
            bytes.extend_from_slice(&pool[index as usize * block..][..left]);
        }
        self.write(&bytes)
    }

    /// Copies byte `at` and those behind; at most up to the buffer's end.
    fn read_at(&self, at: usize, bytes: &mut [u8]) -> Result<()>;

    /// Copies from the start of the buffer; at most its length.
    fn read(&self, bytes: &mut [u8]) -> Result<()> {
        self.read_at(0, bytes)
    }

    /// Makes every byte of the buffer `byte`, or unreadable until it is written.
    fn poison(&mut self, byte: u8) -> Result<()>;
}

/// Elements up to which the simulator is quick enough to be chosen unasked.
const AUTO_SIM_ELEMENTS: u64 = 1 << 20;

/// How plans are made.
#[derive(Clone, Debug, Default)]
pub struct Planning {
    /// As if the device had that many multiprocessors.
    pub sm_count: Option<u32>,
    /// By these routes instead of the built-in ones.
    pub routes: Option<Arc<Routes>>,
    /// On a GPU, calls are launched by way of graphs.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub graph_launches: bool,
}

impl Planning {
    /// With the routes of a file.
    pub fn new(sm_count: Option<u32>, routes: Option<&Path>) -> Result<Self> {
        let routes = routes.map(Routes::load).transpose()?;
        Ok(Self {
            sm_count,
            routes: routes.map(Arc::new),
            graph_launches: false,
        })
    }
}

/// The device asked for, for inputs of `elements` elements, and why it is not a better one.
pub fn open(
    device: DeviceArg,
    planning: &Planning,
    elements: u64,
    progress: &Progress,
) -> Result<(Box<dyn Device>, Option<String>)> {
    let simulator = || Box::new(sim::SimDevice::new(planning, progress));
    match device {
        DeviceArg::Cpu => Ok((Box::new(host::HostDevice), None)),
        DeviceArg::Sim => Ok((simulator(), None)),
        DeviceArg::Cuda => Ok((gpu(planning)?, None)),
        DeviceArg::Auto => {
            let why = match gpu(planning) {
                Ok(device) => return Ok((device, None)),
                Err(CliError::NoDevice { reason, .. }) => format!("no GPU: {reason}"),
                // A GPU that is there and does not work must not be passed over in silence.
                Err(error) => return Err(error),
            };
            if elements <= AUTO_SIM_ELEMENTS {
                return Ok((simulator(), Some(why)));
            }
            let why = format!("{why}; too large to simulate unasked (--device sim)");
            Ok((Box::new(host::HostDevice), Some(why)))
        }
    }
}

#[cfg(feature = "cuda")]
fn gpu(planning: &Planning) -> Result<Box<dyn Device>> {
    Ok(Box::new(cuda::CudaDevice::open(planning)?))
}

#[cfg(not(feature = "cuda"))]
fn gpu(_: &Planning) -> Result<Box<dyn Device>> {
    Err(CliError::no_cuda())
}

/// The GPU in words.
#[cfg(feature = "cuda")]
pub fn describe_gpu() -> Result<String> {
    Ok(cuda::CudaDevice::open(&Planning::default())?.name())
}
