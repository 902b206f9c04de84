//! The gate: sigmoid, SiLU and its derivative, with the same bits on every machine.
//!
//! With t = sigmoid(−|z|): sigmoid(z) = t for z < 0, else 1 − t.
//!
//! With |z| = n·ln 2 + r, |r| ≤ ln 2 / 2, it is t = 2⁻ⁿ / (2⁻ⁿ + eʳ): one polynomial, one reciprocal
//! of a number between 0.7 and 2.42, no branch. The reciprocal starts from the bits of the number and
//! is refined twice; the last refinement sees the denominator's parts unrounded, so t has little
//! more than one rounding. Below 2⁻⁸ t is ½ − |z|/4: one operation for half the values of a table.

use crate::arith::{Lane, unroll, widen};
use crate::device::math::{at_least, fma, magnitude_at_most};
use crate::device::{Words4, shared, thread};

/// |z| from which t is 0: e^−104 < 2^−150.
const LARGEST: f32 = 104.0;
/// 1 / ln 2.
const LOG2_E: f32 = f32::from_bits(0x3fb8_aa3b);
/// ln 2, rounded.
const LN_2: f32 = f32::from_bits(0x3f31_7218);
/// ln 2 − [`LN_2`].
const LN_2_REST: f32 = f32::from_bits(0xb102_e308);
/// Added to a number below 2²², rounds it to an integer, which stands in the low bits then; with
/// 127 + 23 more: the exponent field of 2^(23 + integer).
const ROUND: f32 = 12_582_912.0 + 127.0 + SCALE_LOG2 as f32;
/// 2ⁿ⁻¹⁴⁹ is the smallest FP32 value, but 2⁻¹²⁶ the smallest that an exponent field gives.
const SCALE_LOG2: u32 = 23;
/// 2^−[`SCALE_LOG2`].
const UNSCALE: f32 = f32::from_bits((127 - SCALE_LOG2) << 23);
/// eʳ = 1 + r + r²·p(r): p's coefficients, the constant first. For |r| ≤ ln 2 / 2 the relative
/// error of eʳ is 2⁻²⁸ (minimax).
const EXP: [f32; 5] = [
    f32::from_bits(0x3eff_fffe),
    f32::from_bits(0x3e2a_aa49),
    f32::from_bits(0x3d2a_ac79),
    f32::from_bits(0x3c09_1d10),
    f32::from_bits(0x3ab5_11e6),
];
/// The bits of a number and of its reciprocal have about this sum: 7 % off at most.
const RECIPROCAL: u32 = 0x7ef1_0000;
/// Magnitudes below, for which ½ − |z|/4 is rounded like sigmoid(−|z|): it is less than 2⁻²⁹ off.
const SMALL: f32 = f32::from_bits(FIRST_LARGE << 16);

/// sigmoid(−a) for a below [`SMALL`].
#[inline(always)]
fn sigmoid_of_minus_small(a: f32) -> f32 {
    fma(a, -0.25, 0.5)
}

/// sigmoid(−a) for a from [`SMALL`] to [`LARGEST`]; not a number for one.
#[inline(always)]
fn sigmoid_of_minus_large(a: f32) -> f32 {
    let rounded = fma(a, -LOG2_E, ROUND);
    let minus_n = rounded - ROUND;
    let high = fma(minus_n, LN_2, a); // exact
    let r = fma(minus_n, LN_2_REST, high);
    let power = f32::from_bits(rounded.to_bits() << 23) * UNSCALE; // 2⁻ⁿ

    let p = fma(r, EXP[4], EXP[3]);
    let p = fma(r, p, EXP[2]);
    let p = fma(r, p, EXP[1]);
    let p = fma(r, p, EXP[0]);

    // The denominator 2⁻ⁿ + eʳ as three parts: one + high + low.
    let one = 1.0 + power;
    let lost = power - (one - 1.0);
    let low = fma(r * r, p, fma(minus_n, LN_2_REST, lost));
    let sum = one + (high + low);

    let y = f32::from_bits(RECIPROCAL.wrapping_sub(sum.to_bits()));
    let e = fma(-sum, y, 1.0);
    let y = fma(y, fma(e, e, e), y);
    let e = fma(-y, low, fma(-y, high, fma(-y, one, 1.0)));
    fma(y, fma(e, e, e), y) * power
}

/// sigmoid(−|z|); not a number for one.
#[inline(always)]
fn sigmoid_of_minus(z: f32) -> f32 {
    let large = sigmoid_of_minus_large(magnitude_at_most(z, LARGEST));
    // From z once more: registers are short.
    if z.abs() < SMALL {
        sigmoid_of_minus_small(z.abs())
    } else {
        large
    }
}

/// What a gate value z does.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    z: f32,
    sigmoid: f32,
}

impl Gate {
    /// The gate of z.
    #[inline(always)]
    #[must_use]
    pub fn of(z: f32) -> Self {
        Self::with_tail(z, sigmoid_of_minus(z))
    }

    /// The gate of z, of which sigmoid(−|z|) is known.
    #[inline(always)]
    fn with_tail(z: f32, tail: f32) -> Self {
        Self {
            z,
            sigmoid: if z < 0.0 { tail } else { 1.0 - tail },
        }
    }

    /// The gate of z, of which sigmoid(z) is known.
    #[inline(always)]
    #[must_use]
    pub fn with_sigmoid(z: f32, sigmoid: f32) -> Self {
        Self { z, sigmoid }
    }

