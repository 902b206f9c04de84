//! One row of one group, for the threads that share it.

use crate::arith::{
    Lane, RowScale, Width, backward_scale, lane_dot, mean_square, narrow, projection,
    reciprocal_root, rescued_rstd, scaled_square, unroll, widen,
};
use crate::device::Words4;
use crate::gated::arith::{
    Element, gate_gradient, gradient, input_gradient, normalised, of_norm, output,
};
use crate::gated::gate::{Gate, GateParts, Gates, silus};
use crate::gated::sums::RowSums;

/// Eight elements of each vector.
type Lanes<const VECTORS: usize> = [Lane; VECTORS];

/// Sizes that all rows share.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// Elements of a group.
    pub width: Width,
    /// Added to the mean square.
    pub eps: f32,
}

#[inline(always)]
fn dots<const VECTORS: usize>(a: &Lanes<VECTORS>, b: &Lanes<VECTORS>) -> [f32; VECTORS] {
    let mut dots = [0.0; VECTORS];
    unroll!(VECTORS, |v| dots[v] = lane_dot(&a[v], &b[v]));
    dots
}

impl Norm {
    /// rstd of rows whose first sum of squares left the range in which FP32 is accurate; of others
    /// in the same warp the ordinary one.
    ///
    /// # Safety
    /// - As [`RowSums::one`].
    #[inline(always)]
    unsafe fn rescued<const VECTORS: usize>(
        self,
        u: impl Fn(usize) -> Lane,
        mean: f32,
        rescue: Option<RowScale>,
        sums: &mut impl RowSums<VECTORS>,
    ) -> f32 {
        let scale = rescue.map_or(1.0, |row| row.scale);
        let mut squares = [0.0; VECTORS];
        unroll!(VECTORS, |v| squares[v] = scaled_square(&u(v), scale));
        // SAFETY: the caller's obligation.
        let sum = unsafe { sums.one(squares) };
        match rescue {
            None => reciprocal_root(mean),
            Some(row) => rescued_rstd(sum, self.width, self.eps, row),
        }
    }

    /// y of a row's vectors x and z, for `store`, from the weights of a vector and the source of
    /// gates; returns rstd.
    ///
    /// # Safety
    /// - As [`RowSums::one`].
    #[inline(always)]
    pub unsafe fn forward<const GATE_FIRST: bool, const VECTORS: usize>(
        self,
        x: &[Words4; VECTORS],
        z: &[Words4; VECTORS],
        (w, source): (impl Fn(usize) -> Lane, impl Gates),
        sums: &mut impl RowSums<VECTORS>,
        mut store: impl FnMut(usize, Words4),
    ) -> f32 {
        let mut gate = [[0.0; 8]; VECTORS];
        let mut u = [[0.0; 8]; VECTORS];
        unroll!(VECTORS, |v| {
            let x = widen(x[v]);
            gate[v] = silus(&source.gates(z[v]));
            unroll!(8, |i| u[v][i] = normalised::<GATE_FIRST>(x[i], gate[v][i]));
        });
        // SAFETY: the caller's obligation; whether any row is redone, all threads know.
        let rstd = unsafe {
            let sum = sums.one(dots(&u, &u));
            let (mean, rescue) = mean_square(sum, self.width, self.eps);
            if sums.any(rescue.is_some()) {
                self.rescued(|v| u[v], mean, rescue, sums)
            } else {
                reciprocal_root(mean)
            }
        };
        unroll!(VECTORS, |v| {
            let w = w(v);
            let mut y = [0.0; 8];
            unroll!(8, |i| y[i] =
                output::<GATE_FIRST>(u[v][i], rstd, w[i], gate[v][i]));
            store(v, narrow(&y));
        });
        rstd
    }

