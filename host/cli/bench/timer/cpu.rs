//! The golden implementation, timed by the clock.

use super::{Cache, Copy, Timer, Work};
use crate::cli::bench::case::Repeats;
use crate::cli::device::Device;
use crate::cli::device::host::HostDevice;
use crate::cli::error::Result;
use rayon::prelude::*;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Bytes that are read before a cold sample.
const FLUSH_BYTES: usize = 128 << 20;
/// Samples end after this long a batch, and after three at the earliest.
const BUDGET: Duration = Duration::from_millis(100);
/// Bytes that a thread copies at a time.
const CHUNK: usize = 1 << 20;

/// A CPU.
pub struct CpuTimer {
    device: HostDevice,
    flush: Vec<u64>,
}

impl CpuTimer {
    /// This machine.
    pub fn new() -> Self {
        Self {
            device: HostDevice,
            flush: vec![1; FLUSH_BYTES / size_of::<u64>()],
        }
    }

    fn flush(&self) {
        let sum: u64 = self.flush.par_iter().sum();
        black_box(sum);
    }
}

impl Timer for CpuTimer {
    fn device(&self) -> &dyn Device {
        &self.device
    }

    fn samples(&self, cache: Cache, repeats: Repeats, work: &mut Work<'_>) -> Result<Vec<f64>> {
        work()?;
        let mut samples = Vec::new();
        let begin = Instant::now();
        while samples.len() < repeats.batch * repeats.batches {
            if samples.len() >= 3 && begin.elapsed() > BUDGET * repeats.batches as u32 {
                break;
            }
            if cache == Cache::Cold {
                self.flush();
            }
            let start = Instant::now();
            work()?;
            samples.push(start.elapsed().as_secs_f64() * 1e6);
        }
        Ok(samples)
    }

    unsafe fn copy(&self, how: Copy, to: u64, from: u64, bytes: u64) -> cake_rmsnorm::Result<()> {
        let (to, from, bytes) = (to as usize, from as usize, bytes as usize);
        let copy = |start: usize, bytes: usize| {
            let from: *const u8 = std::ptr::with_exposed_provenance(from + start);
            let to: *mut u8 = std::ptr::with_exposed_provenance_mut(to + start);
            // SAFETY: inside the caller's ranges; chunks do not overlap.
            unsafe { to.copy_from_nonoverlapping(from, bytes) }
        };
        match how {
            Copy::Driver => copy(0, bytes),
            Copy::Kernel => (0..bytes)
                .into_par_iter()
                .step_by(CHUNK)
                .for_each(|start| copy(start, CHUNK.min(bytes - start))),
        }
        Ok(())
    }

    fn flush_bytes(&self) -> u64 {
        FLUSH_BYTES as u64
    }

    fn maker_name(&self) -> String {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == "model name").then(|| value.trim().to_owned())
        });
        let threads = rayon::current_num_threads();
        format!("{}, {threads} threads", model.as_deref().unwrap_or("CPU"))
    }
}
