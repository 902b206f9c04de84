//! Canonical row sums: the same additions whichever threads make them.
//!
//! A tile's 32 lane values are added by an xor butterfly over distances 16, 8, 4, 2, 1; the tile
//! sums likewise, lane l first adding tile sums l, l + 32, … in order from +0. Addition commutes,
//! so all lanes of a butterfly hold the same bits, and two tiles may share one exchange step:
//! each half of the warp goes on with one of them.

use crate::arith::unroll;
use crate::device::{shared, thread, warp};

/// Bytes of shared memory that [`BlockSum`] and [`TileSums`] need.
pub const SCRATCH_BYTES: u32 = 1024;
/// Tile sums of one step: two rows of 64 tiles.
const SLOTS: u32 = 128;

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
    unroll!(5, |i| {
        let distance = 16 >> i;
        if distance <= DISTANCE {
            // SAFETY: the caller's obligation; the condition is a constant.
            value += unsafe { warp::shuffle_xor(value, distance) };
        }
    });
    value
}

/// Values that a warp sums at once, at most.
const VALUES: usize = 8;

/// Sums over a warp's lanes of `count` values each (1, 2, 4 or 8, a constant): lane l gets the
/// sum of value [`value_of_lane`]\(l\).
///
/// # Safety
/// - All 32 lanes of the warp reach this call together.
#[inline(always)]
unsafe fn lane_sums(v: [f32; VALUES], count: usize, lane: u32) -> f32 {
    // SAFETY: the caller's obligation, for every step.
    unsafe {
        match count {
            1 => butterfly::<16>(v[0]),
            2 => butterfly::<8>(exchange(v[0], v[1], 16, lane)),
            4 => {
                let low = exchange(v[0], v[1], 16, lane);
                let high = exchange(v[2], v[3], 16, lane);
                butterfly::<4>(exchange(low, high, 8, lane))
            }
            _ => {
                let a = exchange(v[0], v[1], 16, lane);
                let b = exchange(v[2], v[3], 16, lane);
                let c = exchange(v[4], v[5], 16, lane);
                let d = exchange(v[6], v[7], 16, lane);
                let low = exchange(a, b, 8, lane);
                let high = exchange(c, d, 8, lane);
                butterfly::<2>(exchange(low, high, 4, lane))
            }
        }
    }
}

/// The value whose sum lane `lane` holds after [`lane_sums`] of `count` values.
#[inline(always)]
fn value_of_lane(count: usize, lane: u32) -> u32 {
    match count {
        1 => 0,
        2 => lane >> 4,
        4 => (lane >> 4) | (lane >> 3 & 1) << 1,
        _ => (lane >> 4) | (lane >> 3 & 1) << 1 | (lane >> 2 & 1) << 2,
    }
}

/// `values` behind each other, then zeros.
#[inline(always)]
fn flatten<const ROWS: usize, const VECTORS: usize>(
    values: [[f32; VECTORS]; ROWS],
) -> [f32; VALUES] {
    const { assert!(ROWS * VECTORS <= VALUES && (ROWS * VECTORS).is_power_of_two()) };
    let mut flat = [0.0; VALUES];
    unroll!(ROWS, |r| unroll!(VECTORS, |v| flat[r * VECTORS + v] =
        values[r][v]));
    flat
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
        let sum = 0.0 + lane_sums(flatten([values]), VECTORS, lane);
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

/// Row sums by a group of whole warps of a block, one barrier each: consecutive sums use the two
/// halves of the scratch in turn.
#[derive(Debug)]
pub struct BlockSum {
    scratch: u32,
    half: u32,
    group: Group,
}

/// Whole, consecutive warps of a block that share a row.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Position in the block.
    pub index: u32,
    /// Threads, the same in every group.
    pub threads: u32,
    /// The calling thread's index in the group.
    pub thread: u32,
}

impl Group {
    /// The calling thread's group, when groups have `threads` threads; at most 15 fit a block.
    #[inline(always)]
    pub fn of_thread(threads: u32) -> Self {
        let thread = thread::thread_idx_x();
        let threads = threads.max(32); // tells the compiler that it is not zero
        Self {
            index: thread / threads,
            threads,
            thread: thread % threads,
        }
    }

    /// The whole block as one group.
    #[inline(always)]
    pub fn block() -> Self {
        Self {
            index: 0,
            threads: thread::block_dim_x(),
            thread: thread::thread_idx_x(),
        }
    }

    /// Groups of the block.
    #[inline(always)]
    pub fn count(self) -> u32 {
        thread::block_dim_x() / self.threads.max(32)
    }

    /// Waits for the whole group.
    ///
    /// # Safety
    /// - Every thread of the group reaches this call, the same number of times.
    #[inline(always)]
    unsafe fn sync(self) {
        // SAFETY: a barrier for each group; barrier 0 is the block's.
        unsafe { thread::sync_group(self.index + 1, self.threads) }
    }
}