    /// Of a row, vector by vector: the terms of dw as `exact` and rounded factors, for `add`, then
    /// dx and dz, for `store`; from the weights of a vector and the source of gates. Without a `given`
    /// rstd it is recomputed.
    ///
    /// # Safety
    /// - As [`RowSums::one`]; all threads are given an rstd, or none.
    #[inline(always)]
    pub unsafe fn backward<const GATE_FIRST: bool, const VECTORS: usize>(
        self,
        row: &impl StoredRow,
        given: Option<f32>,
        (w, source): (impl Fn(usize) -> Lane, impl Gates),
        sums: &mut impl RowSums<VECTORS>,
        mut add: impl FnMut(usize, &Lane, &Lane),
        mut store: impl FnMut(usize, Words4, Words4),
    ) {
        // Of one vector the gates are kept; of more they are worked out again, for registers.
        let mut kept = [[Gate::of(0.0).parts(); 8]; VECTORS];
        let parts = |v: usize| {
            let gates = source.gates(row.z(v));
            let mut parts = [gates[0].parts(); 8];
            unroll!(8, |i| parts[i] = gates[i].parts());
            parts
        };
        let gates = |kept: &[[GateParts; 8]; VECTORS], v: usize| {
            if VECTORS > 1 { parts(v) } else { kept[v] }
        };
        let (mut squares, mut dots) = ([0.0; VECTORS], [0.0; VECTORS]);
        let u_of = |x: &Lane, gates: &[GateParts; 8], scale: f32| {
            let mut u = [0.0; 8];
            unroll!(8, |i| {
                u[i] = normalised::<GATE_FIRST>(x[i], gates[i].silu);
                if GATE_FIRST {
                    u[i] *= scale;
                }
            });
            u
        };
        let a_of = |dy: &Lane, w: &Lane, gates: &[GateParts; 8]| {
            let mut a = [0.0; 8];
            unroll!(8, |i| a[i] =
                of_norm::<GATE_FIRST>(dy[i] * w[i], gates[i].silu));
            a
        };
        unroll!(VECTORS, |v| {
            let gates = parts(v);
            let u = u_of(&widen(row.x(v)), &gates, 1.0);
            squares[v] = lane_dot(&u, &u);
            dots[v] = lane_dot(&a_of(&widen(row.dy(v)), &w(v), &gates), &u);
            kept[v] = gates;
        });
        // SAFETY: the caller's obligation; whether a row is redone, all threads know.
        let (rstd, scaled, scale, k) = unsafe {
            let (mut rstd, mut dot, mean, rescue);
            if let Some(given) = given {
                (rstd, mean, rescue) = (given, 0.0, None);
                dot = sums.one(dots);
            } else {
                let sum;
                (sum, dot) = sums.two(squares, dots);
                (mean, rescue) = mean_square(sum, self.width, self.eps);
                rstd = reciprocal_root(mean);
            }
            let (mut scaled, mut scale) = (rstd, 1.0);
            if sums.any(rescue.is_some() || backward_scale(rstd).is_some()) {
                if given.is_none() {
                    let u = |v: usize| u_of(&widen(row.x(v)), &gates(&kept, v), 1.0);
                    rstd = self.rescued(u, mean, rescue, sums);
                }
                if let Some(extreme) = backward_scale(rstd) {
                    scale = extreme.scale;
                    scaled = rstd * extreme.inverse;
                    if !GATE_FIRST {
                        // x stays BF16; a product has no such form.
                        unroll!(VECTORS, |v| row.replace_x(v, extreme.apply_words(row.x(v))));
                    }
                }
                unroll!(VECTORS, |v| {
                    let gates = gates(&kept, v);
                    let u = u_of(&widen(row.x(v)), &gates, scale);
                    dots[v] = lane_dot(&a_of(&widen(row.dy(v)), &w(v), &gates), &u);
                });
                dot = sums.one(dots);
            }
            (rstd, scaled, scale, projection(dot, self.width, scaled))
        };
        unroll!(VECTORS, |v| {
            let (dy, x, w) = (widen(row.dy(v)), widen(row.x(v)), w(v));
            let gates = gates(&kept, v);
            let u = u_of(&x, &gates, scale);
            let (mut exact, mut factor) = ([0.0; 8], [0.0; 8]);
            unroll!(8, |i| {
                exact[i] = dy[i] * x[i];
                factor[i] = gates[i].silu * if GATE_FIRST { rstd } else { scaled };
            });
            add(v, &exact, &factor);
            let (mut dx, mut dz) = ([0.0; 8], [0.0; 8]);
            unroll!(8, |i| {
                let GateParts { silu: gate, slope } = gates[i];
                let element = Element {
                    q: dy[i] * w[i],
                    x: x[i],
                    u: u[i],
                    factor: factor[i],
                    rstd: scaled,
                    k,
                };
                let du = gradient::<GATE_FIRST>(&element) * scale;
                dx[i] = input_gradient::<GATE_FIRST>(du, gate);
                dz[i] = gate_gradient::<GATE_FIRST>(&element, du, slope);
            });
            store(v, narrow(&dx), narrow(&dz));
        });
    }
}

/// A thread's part of a row that may be read again and again, so that it need not stay in
/// registers.
pub trait StoredRow {
    /// Vector `v` of dy.
    fn dy(&self, v: usize) -> Words4;
    /// Vector `v` of x.
    fn x(&self, v: usize) -> Words4;
    /// Vector `v` of z.
    fn z(&self, v: usize) -> Words4;
    /// Replaces vector `v` of x.
    fn replace_x(&self, v: usize, words: Words4);
}
