//! The gate: sigmoid, SiLU and its derivative, with the same bits on every machine.
//!
//! Both are even or odd up to a constant, so everything follows from t = sigmoid(−|z|):
//!
//! ```text
//! sigmoid(z) = t        silu(z) = −|z|·t        silu′(z) = t − |z|·t·(1 − t)        for z < 0
//!              1 − t              z − |z|·t                1 − (the same)           for z ≥ 0
//! ```
//!
//! With |z| = n·ln 2 + r, |r| ≤ ln 2 / 2, it is t = 2⁻ⁿ / (2⁻ⁿ + eʳ): one polynomial, one reciprocal
//! of a number between 0.7 and 2.42, no branch, 29 operations. The reciprocal starts from the bits
//! of the number and is refined twice; the last refinement sees the denominator's parts unrounded,
//! so t has little more than one rounding.

use crate::device::math::{at_most, fma, positive_part};

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

/// sigmoid(−a) for 0 ≤ a ≤ [`LARGEST`]; not a number for one.
#[inline(always)]
fn sigmoid_of_minus(a: f32) -> f32 {
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

/// What a gate value z does.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// min(|z|, 104), which changes no result.
    magnitude: f32,
    /// sigmoid(−|z|).
    tail: f32,
    z: f32,
}

impl Gate {
    /// The gate of z.
    #[inline(always)]
    #[must_use]
    pub fn of(z: f32) -> Self {
        let magnitude = at_most(z.abs(), LARGEST);
        Self {
            magnitude,
            tail: sigmoid_of_minus(magnitude),
            z,
        }
    }

    /// sigmoid(z), at most one unit in the last place off.
    #[inline(always)]
    #[must_use]
    pub fn sigmoid(self) -> f32 {
        if self.z < 0.0 {
            self.tail
        } else {
            1.0 - self.tail
        }
    }

    /// z·sigmoid(z).
    #[inline(always)]
    #[must_use]
    pub fn silu(self) -> f32 {
        fma(-self.magnitude, self.tail, positive_part(self.z))
    }

    /// The derivative of [`Gate::silu`]: sigmoid(z)·(1 + z·(1 − sigmoid(z))).
    #[inline(always)]
    #[must_use]
    pub fn slope(self) -> f32 {
        let below = fma(-(self.magnitude * self.tail), 1.0 - self.tail, self.tail);
        if self.z < 0.0 { below } else { 1.0 - below }
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

#[cfg(all(test, not(target_arch = "nvptx64")))]
mod tests;