    /// s = sigmoid(z), at most one unit in the last place off.
    #[inline(always)]
    #[must_use]
    pub fn sigmoid(self) -> f32 {
        self.sigmoid
    }

    /// g = z ⊗ s.
    #[inline(always)]
    #[must_use]
    pub fn silu(self) -> f32 {
        self.z * self.sigmoid
    }

    /// g′, the derivative of g: fma(g, 1 ⊖ s, s).
    #[inline(always)]
    #[must_use]
    pub fn slope(self) -> f32 {
        fma(self.silu(), 1.0 - self.sigmoid, self.sigmoid)
    }
}

/// What a gate value z does to a gradient.
#[derive(Clone, Copy, Debug)]
pub struct GateParts {
    /// g = z·sigmoid(z).
    pub silu: f32,
    /// Its derivative.
    pub slope: f32,
}

impl Gate {
    /// Both at once.
    #[inline(always)]
    #[must_use]
    pub fn parts(self) -> GateParts {
        GateParts {
            silu: self.silu(),
            slope: self.slope(),
        }
    }
}

/// Where gates come from.
pub trait Gates: Copy {
    /// The gate of z, a BF16 value.
    fn gate(self, z: f32) -> Gate;

    /// The gates of eight BF16 values.
    #[inline(always)]
    fn gates(self, words: Words4) -> [Gate; 8] {
        let z = widen(words);
        let mut gates = [Gate::with_sigmoid(0.0, 0.0); 8];
        unroll!(8, |i| gates[i] = self.gate(z[i]));
        gates
    }
}

/// SiLU of the gates.
#[inline(always)]
#[must_use]
pub fn silus(gates: &[Gate; 8]) -> Lane {
    let mut silus = [0.0; 8];
    unroll!(8, |i| silus[i] = gates[i].silu());
    silus
}

/// Works every gate out.
#[derive(Clone, Copy, Debug)]
pub struct Formula;

impl Gates for Formula {
    #[inline(always)]
    fn gate(self, z: f32) -> Gate {
        Gate::of(z)
    }
}

/// Looks sigmoid(−|z|) up: BF16 has few magnitudes between those small enough for ½ and those large
/// enough for 0. The table lies in shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Where the entry of magnitude 0 would be.
    origin: u32,
}

/// BF16 bits of 2⁻²⁴, the largest magnitude up to which sigmoid(−|z|) is ½.
const FIRST: u32 = 0x3380;
/// BF16 bits of [`SMALL`].
const FIRST_LARGE: u32 = 0x3b80;
/// BF16 bits of [`LARGEST`].
const LAST: u32 = 0x42d0;

impl Table {
    /// Bytes of shared memory that a table takes, with three entries beyond the last, since threads
    /// make four at once. A multiple of 128 for what lies behind it: where an asynchronous copy's
    /// lines lie across two of shared memory's, L2 is asked for every sector twice.
    pub const BYTES: u32 = (4 * (LAST - FIRST + 4)).next_multiple_of(128);

    /// Makes a table at shared address `base`.
    ///
    /// # Safety
    /// - Every thread of the block comes here; shared memory has [`Table::BYTES`] there, 16-byte aligned,
    ///   which nothing else uses.
    #[inline(always)]
    pub unsafe fn prepare(base: u32) -> Self {
        let table = Self {
            origin: base.wrapping_sub(4 * FIRST),
        };
        // SAFETY: both are inside the table, which nobody reads before the barrier below.
        unsafe {
            table.fill(FIRST, FIRST_LARGE - 1, sigmoid_of_minus_small);
            table.fill(FIRST_LARGE, LAST, sigmoid_of_minus_large);
        }
        // SAFETY: the caller's obligation.
        unsafe { thread::sync_threads() };
        table
    }

    /// Makes the calling thread's share of the entries of BF16 bits `first` to `last`, four neighbours
    /// at once: their chains of operations overlap.
    ///
    /// # Safety
    /// - `first` is a multiple of 4 from [`FIRST`] on, `last` at most [`LAST`]; shared memory has the
    ///   table, which no other thread reads or writes there before a barrier.
    #[inline(always)]
    unsafe fn fill(self, first: u32, last: u32, tail: impl Fn(f32) -> f32) {
        let mut bits = first + 4 * thread::thread_idx_x();
        while bits <= last {
            let entry = |i: u32| tail(f32::from_bits((bits + i) << 16)).to_bits();
            let four = Words4(entry(0), entry(1), entry(2), entry(3));
            // SAFETY: the thread's own entries; the last three may lie behind the last.
            unsafe { shared::store_words4(self.origin.wrapping_add(4 * bits), four) };
            bits += 4 * thread::block_dim_x();
        }
    }
}

impl Gates for Table {
    #[inline(always)]
    fn gate(self, z: f32) -> Gate {
        // What is not a number takes any entry: z itself makes the products one.
        let magnitude = magnitude_at_most(z, LARGEST);
        let inside = at_least(magnitude, f32::from_bits(FIRST << 16));
        // Four times the BF16 bits: the lower 16 are zero.
        let offset = inside.to_bits() >> 14;
        // SAFETY: between the first entry and the last.
        let tail = unsafe { shared::load_f32(self.origin.wrapping_add(offset)) };
        Gate::with_tail(z, tail)
    }
}

#[cfg(all(test, not(target_arch = "nvptx64")))]
mod tests;
