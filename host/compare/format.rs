//! Distances in the element types of outputs.

use crate::element::Element;

/// The unit in the last place of `exact` in the element type: the distance of the neighbouring
/// representable values around it.
#[must_use]
pub fn ulp<T: Element>(exact: f64) -> f64 {
    // Zero and FP64 subnormals count as small.
    let exponent = (exact.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    let (least, greatest) = T::EXPONENTS;
    2f64.powi(exponent.clamp(least, greatest) - (T::PRECISION - 1))
}

/// `exact` rounded once to the element type, to nearest even; overflow gives infinity.
#[must_use]
pub fn round<T: Element>(exact: f64) -> f64 {
    // The unit is a power of two, so division and multiplication are exact.
    let unit = ulp::<T>(exact);
    let rounded = (exact / unit).round_ties_even() * unit;
    if rounded.abs() >= beyond::<T>() {
        f64::INFINITY.copysign(exact)
    } else {
        rounded
    }
}

/// What infinity stands for as a rounded finite value: the power of two behind the largest.
fn beyond<T: Element>() -> f64 {
    2f64.powi(T::EXPONENTS.1 + 1)
}

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
        true if exact.is_finite() => (beyond::<T>().copysign(found) - exact).abs(),
        _ => (found - exact).abs(),
    }
}
