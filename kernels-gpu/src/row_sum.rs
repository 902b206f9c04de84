//! Canonical row sums: the same additions whichever threads make them.
//!
//! A tile's 32 lane values are added by an xor butterfly over distances 16, 8, 4, 2, 1; the tile
//! sums likewise, lane l first adding tile sums l, l + 32, … in order from +0. Addition commutes,
//! so all lanes of a butterfly hold the same bits, and two tiles may share one exchange step:
//! each half of the warp goes on with one of them.

use crate::arith::unroll;
use crate::device::{shared, thread, warp};

/// Bytes of shared memory that [`BlockSum`] needs.
pub const SCRATCH_BYTES: u32 = 2 * SLOTS * 4;
/// Tiles of the widest row.
const SLOTS: u32 = 256;

/// One exchange step for two values: lanes without `distance` in their index go on with `a`,
/// the others with `b`.
///
/// # Safety
/// - All 32 lanes of the warp reach this call together.
#[inline(always)]
unsafe fn exchange(a: f32, b: f32, distance: u32, lane: u32) -> f32 {
    let upper = lane & distance != 0;
    let (keep, send) = if upper { (b, a) } else { (a, b) };
    // SAFETY: the caller's obligation.
    keep + unsafe { warp::shuffle_xor(send, distance) }
}

/// The plain butterfly over `distance`, `distance / 2`, …, 1.
///
/// # Safety
/// - All 32 lanes of the warp reach this call together.
#[inline(always)]
unsafe fn butterfly<const DISTANCE: u32>(mut value: f32) -> f32 {
    unroll::<5>(|i| {
        let distance = 16 >> i;
        if distance <= DISTANCE {
            // SAFETY: the caller's obligation; the condition is a constant.
            value += unsafe { warp::shuffle_xor(value, distance) };
        }
    });
    value
}

/// Sums of a warp's tiles. Lane l holds the sum of tile [`tile_of_lane`]\(l\).
///
/// # Safety
/// - All 32 lanes of the warp reach this call together.
#[inline(always)]
unsafe fn tile_sums<const VECTORS: usize>(values: [f32; VECTORS], lane: u32) -> f32 {
    const { assert!(VECTORS <= 8 && VECTORS.is_power_of_two()) };
    let at = |v: usize| if v < VECTORS { values[v] } else { 0.0 };
    // SAFETY: the caller's obligation, for every step.
    unsafe {
        match VECTORS {
            1 => butterfly::<16>(at(0)),
            2 => butterfly::<8>(exchange(at(0), at(1), 16, lane)),
            4 => {
                let low = exchange(at(0), at(1), 16, lane);
                let high = exchange(at(2), at(3), 16, lane);
                butterfly::<4>(exchange(low, high, 8, lane))
            }
            _ => {
                let a = exchange(at(0), at(1), 16, lane);
                let b = exchange(at(2), at(3), 16, lane);
                let c = exchange(at(4), at(5), 16, lane);
                let d = exchange(at(6), at(7), 16, lane);
                let low = exchange(a, b, 8, lane);
                let high = exchange(c, d, 8, lane);
                butterfly::<2>(exchange(low, high, 4, lane))
            }
        }
    }
}

/// The tile whose sum lane `lane` holds after [`tile_sums`].
#[inline(always)]
fn tile_of_lane<const VECTORS: usize>(lane: u32) -> u32 {
    match VECTORS {
        1 => 0,
        2 => lane >> 4,
        4 => (lane >> 4) | (lane >> 3 & 1) << 1,
        _ => (lane >> 4) | (lane >> 3 & 1) << 1 | (lane >> 2 & 1) << 2,
    }
}

/// The row sum when one warp holds the whole row (at most 4 tiles).
///
/// # Safety
/// - All 32 lanes of the warp reach this call together.
#[inline(always)]
pub unsafe fn warp_row_sum<const VECTORS: usize>(values: [f32; VECTORS]) -> f32 {
    const { assert!(VECTORS <= 4) };
    let lane = thread::thread_idx_x() % 32;
    // Adding +0 first is lane l's "from +0"; the distances at which the other operand is an
    // absent tile's +0 change nothing after that.
    // SAFETY: the caller's obligation, for every step.
    unsafe {
        let sum = 0.0 + tile_sums::<VECTORS>(values, lane);
        match VECTORS {
            1 => sum,
            2 => sum + warp::shuffle_xor(sum, 16),
            _ => {
                let pairs = sum + warp::shuffle_xor(sum, 8);
                pairs + warp::shuffle_xor(pairs, 16)
            }
        }
    }
}

