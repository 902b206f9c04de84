//! One row of one group, for the threads that share it.

use crate::arith::{
    Lane, RowScale, Width, backward_scale, lane_dot, mean_square, narrow, projection,
    reciprocal_root, rescued_rstd, unroll, widen,
};
use crate::device::{Words4, warp};
use crate::gated::arith::{
    Element, gate_gradient, gradient, input_gradient, normalised, of_norm, output,
};
use crate::gated::gate::{Gate, GateParts, Gates};
use crate::gated::sums::{LaneSums, RowSums};
use crate::rows::forget;

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
        unroll!(VECTORS, |v| {
            let mut scaled = u(v);
            unroll!(8, |i| scaled[i] *= scale);
            squares[v] = lane_dot(&scaled, &scaled);
        });
        // SAFETY: the caller's obligation.
        let sum = unsafe { sums.one(squares) };
        match rescue {
            None => reciprocal_root(mean),
            Some(row) => rescued_rstd(sum, self.width, self.eps, row),
        }
    }

    /// y of a row's vectors x and z with weights w, for `store`; returns rstd.
    ///
    /// # Safety
    /// - As [`RowSums::one`].
    #[inline(always)]
    pub unsafe fn forward<const GATE_FIRST: bool, const VECTORS: usize>(
        self,
        x: &[Words4; VECTORS],
        z: &[Words4; VECTORS],
        w: impl Fn(usize) -> Lane,
        source: impl Gates,
        sums: &mut impl RowSums<VECTORS>,
        mut store: impl FnMut(usize, Words4),
    ) -> f32 {
        let mut gate = [[0.0; 8]; VECTORS];
        let mut u = [[0.0; 8]; VECTORS];
        unroll!(VECTORS, |v| {
            let (x, z) = (widen(x[v]), widen(z[v]));
            unroll!(8, |i| {
                gate[v][i] = source.gate(z[i]).silu();
                u[v][i] = normalised::<GATE_FIRST>(x[i], gate[v][i]);
            });
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

    /// y of two rows of one vector a lane, for `store`, vector 0 being the first row's; returns, to
    /// either half of a row's lanes, the rstd of one of them. Everything that a row has but once is
    /// worked out for both at once.
    ///
    /// # Safety
    /// - As [`LaneSums::halves`].
    #[inline(always)]
    pub unsafe fn forward_pair<const GATE_FIRST: bool, const LANES: usize>(
        self,
        x: &[Words4; 2],
        z: &[Words4; 2],
        w: &Lane,
        gates: impl Gates,
        mut store: impl FnMut(usize, Words4),
    ) -> f32 {
        let sums = LaneSums::<LANES>;
        let silu = |z: Words4| {
            let mut gate = widen(z);
            unroll!(8, |i| gate[i] = gates.gate(gate[i]).silu());
            gate
        };
        let mut u = [widen(x[0]), widen(x[1])];
        if GATE_FIRST {
            unroll!(2, |r| {
                let gate = silu(z[r]);
                unroll!(8, |i| u[r][i] = normalised::<GATE_FIRST>(u[r][i], gate[i]));
            });
        }
        // SAFETY: the caller's obligation; whether any row is redone, all lanes know.
        let (own, rstd) = unsafe {
            let sum = sums.halves(lane_dot(&u[0], &u[0]), lane_dot(&u[1], &u[1]));
            let (mean, rescue) = mean_square(sum, self.width, self.eps);
            let mut own = reciprocal_root(mean);
            if warp::any(rescue.is_some()) {
                let scales = sums.both(rescue.map_or(1.0, |row| row.scale));
                let squares = |u: &Lane, scale: f32| {
                    let mut scaled = *u;
                    unroll!(8, |i| scaled[i] *= scale);
                    lane_dot(&scaled, &scaled)
                };
                let sum = sums.halves(squares(&u[0], scales.0), squares(&u[1], scales.1));
                if let Some(row) = rescue {
                    own = rescued_rstd(sum, self.width, self.eps, row);
                }
            }
            (own, sums.both(own))
        };
        let rstd = [rstd.0, rstd.1];
        // From the words again, rather than kept: registers are short.
        let (x, z) = (forget(*x), forget(*z));
        unroll!(2, |r| {
            let mut gate = [0.0; 8];
            if !GATE_FIRST {
                u[r] = widen(x[r]);
                gate = silu(z[r]);
            }
            let mut y = [0.0; 8];
            unroll!(8, |i| y[i] =
                output::<GATE_FIRST>(u[r][i], rstd[r], w[i], gate[i]));
            store(r, narrow(&y));
        });
        own
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
        let gates = |kept: &[[GateParts; 8]; VECTORS], v: usize| {
            let mut gates = kept[v];
            if VECTORS > 1 {
                let z = widen(row.z(v));
                unroll!(8, |i| gates[i] = source.gate(z[i]).parts());
            }
            gates
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
            let z = widen(row.z(v));
            let mut gates = kept[v];
            unroll!(8, |i| gates[i] = source.gate(z[i]).parts());
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

impl Norm {
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
        gates: impl Gates,
        mut add: impl FnMut(&Lane, &Lane),
        mut store: impl FnMut(usize, Words4, Words4),
    ) -> bool {
        let sums = LaneSums::<LANES>;
        let (present, given) = own;
        let mut sigmoids = [[0.0; 8]; 2];
        let (mut squares, mut dots) = ([0.0; 2], [0.0; 2]);
        unroll!(2, |r| {
            let (dy, x, z) = (widen(rows.dy(r)), widen(rows.x(r)), widen(rows.z(r)));
            let (mut u, mut a) = ([0.0; 8], [0.0; 8]);
            unroll!(8, |i| {
                let gate = gates.gate(z[i]);
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
