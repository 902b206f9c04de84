//! Launching kernels.

use crate::engine;
use crate::{Fault, Memory, Schedule};

/// Which checks a run makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checks {
    /// All of them.
    #[default]
    All,
    /// None: several times faster. The kernel's own obligations stand.
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
}

/// How to run launches.
#[derive(Clone, Debug)]
pub struct Simulator {
    pub(crate) schedule: Schedule,
    pub(crate) checks: Checks,
    pub(crate) stack_bytes: usize,
}

impl Default for Simulator {
    fn default() -> Self {
        Self::new()
    }
}

impl Simulator {
    /// All checks, the plain schedule.
    pub fn new() -> Self {
        let stack_bytes = if cfg!(debug_assertions) {
            256 << 10
        } else {
            64 << 10
        };
        Self {
            schedule: Schedule::from_seed(0),
            checks: Checks::All,
            stack_bytes,
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

    /// Runs the launches of one stream, in order, to completion.
    ///
    /// # Errors
    /// The first fault found. Memory is then in an undefined, initialised state.
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
}
