//! The element types of outputs, and distances in them.

use bytemuck::NoUninit;
use half::bf16;

/// Elements of outputs: [`bf16`] and [`f32`].
pub trait Element: NoUninit + Sync {
    /// Bits of the significand, the leading one included.
    const PRECISION: i32;

    /// The value; exact.
    fn to_f64(self) -> f64;
}

impl Element for bf16 {
    const PRECISION: i32 = 8;

    fn to_f64(self) -> f64 {
        bf16::to_f64(self)
    }
}

impl Element for f32 {
    const PRECISION: i32 = 24;

    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}

/// The unit in the last place of `exact` in the element type: the distance of the neighbouring
/// representable values around it.
#[must_use]
pub fn ulp<T: Element>(exact: f64) -> f64 {
    // BF16 and FP32 share the exponent range −126 … 127. Zero and FP64 subnormals count as small.
    let exponent = (exact.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    2f64.powi(exponent.clamp(-126, 127) - (T::PRECISION - 1))
}

/// `exact` rounded once to the element type, to nearest even; overflow gives infinity.
#[must_use]
pub fn round<T: Element>(exact: f64) -> f64 {
    // The unit is a power of two, so division and multiplication are exact.
    let unit = ulp::<T>(exact);
    let rounded = (exact / unit).round_ties_even() * unit;
    if rounded.abs() >= BEYOND {
        f64::INFINITY.copysign(exact)
    } else {
        rounded
    }
}

/// 2¹²⁸: what infinity stands for as a rounded finite value.
const BEYOND: f64 = (1u128 << 127) as f64 * 2.0;

/// Distance of `found` from `exact`; infinite where exactly one of them is not a number.
pub(super) fn distance<T: Element>(found: f64, exact: f64) -> f64 {
    if found.is_nan() || exact.is_nan() {
        return if found.is_nan() && exact.is_nan() {
            0.0
        } else {
            f64::INFINITY
        };
    }
    match found.is_infinite() {
        true if round::<T>(exact) == found => 0.0,
        true if exact.is_finite() => (BEYOND.copysign(found) - exact).abs(),
        _ => (found - exact).abs(),
    }
}