impl BlockSum {
    /// Sums by `group` through its part of `scratch`, which has [`SCRATCH_BYTES`] of shared memory
    /// for each group.
    #[inline(always)]
    pub fn new(scratch: u32, group: Group) -> Self {
        Self {
            scratch: scratch + group.index * SCRATCH_BYTES,
            half: 0,
            group,
        }
    }

    /// First half of the sums of `ROWS` rows: publishes the tile sums of the thread's warp, which
    /// holds tiles `VECTORS · warp` and following of each row.
    ///
    /// # Safety
    /// - Every thread of the group reaches this call, then [`BlockSum::finish`].
    /// - The scratch belongs to this object alone.
    #[inline(always)]
    pub unsafe fn publish<const ROWS: usize, const VECTORS: usize>(
        &mut self,
        values: [[f32; VECTORS]; ROWS],
    ) {
        let count = ROWS * VECTORS;
        let (lane, warp) = (self.group.thread % 32, self.group.thread / 32);
        // SAFETY: all lanes are here; slots of a row are below 32 warps · VECTORS, all of them
        // below SLOTS.
        unsafe {
            let sum = lane_sums(flatten(values), count, lane);
            if lane.is_multiple_of(32 / count as u32) {
                let value = value_of_lane(count, lane);
                let (row, v) = (value / VECTORS as u32, value % VECTORS as u32);
                let slot = row * (SLOTS / ROWS as u32) + warp * VECTORS as u32 + v;
                shared::store_f32(self.scratch + self.half + 4 * slot, sum);
            }
        }
    }

    /// Second half: waits for all tile sums and adds them, row by row (one or two rows).
    ///
    /// # Safety
    /// - Every thread of the group reaches this call, after [`BlockSum::publish`].
    #[inline(always)]
    pub unsafe fn finish<const ROWS: usize, const VECTORS: usize>(&mut self) -> [f32; ROWS] {
        const { assert!(ROWS == 1 || ROWS == 2) };
        let lane = self.group.thread % 32;
        let slots = self.group.threads / 32 * VECTORS as u32;
        let mut sums = [0.0; ROWS];
        // SAFETY: all threads of the group are here; every slot below `slots` was written before the
        // barrier. Tiles outside the row hold +0, which changes nothing. The other half is
        // free: its readers came to this barrier.
        unsafe {
            self.group.sync();
            unroll!(ROWS, |row| {
                unroll!(VECTORS, |i| {
                    let slot = lane + 32 * i as u32;
                    if slot < slots {
                        let slot = row as u32 * (SLOTS / ROWS as u32) + slot;
                        sums[row] += shared::load_f32(self.scratch + self.half + 4 * slot);
                    }
                });
            });
            self.half ^= SLOTS * 4;
            if ROWS == 1 {
                sums[0] = butterfly::<16>(sums[0]);
            } else {
                let sum = butterfly::<8>(exchange(sums[0], sums[ROWS - 1], 16, lane));
                unroll!(ROWS, |row| sums[row] =
                    warp::shuffle_idx(sum, 16 * row as u32));
            }
        }
        sums
    }

    /// The sum of one row.
    ///
    /// # Safety
    /// - As [`BlockSum::publish`] and [`BlockSum::finish`].
    #[inline(always)]
    pub unsafe fn sum<const VECTORS: usize>(&mut self, values: [f32; VECTORS]) -> f32 {
        // SAFETY: the caller's obligations.
        unsafe {
            self.publish([values]);
            self.finish::<1, VECTORS>()[0]
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

    /// Publishes the sums of tiles `first` and following, of which the warp holds the lane values.
    ///
    /// # Safety
    /// - As [`TileSums::publish`].
    #[inline(always)]
    pub unsafe fn publish_several<const VECTORS: usize>(self, first: u32, values: [f32; VECTORS]) {
        let lane = thread::thread_idx_x() % 32;
        // SAFETY: the caller's obligations.
        unsafe {
            let sum = lane_sums(flatten([values]), VECTORS, lane);
            if lane.is_multiple_of(32 / VECTORS as u32) {
                let tile = first + value_of_lane(VECTORS, lane);
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

    /// As [`TileSums::finish`], for at most 64 tiles.
    ///
    /// # Safety
    /// - As [`TileSums::finish`].
    #[inline(always)]
    pub unsafe fn finish_few(self, tiles: u32) -> f32 {
        let lane = thread::thread_idx_x() % 32;
        let mut sum = 0.0;
        // SAFETY: all threads are here, and every tile's slot was written before the barrier.
        unsafe {
            thread::sync_threads();
            unroll!(2, |i| {
                let tile = lane + 32 * i as u32;
                if tile < tiles {
                    sum += shared::load_f32(self.scratch + 4 * tile);
                }
            });
            butterfly::<16>(sum)
        }
    }
}
