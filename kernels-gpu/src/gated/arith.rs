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

/// a: the gradient of u ⊗ rstd: (dy ⊗ g) ⊗ w, or dy ⊗ w.
#[inline(always)]
#[must_use]
pub fn weighted<const GATE_FIRST: bool>(dy: f32, w: f32, g: f32) -> f32 {
    let dy = if GATE_FIRST { dy } else { dy * g };
    dy * w
}

/// du: the gradient of u: fma(−k, u, rstd ⊗ a).
#[inline(always)]
#[must_use]
pub fn gradient(a: f32, u: f32, rstd: f32, k: f32) -> f32 {
    fma(-k, u, rstd * a)
}

/// dx before its rounding: du, or du ⊗ g.
#[inline(always)]
#[must_use]
pub fn input_gradient<const GATE_FIRST: bool>(du: f32, g: f32) -> f32 {
    if GATE_FIRST { du * g } else { du }
}

/// dz before its rounding: (dy ⊗ ((u ⊗ rstd) ⊗ w)) ⊗ g′, or (du ⊗ x) ⊗ g′.
#[inline(always)]
#[must_use]
pub fn gate_gradient<const GATE_FIRST: bool>(e: GateGradient) -> f32 {
    let product = if GATE_FIRST {
        e.du * e.x
    } else {
        e.dy * ((e.u * e.rstd) * e.w)
    };
    product * e.slope
}

/// What dz is made of; of some, one order needs nothing.
#[derive(Clone, Copy, Debug)]
pub struct GateGradient {
    /// Gradient of y.
    pub dy: f32,
    /// What was normalised.
    pub u: f32,
    /// Its rstd.
    pub rstd: f32,
    /// Weight.
    pub w: f32,
    /// Gradient of u.
    pub du: f32,
    /// Input.
    pub x: f32,
    /// g′, the slope of the gate.
    pub slope: f32,
}
