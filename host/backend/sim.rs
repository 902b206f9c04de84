//! The kernels themselves on the CPU, under the simulator of `cake-rmsnorm-simt`, which finds
//! races, bad accesses and misused barriers while they run.

use super::launcher::{Bound, Launcher};
use crate::error::{Error, Result};
use crate::plan::{DeviceProperties, Routes};
use cake_rmsnorm_simt::{
    Buffer, Checks, Contents, Launch, Memory, Mutation, Progress, Rights, Schedule, Simulator,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Called after every block.
type BlockHook = dyn Fn(Progress<'_>) + Send + Sync;

/// A simulated GPU. Calls return when the work is done. Kernels may touch memory of
/// [`Sim::alloc`] alone; an access elsewhere is an error that names kernel, thread and line.
#[derive(Clone)]
pub struct Sim {
    properties: DeviceProperties,
    memory: Arc<Mutex<Memory>>,
    schedule: Schedule,
    checks: Checks,
    workers: Option<usize>,
    on_block: Option<Arc<BlockHook>>,
    mutation: Option<Arc<dyn Mutation + Send>>,
    routes: Option<Arc<Routes>>,
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sim")
            .field("properties", &self.properties)
            .field("schedule", &self.schedule)
            .field("checks", &self.checks)
            .finish_non_exhaustive()
    }
}

impl Default for Sim {
    fn default() -> Self {
        Self::new()
    }
}

impl Sim {
    /// A device like an H200 with 4 multiprocessors, all checks, and the plain schedule.
    #[must_use]
    pub fn new() -> Self {
        Self {
            properties: DeviceProperties::H200.with_sm_count(4),
            memory: Arc::new(Mutex::new(Memory::new())),
            schedule: Schedule::PLAIN,
            checks: Checks::All,
            workers: None,
            on_block: None,
            mutation: None,
            routes: None,
        }
    }

    /// Plans as for a device with `sm_count` multiprocessors. Changes no bit of any output.
    #[must_use]
    pub fn with_sm_count(self, sm_count: u32) -> Self {
        Self {
            properties: self.properties.with_sm_count(sm_count),
            ..self
        }
    }

    /// Plans as for `properties`.
    #[must_use]
    pub fn with_properties(self, properties: DeviceProperties) -> Self {
        Self { properties, ..self }
    }

    /// Plans by these routes. Changes no bit of any output, but perhaps the workspace's size.
    #[must_use]
    pub fn with_routes(self, routes: Arc<Routes>) -> Self {
        Self {
            routes: Some(routes),
            ..self
        }
    }

    /// Runs threads, blocks and copies in this order.
    #[must_use]
    pub fn with_schedule(self, schedule: Schedule) -> Self {
        Self { schedule, ..self }
    }

    /// Makes these checks.
    #[must_use]
    pub fn with_checks(self, checks: Checks) -> Self {
        Self { checks, ..self }
    }

    /// Runs blocks on `workers` OS threads instead of one for each core. Changes no bit.
    #[must_use]
    pub fn with_workers(self, workers: usize) -> Self {
        Self {
            workers: Some(workers),
            ..self
        }
    }

    /// Calls `hook` after every block.
    #[must_use]
    pub fn on_block(self, hook: impl Fn(Progress<'_>) + Send + Sync + 'static) -> Self {
        Self {
            on_block: Some(Arc::new(hook)),
            ..self
        }
    }

    /// Puts faults into the kernels, to see that the checks or a comparison of bits notice them: a
    /// [`Mutation`] leaves out synchronisations and moves accesses by their place in the source.
    #[must_use]
    pub fn with_mutation(self, mutation: Arc<dyn Mutation + Send>) -> Self {
        Self {
            mutation: Some(mutation),
            ..self
        }
    }

    /// `bytes` bytes that kernels must write before they read; `name` appears in errors.
    #[must_use]
    pub fn alloc(&self, name: &str, bytes: usize) -> SimBuffer {
        let buffer = self.memory().alloc(name, bytes);
        SimBuffer {
            memory: Arc::clone(&self.memory),
            buffer,
        }
    }

    /// Memory that somebody else owns, as if it had been allocated: kernels must write it before they
    /// read it.
    ///
    /// # Errors
    /// - [`Error::Simulator`] when the range overlaps one that kernels may touch already.
    ///
    /// # Safety
    /// - The range stays valid for reads and writes as long as the simulator and its clones.
    /// - Nobody else accesses it while a call runs.
    pub unsafe fn register(&self, name: &str, start: *mut u8, bytes: usize) -> Result<SimBuffer> {
        let (rights, contents) = (Rights::ReadWrite, Contents::Uninitialised);
        // SAFETY: the caller's obligations.
        let buffer = unsafe { self.memory().register(name, start, bytes, rights, contents) };
        Ok(SimBuffer {
            memory: Arc::clone(&self.memory),
            buffer: buffer.map_err(|error| Error::Simulator(error.to_string()))?,
        })
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Launcher for Sim {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn routes(&self) -> &Routes {
        self.routes.as_deref().unwrap_or(Routes::built_in())
    }

    unsafe fn launch(&self, launches: &[Bound]) -> Result<()> {
        let bodies: Vec<_> = launches
            .iter()
            .map(|bound| {
                let (run, params) = (bound.launch.kernel.run, bound.params.expose_provenance());
                // SAFETY: the parameter struct outlives the run, as the caller promises.
                move || unsafe { run(std::ptr::with_exposed_provenance(params)) }
            })
            .collect();
        let launches: Vec<_> = launches
            .iter()
            .zip(&bodies)
            .map(|(Bound { launch, .. }, body)| {
                Launch::new(launch.kernel.name, launch.grid, launch.block, body)
                    .shared_bytes(launch.shared_bytes)
                    .dependent(launch.dependent)
            })
            .collect();
        let mut simulator = Simulator::new().schedule(self.schedule).checks(self.checks);
        if let Some(workers) = self.workers {
            simulator = simulator.workers(workers);
        }
        if let Some(hook) = &self.on_block {
            simulator = simulator.on_block(&**hook);
        }
        if let Some(mutation) = &self.mutation {
            simulator = simulator.mutation(&**mutation);
        }
        let run = simulator.run(&mut self.memory(), &launches);
        run.map(|_| ())
            .map_err(|fault| Error::Simulator(fault.to_string()))
    }
}

/// Memory of a simulated GPU.
#[derive(Clone, Debug)]
pub struct SimBuffer {
    memory: Arc<Mutex<Memory>>,
    buffer: Buffer,
}

impl SimBuffer {
    /// The address, a multiple of 256.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.buffer.ptr::<u8>().addr() as u64
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.bytes()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Overwrites the start of the buffer; kernels may read it from now on.
    ///
    /// # Errors
    /// - [`Error::Simulator`] when the values do not fit.
    pub fn write(&self, source: &[u8]) -> Result<()> {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory
            .write(self.buffer, source)
            .map_err(|error| Error::Simulator(error.to_string()))
    }

    /// The `bytes` bytes from byte `at` on.
    ///
    /// # Errors
    /// - [`Error::Simulator`] when the buffer has not so many.
    pub fn part(&self, at: usize, bytes: usize) -> Result<Self> {
        let buffer = self.buffer.part(at, bytes).ok_or_else(|| {
            let has = self.len();
            Error::Simulator(format!("{bytes} bytes from byte {at} on, of {has}"))
        })?;
        Ok(Self {
            memory: Arc::clone(&self.memory),
            buffer,
        })
    }

    /// Makes the contents garbage that kernels may not read.
    ///
    /// # Errors
    /// - [`Error::Simulator`] when the memory is not known.
    pub fn forget(&self) -> Result<()> {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory
            .forget(self.buffer)
            .map_err(|error| Error::Simulator(error.to_string()))
    }

    /// The contents.
    ///
    /// # Errors
    /// - [`Error::Simulator`] when the memory is not known.
    pub fn read(&self) -> Result<Vec<u8>> {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory
            .read(self.buffer)
            .map_err(|error| Error::Simulator(error.to_string()))
    }
}
