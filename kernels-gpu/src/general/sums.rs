//! Row sums with one barrier each.

use crate::device::shared;
use crate::row_sum::{self, TileSums};

/// Bytes of shared memory for the row sums.
pub const SCRATCH_BYTES: u32 = 2 * row_sum::SCRATCH_BYTES;

/// Two places for the tile sums, used in turn: who publishes the sums after next has come past the
/// barrier of the next, hence everybody has read these.
pub(super) struct RowSums {
    half: u32,
}

impl RowSums {
    /// Through the first [`SCRATCH_BYTES`] of shared memory.
    #[inline(always)]
    pub fn new() -> Self {
        Self { half: 0 }
    }

    #[inline(always)]
    fn tiles(&self) -> TileSums {
        TileSums::new(shared::base() + self.half)
    }

    /// Publishes the sum of a tile.
    ///
    /// # Safety
    /// - All 32 lanes of the warp reach this call together, with the same `tile` < 256, which no
    ///   other warp publishes for this sum.
    #[inline(always)]
    pub unsafe fn publish(&self, tile: u32, value: f32) {
        // SAFETY: the caller's obligations; this place was read before the last barrier.
        unsafe { self.tiles().publish(tile, value) }
    }

    /// Waits for all tile sums and adds them.
    ///
    /// # Safety
    /// - Every thread of the block reaches this call; every tile was published.
    #[inline(always)]
    pub unsafe fn finish(&mut self, tiles: u32) -> f32 {
        // SAFETY: the caller's obligations.
        let sum = unsafe { self.tiles().finish(tiles) };
        self.half ^= row_sum::SCRATCH_BYTES;
        sum
    }
}
