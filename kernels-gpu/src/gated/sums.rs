//! Canonical row sums for the gated kernels: by some lanes of a warp, or by a block.

use crate::arith::unroll;
use crate::device::{thread, warp};
use crate::row_sum::{BlockSum, warp_row_sum};

/// Threads that share a row, and sum over it. Each holds `VECTORS` lane values.
pub trait RowSums<const VECTORS: usize> {
    /// One row sum.
    ///
    /// # Safety
    /// - Every thread of the warp (for a block: of the block) reaches this call together.
    unsafe fn one(&mut self, values: [f32; VECTORS]) -> f32;

    /// Two row sums.
    ///
    /// # Safety
    /// - As [`RowSums::one`].
    unsafe fn two(&mut self, a: [f32; VECTORS], b: [f32; VECTORS]) -> (f32, f32);

    /// Whether `flag` is set in any thread that makes row sums together with this one; threads of
    /// one row pass the same flag.
    ///
    /// # Safety
    /// - As [`RowSums::one`].
    unsafe fn any(&mut self, flag: bool) -> bool;
}

/// `LANES` lanes of a warp a row: 8, 16 (one vector each) or 32. The lanes of its tile that a
/// narrow row has not would add +0.
#[derive(Clone, Copy, Debug)]
pub struct LaneSums<const LANES: usize>;

/// The xor butterfly from `distance` down.
///
/// # Safety
/// - All 32 lanes of the warp reach this call together.
#[inline(always)]
unsafe fn butterfly(mut value: f32, distance: usize) -> f32 {
    unroll!(5, |i| {
        let step = 16 >> i;
        if step <= distance {
            // SAFETY: the caller's obligation; the condition is a constant.
            value += unsafe { warp::shuffle_xor(value, step as u32) };
        }
    });
    value
}

impl<const LANES: usize> LaneSums<LANES> {
    const HALF: u32 = LANES as u32 / 2;

    /// Whether the calling lane is in the upper half of a row's lanes.
    #[inline(always)]
    fn upper() -> bool {
        thread::thread_idx_x() & Self::HALF != 0
    }

    /// Two row sums at once: the lower half of the lanes gets that of `a`, the upper that of `b`.
    ///
    /// # Safety
    /// - All 32 lanes of the warp reach this call together.
    #[inline(always)]
    pub unsafe fn halves(self, a: f32, b: f32) -> f32 {
        let (keep, send) = if Self::upper() { (b, a) } else { (a, b) };
        // SAFETY: the caller's obligation.
        unsafe {
            let pair = keep + warp::shuffle_xor(send, Self::HALF);
            0.0 + butterfly(pair, LANES / 4)
        }
    }

    /// What the lower half of the lanes has, and what the upper half.
    ///
    /// # Safety
    /// - As [`LaneSums::halves`].
    #[inline(always)]
    pub unsafe fn both(self, mine: f32) -> (f32, f32) {
        // SAFETY: the caller's obligation.
        let other = unsafe { warp::shuffle_xor(mine, Self::HALF) };
        if Self::upper() {
            (other, mine)
        } else {
            (mine, other)
        }
    }
}

impl<const LANES: usize, const VECTORS: usize> RowSums<VECTORS> for LaneSums<LANES> {
    #[inline(always)]
    unsafe fn one(&mut self, values: [f32; VECTORS]) -> f32 {
        // SAFETY: the caller's obligation.
        unsafe {
            if LANES == 32 {
                warp_row_sum(values)
            } else {
                0.0 + butterfly(values[0], LANES / 2)
            }
        }
    }

    /// Of two values, each half of the lanes goes on with one.
    #[inline(always)]
    unsafe fn two(&mut self, a: [f32; VECTORS], b: [f32; VECTORS]) -> (f32, f32) {
        // SAFETY: the caller's obligation.
        unsafe {
            if VECTORS > 1 {
                return (self.one(a), self.one(b));
            }
            self.both(self.halves(a[0], b[0]))
        }
    }

    #[inline(always)]
    unsafe fn any(&mut self, flag: bool) -> bool {
        let mut flags = if flag { 1.0 } else { 0.0 };
        unroll!(2, |i| {
            let distance = 16 >> i;
            if distance >= LANES {
                // SAFETY: the caller's obligation; the condition is a constant.
                flags += unsafe { warp::shuffle_xor(flags, distance as u32) };
            }
        });
        flags > 0.0
    }
}

/// A whole block a row.
impl<const VECTORS: usize> RowSums<VECTORS> for BlockSum {
    #[inline(always)]
    unsafe fn one(&mut self, values: [f32; VECTORS]) -> f32 {
        // SAFETY: the caller's obligation.
        unsafe { self.sum(values) }
    }

    #[inline(always)]
    unsafe fn two(&mut self, a: [f32; VECTORS], b: [f32; VECTORS]) -> (f32, f32) {
        // SAFETY: the caller's obligation.
        let [a, b] = unsafe {
            self.publish([a, b]);
            self.finish::<2, VECTORS>()
        };
        (a, b)
    }

    /// The row is the block's, so all threads have the same flag.
    #[inline(always)]
    unsafe fn any(&mut self, flag: bool) -> bool {
        flag
    }
}
