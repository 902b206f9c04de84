//! Two neighbouring rows of narrow groups, for the lanes that share them: everything that a row has
//! but once is worked out for both at once.

use crate::arith::{
    Lane, backward_scale, lane_dot, mean_square, narrow, projection, reciprocal_root, rescued_rstd,
    scaled_square, unroll, widen,
};
use crate::device::{Words4, warp};
use crate::gated::arith::{
    Element, gate_gradient, gradient, input_gradient, normalised, of_norm, output,
};
use crate::gated::gate::{Gate, Gates, silus};
use crate::gated::row::{Norm, StoredRow};
use crate::gated::sums::LaneSums;
use crate::rows::forget;

impl Norm {
    /// y of two rows of one vector a lane, for `store`, vector 0 being the first row's; returns, to
    /// either half of a row's lanes, the rstd of one of them. `KEEP` says whether what is worked out
    /// before the sum stays in registers, or else is worked out again. A lane that is not `inside` the
    /// row adds nothing to its sums.
    ///
    /// # Safety
    /// - As [`LaneSums::halves`].
    #[inline(always)]
    pub unsafe fn forward_pair<const GATE_FIRST: bool, const LANES: usize, const KEEP: bool>(
        self,
        x: &[Words4; 2],
        z: &[Words4; 2],
        inside: bool,
        (w, source): (&Lane, impl Gates),
        mut store: impl FnMut(usize, Words4),
    ) -> f32 {
        let sums = LaneSums::<LANES>;
        let unpack = |x: Words4, z: Words4| {
            let (mut u, mut gate) = (widen(x), [0.0; 8]);
            if GATE_FIRST || KEEP {
                gate = silus(&source.gates(z));
                unroll!(8, |i| u[i] = normalised::<GATE_FIRST>(u[i], gate[i]));
            }
            (u, gate)
        };
        let rows = [unpack(x[0], z[0]), unpack(x[1], z[1])];
        // SAFETY: the caller's obligation; whether any row is redone, all lanes know.
        let (own, rstd) = unsafe {
            let [(a, _), (b, _)] = rows;
            let of_row = |dot: f32| if inside { dot } else { 0.0 };
            let sum = sums.halves(of_row(lane_dot(&a, &a)), of_row(lane_dot(&b, &b)));
            let (mean, rescue) = mean_square(sum, self.width, self.eps);
            let mut own = reciprocal_root(mean);
            if warp::any(rescue.is_some()) {
                let scales = sums.both(rescue.map_or(1.0, |row| row.scale));
                let (a, b) = (scaled_square(&a, scales.0), scaled_square(&b, scales.1));
                let sum = sums.halves(of_row(a), of_row(b));
                if let Some(row) = rescue {
                    own = rescued_rstd(sum, self.width, self.eps, row);
                }
            }
            (own, sums.both(own))
        };
        let rstd = [rstd.0, rstd.1];
        let (x, z) = (forget(*x), forget(*z));
        unroll!(2, |r| {
            let (mut u, mut gate) = rows[r];
            if !KEEP && !GATE_FIRST {
                u = widen(x[r]);
                gate = silus(&source.gates(z[r]));
            }
            let mut y = [0.0; 8];
            unroll!(8, |i| y[i] =
                output::<GATE_FIRST>(u[i], rstd[r], w[i], gate[i]));
            store(r, narrow(&y));
        });
        own
    }

