//! Canonical row sums by some lanes of a warp, of several rows at once.
//!
//! The additions are those of [`crate::row_sum`]: a butterfly for each tile, and one over the tiles'
//! sums. Of a tile of at most 128 elements 16 lanes are enough: the others would add +0. Two values
//! share an exchange step, after which each half of the lanes goes on with one of them.

use crate::arith::unroll;
use crate::device::{thread, warp};

/// Values that lanes sum at once, at most.
const VALUES: usize = 4;

/// `LANES` lanes of a warp (16 or 32) that hold `ROWS` rows of `VECTORS` tiles, one for 16 lanes;
/// 1, 2 or 4 tiles in all.
#[derive(Clone, Copy, Debug)]
pub struct LaneSums<const LANES: u32, const ROWS: usize, const VECTORS: usize>;

impl<const LANES: u32, const ROWS: usize, const VECTORS: usize> LaneSums<LANES, ROWS, VECTORS> {
    const COUNT: usize = ROWS * VECTORS;

    /// The row sums of the lanes' `values`: a lane gets that of row [`LaneSums::row`].
    ///
    /// # Safety
    /// - All 32 lanes of the warp reach this call together.
    #[inline(always)]
    pub unsafe fn of(values: [[f32; VECTORS]; ROWS]) -> f32 {
        const { assert!(LANES == 32 || LANES == 16 && VECTORS == 1) };
        const { assert!(Self::COUNT <= VALUES && Self::COUNT.is_power_of_two()) };
        let mut v = [0.0; VALUES];
        unroll!(ROWS, |r| unroll!(VECTORS, |t| v[r * VECTORS + t] =
            values[r][t]));
        let (half, quarter) = (LANES / 2, LANES / 4);
        // SAFETY: the caller's obligation, for every step.
        unsafe {
            let sum = match Self::COUNT {
                1 => butterfly(v[0], half),
                2 => butterfly(exchange(v[0], v[1], half), quarter),
                _ => {
                    let low = exchange(v[0], v[1], half);
                    let high = exchange(v[2], v[3], half);
                    butterfly(exchange(low, high, quarter), LANES / 8)
                }
            };
            // Lane l of the last butterfly first adds tile sum l, from +0; the distances at which
            // the other operand is an absent tile's +0 change nothing after that.
            let sum = 0.0 + sum;
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

    /// The row whose sum the calling lane gets.
    #[inline(always)]
    pub fn row() -> u32 {
        let upper = |distance| u32::from(thread::thread_idx_x() & distance != 0);
        let value = match Self::COUNT {
            1 => 0,
            2 => upper(LANES / 2),
            _ => upper(LANES / 2) | upper(LANES / 4) << 1,
        };
        value / VECTORS as u32
    }

    /// The first of the lanes, among the `LANES`, that get the sum of row `row`.
    #[inline(always)]
    fn leader(row: u32) -> u32 {
        let value = row * VECTORS as u32;
        (value & 1) * (LANES / 2) + (value >> 1 & 1) * (LANES / 4)
    }

    /// Whether the calling lane is the first of those that get the sum of [`LaneSums::row`].
    #[inline(always)]
    pub fn leads() -> bool {
        thread::thread_idx_x() % LANES == Self::leader(Self::row())
    }

    /// What the lanes that get the sum of row `row` have for `value`.
    ///
    /// # Safety
    /// - All 32 lanes of the warp reach this call together, with the same `row` < `ROWS`.
    #[inline(always)]
    pub unsafe fn spread(value: f32, row: usize) -> f32 {
        if ROWS == 1 {
            return value;
        }
        let first = thread::thread_idx_x() % 32 / LANES * LANES;
        // SAFETY: the caller's obligation.
        unsafe { warp::shuffle_idx(value, first + Self::leader(row as u32)) }
    }
}

/// One exchange step for two values: lanes without `distance` in their index go on with `a`, the
/// others with `b`.
///
/// # Safety
/// - All 32 lanes of the warp reach this call together.
#[inline(always)]
unsafe fn exchange(a: f32, b: f32, distance: u32) -> f32 {
    let upper = thread::thread_idx_x() & distance != 0;
    let (keep, send) = if upper { (b, a) } else { (a, b) };
    // SAFETY: the caller's obligation.
    keep + unsafe { warp::shuffle_xor(send, distance) }
}

/// The butterfly over `distance` (a constant), `distance / 2`, …, 1.
///
/// # Safety
/// - All 32 lanes of the warp reach this call together.
#[inline(always)]
unsafe fn butterfly(mut value: f32, distance: u32) -> f32 {
    unroll!(5, |i| {
        let step = 16 >> i;
        if step <= distance {
            // SAFETY: the caller's obligation; the condition is a constant.
            value += unsafe { warp::shuffle_xor(value, step) };
        }
    });
    value
}
