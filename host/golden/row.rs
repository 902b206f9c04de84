//! One row: its sums, y, and dx.

use crate::element::Element;
use crate::view::Dtype;
use cake_rmsnorm_kernels::arith::{
    self, LANE_ELEMENTS, RowScale, Width, canonical, mean_square, projection, reciprocal_root,
    rescued_rstd,
};
use half::bf16;

/// Elements of a tile.
const TILE: usize = arith::TILE as usize;
/// Lanes of a tile.
const LANES: usize = TILE / LANE_ELEMENTS;

/// Ordinary rows: multiplying by one changes no bit.
pub(super) const UNSCALED: RowScale = RowScale {
    scale: 1.0,
    inverse: 1.0,
};

/// A weight in both orders in which rows meet it.
#[derive(Clone, Debug)]
pub(super) struct RowWeight {
    elements: Vec<f32>,
    /// The complete tiles.
    tiles: Vec<ByLane>,
}

impl RowWeight {
    pub(super) fn new(elements: Vec<f32>) -> Self {
        let tiles = elements.chunks_exact(TILE).map(|tile| {
            let mut by_lane = [[0.0; LANES]; LANE_ELEMENTS];
            for (j, &w) in tile.iter().enumerate() {
                by_lane[j % LANE_ELEMENTS][j / LANE_ELEMENTS] = w;
            }
            by_lane
        });
        Self {
            tiles: tiles.collect(),
            elements,
        }
    }
}

/// h = x ⊕ residual, rounded to its type.
#[inline(always)]
pub(super) fn add_residual<E: Element>(x: &[E], residual: &[E], h: &mut [E]) {
    for ((h, &x), &residual) in h.iter_mut().zip(x).zip(residual) {
        *h = E::from_f32(x.to_f32() + residual.to_f32());
    }
}

/// rstd of a row h, NaN as it comes.
#[inline(always)]
fn uncanonical_rstd<E: Element>(h: &[E], eps: f32) -> f32 {
    let hidden = Width::new(h.len() as u32);
    let (mean, rescue) = mean_square(sum_of_squares(h, UNSCALED), hidden, eps);
    match rescue {
        None => reciprocal_root(mean),
        Some(row) => rescued_rstd(sum_of_squares(h, row), hidden, eps, row),
    }
}

/// rstd of a row h.
pub(super) fn rstd<E: Element>(h: &[E], eps: f32) -> f32 {
    canonical(uncanonical_rstd(h, eps))
}

/// y = (h ⊗ rstd) ⊗ w of a row h, rounded to its type; returns rstd.
#[inline(always)]
pub(super) fn forward<E: Element>(h: &[E], w: &RowWeight, eps: f32, y: &mut [E]) -> f32 {
    let rstd = uncanonical_rstd(h, eps);
    for ((y, &h), &w) in y.iter_mut().zip(h).zip(&w.elements) {
        *y = E::from_f32((h.to_f32() * rstd) * w);
    }
    canonical(rstd)
}

/// x′ of an extreme row: x ⊗ σ, rounded to BF16 where x is BF16, else an FP32 value.
#[inline(always)]
pub(super) fn scaled<E: Element>(x: &[E], row: RowScale) -> Vec<f32> {
    let scaled = x.iter().map(|x| x.to_f32() * row.scale);
    match E::DTYPE {
        Dtype::Bf16 => scaled.map(|x| bf16::from_f32(x).to_f32()).collect(),
        _ => scaled.collect(),
    }
}

/// dx = fma(−k, x′, r ⊗ a) ⊗ σ [⊕ dh] of a row, rounded to its type, with a = dy ⊗ w, r = rstd / σ.
/// x′ are elements, or FP32 values of a row that was scaled.
#[inline(always)]
pub(super) fn backward<E: Element, X: Element>(
    dy: &[E],
    x: &[X],
    dh: Option<&[E]>,
    w: &RowWeight,
    rstd: f32,
    scale: f32,
    dx: &mut [E],
) {
    let k = projection(dot(dy, w, x), Width::new(dx.len() as u32), rstd);
    let gradient = |dy: E, x: X, w: f32| {
        let a = dy.to_f32() * w;
        x.to_f32().mul_add(-k, rstd * a) * scale
    };
    let inputs = dy.iter().zip(x).zip(&w.elements);
    match dh {
        None => {
            for (dx, ((&dy, &x), &w)) in dx.iter_mut().zip(inputs) {
                *dx = E::from_f32(gradient(dy, x, w));
            }
        }
        Some(dh) => {
            for ((dx, &dh), ((&dy, &x), &w)) in dx.iter_mut().zip(dh).zip(inputs) {
                *dx = E::from_f32(gradient(dy, x, w) + dh.to_f32());
            }
        }
    }
}

