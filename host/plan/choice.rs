//! What a route may say: a program, and what it leaves open.

use cake_rmsnorm_kernels::contract::Program;

/// A program with what its contract leaves open. What a program does not ask is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    /// The program.
    pub program: Program,
    /// Warps of a block, where H does not say. Of [`Program::BackwardBlock`] at most: as many
    /// groups as fit.
    pub warps: u32,
    /// Threads that stay on a multiprocessor, where blocks take tasks in turns: as many blocks as
    /// that makes, and one at least.
    pub resident_threads: u32,
    /// log₂ of the leaves of a run of [`Program::BackwardBlock`]; `None`: worked out from T, H
    /// and the device.
    pub run_log2: Option<u32>,
}

impl Choice {
    /// The program with one warp a block and one block a multiprocessor.
    #[must_use]
    pub const fn of(program: Program) -> Self {
        Self {
            program,
            warps: 1,
            resident_threads: 0,
            run_log2: None,
        }
    }

    /// With `warps` warps a block.
    #[must_use]
    pub const fn warps(self, warps: u32) -> Self {
        Self { warps, ..self }
    }

    /// With `resident_threads` threads that stay on a multiprocessor.
    #[must_use]
    pub const fn resident_threads(self, resident_threads: u32) -> Self {
        Self {
            resident_threads,
            ..self
        }
    }

    /// Threads of a block of [`Choice::warps`] warps.
    pub(super) const fn block(&self) -> u32 {
        self.warps.saturating_mul(32)
    }

    /// Blocks that stay on a device, of `block` threads each.
    pub(super) fn resident(&self, block: u32, multiprocessors: u32) -> u64 {
        let blocks = self.resident_threads.checked_div(block).unwrap_or(0);
        u64::from(multiprocessors) * u64::from(blocks.max(1))
    }
}
