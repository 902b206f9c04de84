//! Launching kernels.

use crate::engine;
use crate::{Fault, Memory, Mutation, Schedule};

/// Which checks a run makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checks {
    /// All of them.
    #[default]
    All,
    /// None, but that shared addresses are in bounds. The kernel's own obligations stand; copies
    /// of single words and bulk copies happen when they are issued.
    Off,
}

/// One kernel launch.
#[derive(Clone, Copy)]
pub struct Launch<'k> {
    /// The name that faults carry.
    pub name: &'k str,
    /// Blocks.
    pub grid: u32,
    /// Threads a block: a multiple of 32, at most 1024.
    pub block: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// May start before the preceding launch has completed (see [`crate::device::dependent`]).
    pub dependent: bool,
    /// All blocks are resident at once, whatever the schedule says.
    pub cooperative: bool,
    /// What one thread does.
    pub body: &'k (dyn Fn() + Sync + 'k),
}

impl<'k> Launch<'k> {
    /// A launch without shared memory that waits for its predecessor.
    pub fn new(name: &'k str, grid: u32, block: u32, body: &'k (dyn Fn() + Sync + 'k)) -> Self {
        Self {
            name,
            grid,
            block,
            shared_bytes: 0,
            dependent: false,
            cooperative: false,
            body,
        }
    }

    /// With `bytes` bytes of dynamic shared memory a block.
    pub fn shared_bytes(self, bytes: u32) -> Self {
        Self {
            shared_bytes: bytes,
            ..self
        }
    }

    /// May start before the preceding launch has completed.
    pub fn dependent(self, dependent: bool) -> Self {
        Self { dependent, ..self }
    }

    /// All blocks are resident at once: they may wait for each other.
    pub fn cooperative(self, cooperative: bool) -> Self {
        Self {
            cooperative,
            ..self
        }
    }
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'p> {
    /// The launch's name.
    pub kernel: &'p str,
    /// Blocks of the launch that have ended.
    pub finished: u32,
    /// Blocks of the launch.
    pub grid: u32,
}

/// How to run launches.
#[derive(Clone, Copy)]
pub struct Simulator<'h> {
    pub(crate) schedule: Schedule,
    pub(crate) checks: Checks,
    pub(crate) workers: usize,
    pub(crate) stack_bytes: usize,
    pub(crate) on_block: Option<&'h (dyn Fn(Progress<'_>) + Sync)>,
    pub(crate) mutation: Option<&'h dyn Mutation>,
}

impl Default for Simulator<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'h> Simulator<'h> {
    /// All checks, the plain schedule, one OS thread for each core.
    pub fn new() -> Self {
        Self {
            schedule: Schedule::PLAIN,
            checks: Checks::All,
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            stack_bytes: if cfg!(debug_assertions) {
                256 << 10
            } else {
                64 << 10
            },
            on_block: None,
            mutation: None,
        }
    }

    /// With the schedule of a seed.
    pub fn seed(self, seed: u64) -> Self {
        self.schedule(Schedule::from_seed(seed))
    }

    /// With a schedule.
    pub fn schedule(self, schedule: Schedule) -> Self {
        Self { schedule, ..self }
    }

    /// With these checks.
    pub fn checks(self, checks: Checks) -> Self {
        Self { checks, ..self }
    }

    /// On `workers` OS threads. The results of a kernel without faults do not depend on them;
    /// which of several faults is found first may, unless there is one worker.
    pub fn workers(self, workers: usize) -> Self {
        Self {
            workers: workers.max(1),
            ..self
        }
    }

    /// With `bytes` bytes of stack for each simulated thread.
    pub fn stack_bytes(self, bytes: usize) -> Self {
        Self {
            stack_bytes: bytes,
            ..self
        }
    }

    /// Calls `hook` on the calling thread whenever a block has ended.
    pub fn on_block(self, hook: &'h (dyn Fn(Progress<'_>) + Sync)) -> Self {
        Self {
            on_block: Some(hook),
            ..self
        }
    }

    /// With faults put into the kernels, to see that they are noticed.
    pub fn mutation(self, mutation: &'h dyn Mutation) -> Self {
        Self {
            mutation: Some(mutation),
            ..self
        }
    }

    /// Runs the launches of one stream, in order, to completion.
    ///
    /// # Errors
    /// The first fault found. What the kernels have written until then stays.
    #[track_caller]
    pub fn run(&self, memory: &mut Memory, launches: &[Launch<'_>]) -> Result<Report, Fault> {
        engine::run(self, memory, launches)
    }
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Blocks that ran.
    pub blocks: u64,
    /// Times a thread was resumed.
    pub switches: u64,
    /// Times the blocks stopped for the grid to serve atomics or to start more blocks.
    pub rounds: u64,
    /// A hash of the order in which everything ran.
    pub order: u64,
}
