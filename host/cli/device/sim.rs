//! The kernels themselves, under the simulator.

use super::{Buffer, Device, Planning};
use crate::cli::error::Result;
use crate::cli::progress::Progress;
use cake_rmsnorm::backend::sim::{Sim, SimBuffer};
use cake_rmsnorm::backend::{Backend, Launcher};
use cake_rmsnorm::plan::Routes;
use std::sync::Arc;

/// A simulated GPU.
pub struct SimDevice(Sim);

impl SimDevice {
    /// A simulated GPU that shows its progress.
    pub fn new(planning: &Planning, progress: &Progress) -> Self {
        let progress = progress.clone();
        let sim = Sim::new().on_block(move |block| {
            progress.detail(block.kernel, block.finished, block.grid);
        });
        let sim = match planning.sm_count {
            Some(sm_count) => sim.with_sm_count(sm_count),
            None => sim,
        };
        SimDevice(match &planning.routes {
            Some(routes) => sim.with_routes(Arc::clone(routes)),
            None => sim,
        })
    }
}

impl Device for SimDevice {
    fn kind(&self) -> &'static str {
        "sim"
    }

    fn name(&self) -> String {
        let sms = Backend::properties(&self.0).sm_count;
        format!("sim (the kernels, simulated on the CPU with every check; {sms} multiprocessors)")
    }

    fn alloc(&self, name: &'static str, bytes: usize) -> Result<Box<dyn Buffer>> {
        Ok(Box::new(SimMemory(self.0.alloc(name, bytes))))
    }

    fn backend(&self) -> &dyn Backend {
        &self.0
    }

    fn launcher(&self) -> Option<&dyn Launcher> {
        Some(&self.0)
    }

    fn backend_by(&self, routes: Arc<Routes>, sm_count: u32) -> Option<Box<dyn Backend + '_>> {
        let sim = self.0.clone().with_routes(routes);
        Some(Box::new(sim.with_sm_count(sm_count)))
    }

    fn synchronize(&self) -> Result<()> {
        Ok(()) // calls return when the work is done
    }

    fn guard_bytes(&self) -> usize {
        0
    }
}

struct SimMemory(SimBuffer);

impl Buffer for SimMemory {
    fn address(&self) -> u64 {
        self.0.address()
    }

    fn write_at(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        let len = bytes.len().min(self.0.len().saturating_sub(at));
        Ok(self.0.part(at, len)?.write(&bytes[..len])?)
    }

    fn fill(&mut self, pattern: &[u8]) -> Result<()> {
        let bytes: Vec<u8> = pattern.iter().copied().cycle().take(self.0.len()).collect();
        Ok(self.0.write(&bytes)?)
    }

    fn read_at(&self, at: usize, bytes: &mut [u8]) -> Result<()> {
        let len = bytes.len().min(self.0.len().saturating_sub(at));
        bytes[..len].copy_from_slice(&self.0.part(at, len)?.read()?);
        Ok(())
    }

    fn poison(&mut self, _: u8) -> Result<()> {
        // A kernel that reads it is stopped, whatever the bytes are.
        Ok(self.0.forget()?)
    }
}