    /// Of two rows of one vector a lane, one after the other: the terms of dw, for `add`, then dx and
    /// dz, for `store`; all as [`Norm::backward`] does it. `own` says of the row that belongs to the
    /// calling half of a row's lanes whether it is there, and its rstd, if it is given.
    ///
    /// Where a row of the warp needs a scale, stores nothing and returns false.
    ///
    /// # Safety
    /// - As [`LaneSums::halves`]; all lanes are given an rstd, or none. Rows that are not there are zeros.
    #[inline(always)]
    pub unsafe fn backward_pair<const GATE_FIRST: bool, const LANES: usize>(
        self,
        rows: &impl StoredPair,
        own: (bool, Option<f32>),
        w: &Lane,
        source: impl Gates,
        mut add: impl FnMut(&Lane, &Lane),
        mut store: impl FnMut(usize, Words4, Words4),
    ) -> bool {
        let sums = LaneSums::<LANES>;
        let (present, given) = own;
        let mut sigmoids = [[0.0; 8]; 2];
        let (mut squares, mut dots) = ([0.0; 2], [0.0; 2]);
        unroll!(2, |r| {
            let (dy, x, gates) = (widen(rows.dy(r)), widen(rows.x(r)), source.gates(rows.z(r)));
            let (mut u, mut a) = ([0.0; 8], [0.0; 8]);
            unroll!(8, |i| {
                let gate = gates[i];
                sigmoids[r][i] = gate.sigmoid();
                u[i] = normalised::<GATE_FIRST>(x[i], gate.silu());
                a[i] = of_norm::<GATE_FIRST>(dy[i] * w[i], gate.silu());
            });
            squares[r] = lane_dot(&u, &u);
            dots[r] = lane_dot(&a, &u);
        });
        // SAFETY: the caller's obligation; whether a row needs a scale, all lanes know.
        let (rstd, k) = unsafe {
            let mut extreme = false;
            let mut rstd = match given {
                Some(rstd) => rstd,
                None => {
                    let sum = sums.halves(squares[0], squares[1]);
                    let (mean, rescue) = mean_square(sum, self.width, self.eps);
                    extreme = rescue.is_some();
                    reciprocal_root(mean)
                }
            };
            extreme |= backward_scale(rstd).is_some();
            let dot = sums.halves(dots[0], dots[1]);
            if warp::any(extreme && present) {
                return false;
            }
            let mut k = projection(dot, self.width, rstd);
            if !present {
                // Zeros times what may be infinite.
                (rstd, k) = (0.0, 0.0);
            }
            (sums.both(rstd), sums.both(k))
        };
        let (rstd, k) = ([rstd.0, rstd.1], [k.0, k.1]);
        unroll!(2, |r| {
            let (dy, x, z) = (widen(rows.dy(r)), widen(rows.x(r)), widen(rows.z(r)));
            let (mut exact, mut factor) = ([0.0; 8], [0.0; 8]);
            let (mut dx, mut dz) = ([0.0; 8], [0.0; 8]);
            unroll!(8, |i| {
                let gate = Gate::with_sigmoid(z[i], sigmoids[r][i]);
                exact[i] = dy[i] * x[i];
                factor[i] = gate.silu() * rstd[r];
                let element = Element {
                    q: dy[i] * w[i],
                    x: x[i],
                    u: normalised::<GATE_FIRST>(x[i], gate.silu()),
                    factor: factor[i],
                    rstd: rstd[r],
                    k: k[r],
                };
                let du = gradient::<GATE_FIRST>(&element);
                dx[i] = input_gradient::<GATE_FIRST>(du, gate.silu());
                dz[i] = gate_gradient::<GATE_FIRST>(&element, du, gate.slope());
            });
            add(&exact, &factor);
            store(r, narrow(&dx), narrow(&dz));
        });
        true
    }
}

/// A thread's vectors of two rows, which may be read again and again.
pub trait StoredPair {
    /// dy of row `r`.
    fn dy(&self, r: usize) -> Words4;
    /// x of row `r`.
    fn x(&self, r: usize) -> Words4;
    /// z of row `r`.
    fn z(&self, r: usize) -> Words4;
    /// Replaces x of row `r`.
    fn replace_x(&self, r: usize, words: Words4);
}

/// One row of a pair.
#[derive(Clone, Copy, Debug)]
pub struct OfPair<'a, P>(pub &'a P, pub usize);

impl<P: StoredPair> StoredRow for OfPair<'_, P> {
    #[inline(always)]
    fn dy(&self, _: usize) -> Words4 {
        self.0.dy(self.1)
    }

    #[inline(always)]
    fn x(&self, _: usize) -> Words4 {
        self.0.x(self.1)
    }

    #[inline(always)]
    fn z(&self, _: usize) -> Words4 {
        self.0.z(self.1)
    }

    #[inline(always)]
    fn replace_x(&self, _: usize, words: Words4) {
        self.0.replace_x(self.1, words);
    }
}