/// Row sums by all threads of a block, one barrier each: consecutive sums use the two halves of
/// the scratch in turn.
#[derive(Debug)]
pub struct BlockSum {
    scratch: u32,
    half: u32,
}

impl BlockSum {
    /// Sums through `scratch`, [`SCRATCH_BYTES`] of shared memory.
    #[inline(always)]
    pub fn new(scratch: u32) -> Self {
        Self { scratch, half: 0 }
    }

    /// First half of a sum: publishes the tile sums of the thread's warp, which holds tiles
    /// `VECTORS · warp` and following.
    ///
    /// # Safety
    /// - Every thread of the block reaches this call, then [`BlockSum::finish`].
    /// - The scratch belongs to this object alone.
    #[inline(always)]
    pub unsafe fn publish<const VECTORS: usize>(&mut self, values: [f32; VECTORS]) {
        let thread = thread::thread_idx_x();
        let (lane, warp) = (thread % 32, thread / 32);
        // SAFETY: all lanes are here; slots are below 32 warps · VECTORS ≤ 256.
        unsafe {
            let sum = tile_sums::<VECTORS>(values, lane);
            if lane.is_multiple_of(32 / VECTORS as u32) {
                let slot = warp * VECTORS as u32 + tile_of_lane::<VECTORS>(lane);
                shared::store_f32(self.scratch + self.half + 4 * slot, sum);
            }
        }
    }

    /// Second half: waits for all tile sums and adds them.
    ///
    /// # Safety
    /// - Every thread of the block reaches this call, after [`BlockSum::publish`].
    #[inline(always)]
    pub unsafe fn finish<const VECTORS: usize>(&mut self) -> f32 {
        let lane = thread::thread_idx_x() % 32;
        let slots = thread::block_dim_x() / 32 * VECTORS as u32;
        let mut sum = 0.0;
        // SAFETY: all threads are here; every slot below `slots` was written before the
        // barrier. Tiles outside the row hold +0, which changes nothing. The other half is
        // free: its readers came to this barrier.
        unsafe {
            thread::sync_threads();
            unroll::<VECTORS>(|i| {
                let slot = lane + 32 * i as u32;
                if slot < slots {
                    sum += shared::load_f32(self.scratch + self.half + 4 * slot);
                }
            });
            self.half ^= SLOTS * 4;
            butterfly::<16>(sum)
        }
    }

    /// A whole sum.
    ///
    /// # Safety
    /// - As [`BlockSum::publish`] and [`BlockSum::finish`].
    #[inline(always)]
    pub unsafe fn sum<const VECTORS: usize>(&mut self, values: [f32; VECTORS]) -> f32 {
        // SAFETY: the caller's obligations.
        unsafe {
            self.publish(values);
            self.finish::<VECTORS>()
        }
    }
}

/// Row sums of any number of tiles, one warp a tile, through one scratch area.
#[derive(Clone, Copy, Debug)]
pub struct TileSums {
    scratch: u32,
}

impl TileSums {
    /// Sums through `scratch`, [`SCRATCH_BYTES`] of shared memory.
    #[inline(always)]
    pub fn new(scratch: u32) -> Self {
        Self { scratch }
    }

    /// Publishes the sum of tile `tile`, whose lane values the warp holds.
    ///
    /// # Safety
    /// - All 32 lanes of the warp reach this call together, with the same `tile` < 256.
    /// - No other warp publishes the tile, or reads the scratch, without a barrier in between.
    #[inline(always)]
    pub unsafe fn publish(self, tile: u32, value: f32) {
        // SAFETY: the caller's obligations.
        unsafe {
            let sum = butterfly::<16>(value);
            if thread::thread_idx_x().is_multiple_of(32) {
                shared::store_f32(self.scratch + 4 * tile, sum);
            }
        }
    }

    /// Waits for the sums of `tiles` tiles and adds them.
    ///
    /// # Safety
    /// - Every thread of the block reaches this call; every tile was published.
    #[inline(always)]
    pub unsafe fn finish(self, tiles: u32) -> f32 {
        let mut sum = 0.0;
        let mut tile = thread::thread_idx_x() % 32;
        // SAFETY: all threads are here, and every tile's slot was written before the barrier.
        unsafe {
            thread::sync_threads();
            while tile < tiles {
                sum += shared::load_f32(self.scratch + 4 * tile);
                tile += 32;
            }
            butterfly::<16>(sum)
        }
    }
}
