//! A device that plans as a task says, loads what is launched alone, and notes what was launched.

use super::tasks::Task;
use crate::cli::device::{Buffer, Device};
use crate::cli::error::Result;
use cake_rmsnorm::backend::{Backend, Bound, Launcher};
use cake_rmsnorm::kernels::contract::Kernel;
use cake_rmsnorm::plan::{DeviceProperties, Routes};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A device whose launches are noted. Its buffers have no guards behind them, so that whoever
/// watches memory sees a write behind the end.
pub struct Watched<'a> {
    inner: &'a dyn Device,
    launcher: Noted<'a>,
    poisons: bool,
}

struct Noted<'a> {
    inner: &'a dyn Launcher,
    properties: DeviceProperties,
    routes: Arc<Routes>,
    launched: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Watched<'a> {
    /// For a task; `poisons` says whether memory is written before kernels write it.
    pub fn new(
        inner: &'a dyn Device,
        launcher: &'a dyn Launcher,
        task: &Task,
        poisons: bool,
    ) -> Self {
        let properties = *launcher.properties();
        Self {
            inner,
            launcher: Noted {
                inner: launcher,
                properties: task.properties(&properties),
                routes: task.routes(),
                launched: RefCell::default(),
            },
            poisons,
        }
    }

    /// The kernels that were launched.
    pub fn launched(&self) -> BTreeSet<&'static str> {
        self.launcher.launched.borrow().clone()
    }
}

impl Launcher for Noted<'_> {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Nothing: an operator's preparation would load what this task does not launch.
    fn load(&self, _: &[&'static Kernel]) -> cake_rmsnorm::Result<()> {
        Ok(())
    }

    unsafe fn launch(&self, launches: &[Bound]) -> cake_rmsnorm::Result<()> {
        for Bound { launch, .. } in launches {
            self.inner.load(&[launch.kernel])?;
            self.launched.borrow_mut().insert(launch.kernel.name);
        }
        // SAFETY: the caller's obligations.
        unsafe { self.inner.launch(launches) }
    }
}

impl Device for Watched<'_> {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn alloc(&self, name: &'static str, bytes: usize) -> Result<Box<dyn Buffer>> {
        let inner = self.inner.alloc(name, bytes)?;
        let poisons = self.poisons;
        Ok(Box::new(Memory { inner, poisons }))
    }

    fn backend(&self) -> &dyn Backend {
        &self.launcher
    }

    fn launcher(&self) -> Option<&dyn Launcher> {
        Some(&self.launcher)
    }

    fn synchronize(&self) -> Result<()> {
        self.inner.synchronize()
    }

    fn guard_bytes(&self) -> usize {
        0
    }
}

struct Memory {
    inner: Box<dyn Buffer>,
    poisons: bool,
}

impl Buffer for Memory {
    fn address(&self) -> u64 {
        self.inner.address()
    }

    fn write_at(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        self.inner.write_at(at, bytes)
    }

    fn fill(&mut self, pattern: &[u8]) -> Result<()> {
        self.inner.fill(pattern)
    }

    fn read_at(&self, at: usize, bytes: &mut [u8]) -> Result<()> {
        self.inner.read_at(at, bytes)
    }

    fn poison(&mut self, byte: u8) -> Result<()> {
        match self.poisons {
            true => self.inner.poison(byte),
            false => Ok(()),
        }
    }
}