/// The row sum of (h, h), h scaled.
#[inline(always)]
fn sum_of_squares<E: Element>(h: &[E], row: RowScale) -> f32 {
    let (tiles, tail) = h.as_chunks();
    let mut sum = RowSum::default();
    for h in tiles {
        let h = by_lane(h, row.scale);
        sum.add_tile(lane_values(&h, &h));
    }
    let h = |j: usize| tail[j].to_f32() * row.scale;
    sum.add_tile(tail_lane_values(tail.len(), |j| (h(j), h(j))));
    sum.finish()
}

/// The row sum of (a, x), a = dy ⊗ w.
#[inline(always)]
fn dot<E: Element, X: Element>(dy: &[E], w: &RowWeight, x: &[X]) -> f32 {
    let ((dy_tiles, dy), (x_tiles, x)) = (dy.as_chunks(), x.as_chunks());
    let mut sum = RowSum::default();
    for ((dy, x), w) in dy_tiles.iter().zip(x_tiles).zip(&w.tiles) {
        let (mut a, x) = (by_lane(dy, 1.0), by_lane(x, 1.0));
        for (a, w) in a.as_flattened_mut().iter_mut().zip(w.as_flattened()) {
            *a *= w;
        }
        sum.add_tile(lane_values(&a, &x));
    }
    let w = &w.elements[dy_tiles.len() * TILE..];
    let terms = |j: usize| (dy[j].to_f32() * w[j], x[j].to_f32());
    sum.add_tile(tail_lane_values(dy.len(), terms));
    sum.finish()
}

/// A tile by position in the lane: `[i][lane]` is element 8·lane + i.
type ByLane = [[f32; LANES]; LANE_ELEMENTS];

/// Widens a tile, scaled.
#[inline(always)]
fn by_lane<E: Element>(tile: &[E; TILE], scale: f32) -> ByLane {
    let mut out = [[0.0; LANES]; LANE_ELEMENTS];
    for (lane, elements) in tile.as_chunks::<LANE_ELEMENTS>().0.iter().enumerate() {
        for (i, &pair) in elements.as_chunks().0.iter().enumerate() {
            let [low, high] = E::pair_to_f32(pair);
            out[2 * i][lane] = low * scale;
            out[2 * i + 1][lane] = high * scale;
        }
    }
    out
}

/// The lane values of a tile: v = fma(a, b, v) over a lane's elements in order, from +0.
#[inline(always)]
fn lane_values(a: &ByLane, b: &ByLane) -> [f32; LANES] {
    let mut v = [0.0f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            v[lane] = a[lane].mul_add(b[lane], v[lane]);
        }
    }
    v
}

/// The lane values of an incomplete tile of `len` elements, padded with +0; the terms of
/// element j are `terms(j)`.
#[inline(always)]
fn tail_lane_values(len: usize, terms: impl Fn(usize) -> (f32, f32)) -> [f32; LANES] {
    let mut values = [0.0; LANES];
    for j in 0..len.next_multiple_of(LANE_ELEMENTS) {
        let (a, b) = if j < len { terms(j) } else { (0.0, 0.0) };
        let v = &mut values[j / LANE_ELEMENTS];
        *v = a.mul_add(b, *v);
    }
    values
}

/// The canonical sum of a row's tiles: lane l adds tile sums l, l + 32, … in order from +0.
#[derive(Default)]
pub(super) struct RowSum {
    lanes: [f32; LANES],
    tiles: usize,
}

impl RowSum {
    #[inline(always)]
    pub(super) fn add_tile(&mut self, values: [f32; LANES]) {
        self.lanes[self.tiles % LANES] += butterfly(values);
        self.tiles += 1;
    }

    #[inline(always)]
    pub(super) fn finish(self) -> f32 {
        butterfly(self.lanes)
    }
}

/// The xor butterfly over distances 16, 8, 4, 2, 1. Addition commutes, so after each step the
/// upper half of the lanes repeats the lower.
#[inline(always)]
fn butterfly(values: [f32; LANES]) -> f32 {
    #[inline(always)]
    fn step<const N: usize, const HALF: usize>(v: [f32; N]) -> [f32; HALF] {
        std::array::from_fn(|lane| v[lane] + v[lane + HALF])
    }
    let v: [f32; 16] = step(values);
    let v: [f32; 8] = step(v);
    let v: [f32; 4] = step(v);
    let v: [f32; 2] = step(v);
    v[0] + v[1]
}
