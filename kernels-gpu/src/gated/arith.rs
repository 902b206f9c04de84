//! The gated norm's arithmetic of single elements, shared with the golden CPU implementation.
//!
//! `GATE_FIRST` chooses the order: false is norm before gate, true gate before norm. u is what is
//! normalised: x, or x ⊗ g.

use crate::device::math::fma;

/// u = x, or x ⊗ g.
#[inline(always)]
#[must_use]
pub fn normalised<const GATE_FIRST: bool>(x: f32, g: f32) -> f32 {
    if GATE_FIRST { x * g } else { x }
}

/// y before its rounding: ((u ⊗ rstd) ⊗ w) ⊗ g, or (u ⊗ rstd) ⊗ w.
#[inline(always)]
#[must_use]
pub fn output<const GATE_FIRST: bool>(u: f32, rstd: f32, w: f32, g: f32) -> f32 {
    let y = (u * rstd) * w;
    if GATE_FIRST { y } else { y * g }
}

/// a: the gradient of u ⊗ rstd, from q = dy ⊗ w: q ⊗ g, or q.
#[inline(always)]
#[must_use]
pub fn of_norm<const GATE_FIRST: bool>(q: f32, g: f32) -> f32 {
    if GATE_FIRST { q } else { q * g }
}

/// What gradients of one element are made of; of some, one order needs nothing.
#[derive(Clone, Copy, Debug)]
pub struct Element {
    /// q = dy ⊗ w.
    pub q: f32,
    /// Input.
    pub x: f32,
    /// What was normalised.
    pub u: f32,
    /// f = g ⊗ rstd.
    pub factor: f32,
    /// Of the row.
    pub rstd: f32,
    /// Of the row: the projection's factor.
    pub k: f32,
}

/// du: the gradient of u: fma(−k, u, q ⊗ f), or fma(−k, u, q ⊗ rstd).
#[inline(always)]
#[must_use]
pub fn gradient<const GATE_FIRST: bool>(e: &Element) -> f32 {
    fma(-e.k, e.u, e.q * if GATE_FIRST { e.rstd } else { e.factor })
}

/// dx before its rounding: du, or du ⊗ g.
#[inline(always)]
#[must_use]
pub fn input_gradient<const GATE_FIRST: bool>(du: f32, g: f32) -> f32 {
    if GATE_FIRST { du * g } else { du }
}

/// dz before its rounding: (q ⊗ (u ⊗ rstd)) ⊗ g′, or (du ⊗ x) ⊗ g′; g′ is the `slope` of the gate.
#[inline(always)]
#[must_use]
pub fn gate_gradient<const GATE_FIRST: bool>(e: &Element, du: f32, slope: f32) -> f32 {
    let product = if GATE_FIRST {
        du * e.x
    } else {
        e.q * (e.u * e.rstd)
    };
    product * slope
}
