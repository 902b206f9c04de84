//! The arithmetic of the numerics contract, written once: the kernels, the simulator and the
//! golden CPU implementation all call these functions.
//!
//! Everything is IEEE-754 FP32, rounded to nearest even, with subnormals; no contraction, no
//! approximation. So any two machines that follow the same order of operations agree in every bit.

use crate::device::Words4;
use crate::device::math::{bf16x2, fma, sqrt};

/// Elements of a tile: 32 lanes of [`LANE_ELEMENTS`].
pub const TILE: u32 = 256;
/// Consecutive elements of one lane in one tile: a 16-byte vector of BF16.
pub const LANE_ELEMENTS: usize = 8;
/// The canonical quiet NaN that every execution stores for FP32 outputs.
pub const CANONICAL_NAN: u32 = 0x7fff_ffff;

/// Eight values of one lane.
pub type Lane = [f32; LANE_ELEMENTS];

/// `unroll!(N, |i| …)` calls the closure with 0 … N − 1, unrolled in the source: an array indexed
/// by `i` stays in registers whatever the compiler thinks of the loop. `N` is at most 8.
macro_rules! unroll {
    ($count:tt, |$index:pat_param| $body:expr) => {
        $crate::arith::unrolled::<$count>(
            // A closure that stays a function is compiled for the lowest instruction set, and
            // called; on the device none stays.
            #[cfg_attr(not(target_arch = "nvptx64"), inline(always))]
            |$index| $body,
        )
    };
}
pub(crate) use unroll;

/// What [`unroll!`] expands to.
#[inline(always)]
pub(crate) fn unrolled<const N: usize>(mut body: impl FnMut(usize)) {
    const { assert!(N <= 8, "unroll holds at most 8 steps") };
    if N > 0 {
        body(0);
    }
    if N > 1 {
        body(1);
    }
    if N > 2 {
        body(2);
    }
    if N > 3 {
        body(3);
    }
    if N > 4 {
        body(4);
    }
    if N > 5 {
        body(5);
    }
    if N > 6 {
        body(6);
    }
    if N > 7 {
        body(7);
    }
}

/// `f` with NaN replaced by [`CANONICAL_NAN`]: CPUs and GPUs differ in the NaN they produce.
#[inline(always)]
pub fn canonical(f: f32) -> f32 {
    if f.is_nan() {
        f32::from_bits(CANONICAL_NAN)
    } else {
        f
    }
}

/// Widens the BF16 value in bits 0 to 15 of `word`; exact.
#[inline(always)]
pub fn widen_low(word: u32) -> f32 {
    f32::from_bits(word << 16)
}

/// Widens the BF16 value in bits 16 to 31 of `word`; exact.
#[inline(always)]
pub fn widen_high(word: u32) -> f32 {
    f32::from_bits(word & 0xffff_0000)
}

/// Widens eight BF16 values; exact.
#[inline(always)]
pub fn widen(words: Words4) -> Lane {
    [
        widen_low(words.0),
        widen_high(words.0),
        widen_low(words.1),
        widen_high(words.1),
        widen_low(words.2),
        widen_high(words.2),
        widen_low(words.3),
        widen_high(words.3),
    ]
}

/// Rounds eight values to BF16.
#[inline(always)]
pub fn narrow(lane: &Lane) -> Words4 {
    Words4(
        bf16x2(lane[0], lane[1]),
        bf16x2(lane[2], lane[3]),
        bf16x2(lane[4], lane[5]),
        bf16x2(lane[6], lane[7]),
    )
}

/// h = BF16(x ⊕ residual) for eight elements.
#[inline(always)]
pub fn add_residual(x: Words4, residual: Words4) -> Words4 {
    let (x, residual) = (widen(x), widen(residual));
    let mut sum = [0.0; LANE_ELEMENTS];
    unroll!(LANE_ELEMENTS, |i| sum[i] = x[i] + residual[i]);
    narrow(&sum)
}

/// A lane's share of a row sum: v = fma(a, b, v) over its elements in order, from +0.
#[inline(always)]
pub fn lane_dot(a: &Lane, b: &Lane) -> f32 {
    let mut v = 0.0;
    unroll!(LANE_ELEMENTS, |i| v = fma(a[i], b[i], v));
    v
}

/// A power of two by which a row is multiplied so that its squares neither overflow nor vanish,
/// and its inverse.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowScale {
    /// Multiplies the row's elements.
    pub scale: f32,
    /// 1 / `scale`.
    pub inverse: f32,
}

/// 2⁸⁰.
const UP: f32 = f32::from_bits((127 + 80) << 23);
/// 2⁻⁸⁰.
const DOWN: f32 = f32::from_bits((127 - 80) << 23);
/// 2⁻⁹⁰: below it the mean square may have lost bits to underflow.
const SMALLEST_MEAN_SQUARE: f32 = f32::from_bits((127 - 90) << 23);
/// 2⁴⁰: beyond it, or below its inverse, rstd³ may leave the FP32 range.
const LARGEST_RSTD: f32 = f32::from_bits((127 + 40) << 23);
/// 2⁻⁴⁰.
const SMALLEST_RSTD: f32 = f32::from_bits((127 - 40) << 23);

