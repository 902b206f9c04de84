//! An NVIDIA GPU, timed by events inside a CUDA graph, so that no launch on the host counts.

use super::{Cache, Copy, Timer, Work};
use crate::cli::bench::case::Repeats;
use crate::cli::device::cuda::CudaDevice;
use crate::cli::device::{Device, Planning};
use crate::cli::error::Result;
use crate::cli::record::driver_version;
use cake_rmsnorm::backend::cuda::{Cuda, DeviceBuffer, Event, Graph};
use cake_rmsnorm::backend::{Bound, Launcher};
use cake_rmsnorm::kernels::KERNELS;
use cake_rmsnorm::kernels::bench::copied_words;
use cake_rmsnorm::kernels::contract::{Kernel, Program};
use cake_rmsnorm::kernels::device::Words4;
use cake_rmsnorm::kernels::params::{CopyParams, FlushParams};
use cake_rmsnorm::plan::Launch;
use std::time::{Duration, Instant};

/// Bytes that are read before a cold sample, at least.
const FLUSH_BYTES: u64 = 160 << 20;
/// Threads of a block of the benchmark's kernels.
const THREADS: u32 = 256;
/// Blocks of the flush on a multiprocessor.
const FLUSH_BLOCKS: u32 = 8;
/// How long the GPU works before anything is timed, so that its clocks are up.
const WARM_UP: Duration = Duration::from_secs(1);

/// A GPU.
pub struct CudaTimer {
    device: CudaDevice,
    zeros: DeviceBuffer,
    sink: DeviceBuffer,
}

impl CudaTimer {
    /// The first GPU, with its clocks up.
    pub fn open(planning: &Planning) -> Result<Self> {
        let device = CudaDevice::on_new_stream(planning)?;
        let gpu = device.cuda().device();
        device
            .cuda()
            .load(&[kernel(Program::Copy), kernel(Program::Flush)])?;
        // Twice the cache, whatever its replacement policy keeps.
        let bytes = FLUSH_BYTES.max(2 * gpu.cache_bytes()?);
        let mut zeros = DeviceBuffer::new(gpu, bytes as usize)?;
        zeros.fill(&vec![0; 1 << 20])?;
        let mut sink = DeviceBuffer::new(gpu, 16)?;
        sink.write(&[0; 16])?;
        let timer = Self {
            device,
            zeros,
            sink,
        };
        let start = Instant::now();
        while start.elapsed() < WARM_UP {
            for _ in 0..64 {
                timer.flush()?;
            }
            timer.cuda().synchronize()?;
        }
        Ok(timer)
    }

    fn cuda(&self) -> &Cuda {
        self.device.cuda()
    }

    /// Reads a buffer that fills the cache with clean lines.
    fn flush(&self) -> cake_rmsnorm::Result<()> {
        let params = FlushParams {
            from: self.zeros.address() as *const Words4,
            sink: self.sink.address() as *mut f32,
            words: (self.zeros.len() / size_of::<Words4>()) as u32,
        };
        let sms = self.cuda().device().properties().sm_count;
        // SAFETY: the buffers live as long as the timer, which waits for its work.
        unsafe { self.launch(Program::Flush, sms * FLUSH_BLOCKS, &params) }
    }

    /// # Safety
    /// - `params` is the parameter struct of the program's kernel, with live buffers.
    unsafe fn launch<P>(
        &self,
        program: Program,
        grid: u32,
        params: &P,
    ) -> cake_rmsnorm::Result<()> {
        let launch = Launch {
            kernel: kernel(program),
            grid,
            block: THREADS,
            shared_bytes: 0,
            dependent: false,
        };
        let params = std::ptr::from_ref(params).cast();
        // SAFETY: the caller's obligations; these kernels take any grid.
        unsafe { self.cuda().launch(&[Bound { launch, params }]) }
    }
}

fn kernel(program: Program) -> &'static Kernel {
    let found = KERNELS.iter().find(|kernel| kernel.program == program);
    found.unwrap_or_else(|| unreachable!("{program:?} is in the table"))
}

impl Timer for CudaTimer {
    fn device(&self) -> &dyn Device {
        &self.device
    }

    /// Replays a graph of [flush, event, work, event] × batch.
    fn samples(&self, cache: Cache, repeats: Repeats, work: &mut Work<'_>) -> Result<Vec<f64>> {
        let cuda = self.cuda();
        // Finds what fails, and brings everything to its steady state.
        for _ in 0..2 {
            work()?;
        }
        cuda.synchronize()?;
        let event = || Event::new(cuda.device());
        let events = (0..repeats.batch)
            .map(|_| Ok((event()?, event()?)))
            .collect::<cake_rmsnorm::Result<Vec<_>>>()?;
        let graph = Graph::capture(cuda, || {
            for (start, end) in &events {
                if cache == Cache::Cold {
                    self.flush()?;
                }
                start.record(cuda)?;
                work()?;
                end.record(cuda)?;
            }
            Ok(())
        })?;
        let mut samples = Vec::with_capacity(repeats.batch * repeats.batches);
        for batch in 0..=repeats.batches {
            // SAFETY: the captured work uses buffers of the caller and of this timer, which live
            // until it has completed, below.
            unsafe { graph.launch(cuda)? };
            cuda.synchronize()?;
            if batch > 0 {
                for (start, end) in &events {
                    samples.push(end.microseconds_since(start)?);
                }
            }
        }
        Ok(samples)
    }

    unsafe fn copy(&self, how: Copy, to: u64, from: u64, bytes: u64) -> cake_rmsnorm::Result<()> {
        match how {
            // SAFETY: the caller's obligations.
            Copy::Driver => unsafe { self.cuda().copy(to, from, bytes as usize) },
            Copy::Kernel => {
                let words = (bytes / size_of::<Words4>() as u64) as u32;
                let params = CopyParams {
                    from: from as *const Words4,
                    to: to as *mut Words4,
                    words,
                };
                let grid = words.div_ceil(copied_words(THREADS)).max(1);
                // SAFETY: the caller's obligations.
                unsafe { self.launch(Program::Copy, grid, &params) }
            }
        }
    }

    fn flush_bytes(&self) -> u64 {
        self.zeros.len() as u64
    }

    fn maker_name(&self) -> String {
        self.cuda().device().name().to_owned()
    }

    fn versions(&self) -> (String, String) {
        let cuda = self.cuda().device().driver_version();
        let cuda = cuda.map_or("-".to_owned(), |(major, minor)| format!("{major}.{minor}"));
        (cuda, driver_version())
    }
}