impl RowScale {
    /// For rows whose squares vanish.
    pub const UP: RowScale = RowScale {
        scale: UP,
        inverse: DOWN,
    };
    /// For rows whose squares overflow.
    pub const DOWN: RowScale = RowScale {
        scale: DOWN,
        inverse: UP,
    };

    /// The lane's elements times the scale.
    #[inline(always)]
    pub fn apply(self, lane: &Lane) -> Lane {
        let mut scaled = [0.0; LANE_ELEMENTS];
        unroll!(LANE_ELEMENTS, |i| scaled[i] = lane[i] * self.scale);
        scaled
    }

    /// The elements of eight BF16 values times the scale, rounded to BF16 again: exact unless the
    /// result is subnormal.
    #[inline(always)]
    pub fn apply_words(self, words: Words4) -> Words4 {
        narrow(&self.apply(&widen(words)))
    }
}

/// H as a divisor of sums.
#[derive(Clone, Copy, Debug)]
pub struct Width {
    value: f32,
    /// Where H is a power of two: 1 / H, with which a product is the quotient, rounding included.
    inverse: Option<f32>,
}

impl Width {
    /// H, at most 65,536.
    #[inline(always)]
    pub fn new(hidden: u32) -> Self {
        let value = hidden as f32;
        let inverse = f32::from_bits(ONE_OVER_POWER.wrapping_sub(value.to_bits()));
        Self {
            value,
            inverse: (hidden & hidden.wrapping_sub(1) == 0).then_some(inverse),
        }
    }

    /// `sum` ⊘ H.
    #[inline(always)]
    pub fn divide(self, sum: f32) -> f32 {
        match self.inverse {
            Some(inverse) => sum * inverse,
            None => sum / self.value,
        }
    }
}

/// The bits of a power of two and of its inverse have this sum.
const ONE_OVER_POWER: u32 = 0x7f00_0000;

/// [`lane_dot`] of the elements times `scale` with themselves: of a row that is redone.
#[inline(always)]
pub fn scaled_square(lane: &Lane, scale: f32) -> f32 {
    let mut scaled = *lane;
    unroll!(LANE_ELEMENTS, |i| scaled[i] *= scale);
    lane_dot(&scaled, &scaled)
}

/// (ss / H) ⊕ eps, and the scale with which the row must be redone, if its sum of squares left
/// the range in which FP32 is accurate. A row that needs it costs a second sum; others nothing.
#[inline(always)]
pub fn mean_square(sum_of_squares: f32, hidden: Width, eps: f32) -> (f32, Option<RowScale>) {
    let mean = hidden.divide(sum_of_squares) + eps;
    if (SMALLEST_MEAN_SQUARE..f32::INFINITY).contains(&mean) {
        (mean, None)
    } else if mean < SMALLEST_MEAN_SQUARE {
        (mean, Some(RowScale::UP))
    } else {
        (mean, Some(RowScale::DOWN))
    }
}

/// 1 / sqrt(`mean_square`), each operation correctly rounded.
#[inline(always)]
pub fn reciprocal_root(mean_square: f32) -> f32 {
    1.0 / sqrt(mean_square)
}

/// rstd of a row whose squares were summed after scaling.
#[inline(always)]
pub fn rescued_rstd(sum_of_squares: f32, hidden: Width, eps: f32, row: RowScale) -> f32 {
    // Two steps: scale² itself is not representable.
    let eps = eps * row.scale * row.scale;
    reciprocal_root(hidden.divide(sum_of_squares) + eps) * row.scale
}

/// y = BF16((h ⊗ rstd) ⊗ w) before the rounding, for eight elements.
#[inline(always)]
pub fn normalise(h: &Lane, rstd: f32, w: &Lane) -> Lane {
    let mut y = [0.0; LANE_ELEMENTS];
    unroll!(LANE_ELEMENTS, |i| y[i] = (h[i] * rstd) * w[i]);
    y
}

/// How the backward must scale a row of reciprocal root `rstd`; `None` for ordinary rows.
#[inline(always)]
pub fn backward_scale(rstd: f32) -> Option<RowScale> {
    if rstd < SMALLEST_RSTD {
        Some(RowScale::DOWN)
    } else if rstd > LARGEST_RSTD {
        Some(RowScale::UP)
    } else {
        None
    }
}

/// a = dy ⊗ w for eight elements.
#[inline(always)]
pub fn weighted(dy: &Lane, w: &Lane) -> Lane {
    let mut a = [0.0; LANE_ELEMENTS];
    unroll!(LANE_ELEMENTS, |i| a[i] = dy[i] * w[i]);
    a
}

/// k = (((dot / H) ⊗ rstd) ⊗ rstd) ⊗ rstd.
#[inline(always)]
pub fn projection(dot: f32, hidden: Width, rstd: f32) -> f32 {
    ((hidden.divide(dot) * rstd) * rstd) * rstd
}

/// fma(−k, x, rstd ⊗ a) for eight elements: dx before the residual gradient and the rounding.
#[inline(always)]
pub fn input_gradient(a: &Lane, x: &Lane, rstd: f32, k: f32) -> Lane {
    let mut dx = [0.0; LANE_ELEMENTS];
    unroll!(LANE_ELEMENTS, |i| dx[i] = fma(-k, x[i], rstd * a[i]));
    dx
}

/// A sum of products with its compensation: the value is `sum + comp`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Pair {
    /// The running sum, rounded after each step.
    pub sum: f32,
    /// What the roundings lost.
    pub comp: f32,
}

impl Pair {
    /// The empty sum.
    pub const ZERO: Pair = Pair {
        sum: 0.0,
        comp: 0.0,
    };

    /// Adds g·r, eight operations: TwoSum with the rounded product, in whose error the unrounded
    /// product takes its place; so what both roundings lost goes to `comp`.
    ///
    /// sum' = fma(g, r, sum) would save one, but then sum' has bits below those of both terms
    /// where they cancel, and what TwoSum takes for the error is not it.
    #[inline(always)]
    pub fn add_product(self, g: f32, r: f32) -> Pair {
        let sum = self.sum + g * r;
        let product_part = sum - self.sum;
        let sum_part = sum - product_part;
        let lost = (self.sum - sum_part) + fma(g, r, -product_part);
        Pair {
            sum,
            comp: self.comp + lost,
        }
    }

    /// Adds dy·x·r where dy·x is not exact in FP32: what its rounding lost, times r, joins `comp`.
    #[inline(always)]
    pub fn add_inexact_product(self, dy: f32, x: f32, r: f32) -> Pair {
        let g = dy * x;
        let lost = fma(dy, x, -g);
        let pair = self.add_product(g, r);
        Pair {
            comp: fma(lost, r, pair.comp),
            ..pair
        }
    }

    /// The sum of two nodes: TwoSum of the sums; its error joins the compensations.
    #[inline(always)]
    pub fn combine(self, right: Pair) -> Pair {
        let sum = self.sum + right.sum;
        let right_part = sum - self.sum;
        let left_part = sum - right_part;
        let lost = (self.sum - left_part) + (right.sum - right_part);
        Pair {
            sum,
            comp: (self.comp + right.comp) + lost,
        }
    }

    /// Adds one value, as the node (`value`, +0) on the right.
    #[inline(always)]
    pub fn add_value(self, value: f32) -> Pair {
        self.combine(Pair {
            sum: value,
            comp: 0.0,
        })
    }

    /// `self` where `condition` holds, else `other`; a choice of registers, not of memory.
    #[inline(always)]
    pub fn or(self, other: Pair, condition: bool) -> Pair {
        Pair {
            sum: if condition { self.sum } else { other.sum },
            comp: if condition { self.comp } else { other.comp },
        }
    }

    /// The value, rounded once. A sum that overflowed stays infinite: its compensation is not
    /// a number then.
    #[inline(always)]
    pub fn round(self) -> f32 {
        if self.sum.abs() < f32::INFINITY {
            canonical(self.sum + self.comp)
        } else {
            canonical(self.sum)
        }
    }
}

/// Pairs of eight consecutive columns.
pub type LanePairs = [Pair; LANE_ELEMENTS];

/// One row's contribution to the weight gradient of eight columns, where dy·x is exact in FP32:
/// of BF16 and FP16 values.
#[inline(always)]
pub fn accumulate(pairs: &mut LanePairs, dy: &Lane, x: &Lane, rstd: f32) {
    unroll!(LANE_ELEMENTS, |i| pairs[i] =
        pairs[i].add_product(dy[i] * x[i], rstd));
}

/// As [`accumulate`], for FP32 values.
#[inline(always)]
pub fn accumulate_inexact(pairs: &mut LanePairs, dy: &Lane, x: &Lane, rstd: f32) {
    unroll!(LANE_ELEMENTS, |i| pairs[i] =
        pairs[i].add_inexact_product(dy[i], x[i], rstd));
}

/// Combines eight columns of two neighbouring nodes.
#[inline(always)]
pub fn combine(left: &LanePairs, right: &LanePairs) -> LanePairs {
    let mut node = [Pair::ZERO; LANE_ELEMENTS];
    unroll!(LANE_ELEMENTS, |i| node[i] = left[i].combine(right[i]));
    node
}

#[cfg(all(test, not(target_arch = "nvptx64")))]
mod tests;
