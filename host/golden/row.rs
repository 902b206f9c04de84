//! One row: its sums, y, and dx.

use cake_rmsnorm_kernels::arith::{
    self, LANE_ELEMENTS, RowScale, backward_scale, canonical, mean_square, projection,
    reciprocal_root, rescued_rstd, widen_high, widen_low,
};
use cake_rmsnorm_kernels::device::math::bf16x2;
use std::borrow::Cow;

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

/// h = BF16(x ⊕ residual).
#[inline(always)]
pub(super) fn add_residual(x: &[u16], residual: &[u16], h: &mut [u16]) {
    for ((h, &x), &residual) in h.iter_mut().zip(x).zip(residual) {
        *h = narrow(widen(x) + widen(residual));
    }
}

/// y = BF16((h ⊗ rstd) ⊗ w) of a row h; returns rstd.
#[inline(always)]
pub(super) fn forward(h: &[u16], w: &RowWeight, eps: f32, y: &mut [u16]) -> f32 {
    let hidden = h.len() as f32;
    let (mean, rescue) = mean_square(sum_of_squares(h, UNSCALED), hidden, eps);
    let rstd = match rescue {
        None => reciprocal_root(mean),
        Some(row) => rescued_rstd(sum_of_squares(h, row), hidden, eps, row),
    };
    for ((y, &h), &w) in y.iter_mut().zip(h).zip(&w.elements) {
        *y = narrow((widen(h) * rstd) * w);
    }
    canonical(rstd)
}

/// dx = BF16(fma(−k, x, rstd ⊗ a) [⊕ dh]) of a row, with a = dy ⊗ w.
#[inline(always)]
pub(super) fn backward(
    dy: &[u16],
    x: &[u16],
    dh: Option<&[u16]>,
    w: &RowWeight,
    rstd: f32,
    dx: &mut [u16],
) {
    let Scaled { x, rstd, scale } = Scaled::new(x, rstd);
    let k = projection(dot(dy, w, &x), dx.len() as f32, rstd);
    let gradient = |dy: u16, x: u16, w: f32| {
        let a = widen(dy) * w;
        widen(x).mul_add(-k, rstd * a) * scale
    };
    let inputs = dy.iter().zip(&*x).zip(&w.elements);
    match dh {
        None => {
            for (dx, ((&dy, &x), &w)) in dx.iter_mut().zip(inputs) {
                *dx = narrow(gradient(dy, x, w));
            }
        }
        Some(dh) => {
            for ((dx, &dh), ((&dy, &x), &w)) in dx.iter_mut().zip(dh).zip(inputs) {
                *dx = narrow(gradient(dy, x, w) + widen(dh));
            }
        }
    }
}

/// A row of the backward, scaled if it is an extreme one.
pub(super) struct Scaled<'x> {
    /// BF16(x ⊗ scale).
    pub x: Cow<'x, [u16]>,
    /// rstd / scale.
    pub rstd: f32,
    /// What dx is multiplied by in the end.
    pub scale: f32,
}

impl<'x> Scaled<'x> {
    #[inline(always)]
    pub fn new(x: &'x [u16], rstd: f32) -> Self {
        let Some(row) = backward_scale(rstd) else {
            let x = Cow::Borrowed(x);
            return Self {
                x,
                rstd,
                scale: 1.0,
            };
        };
        let scaled = x.iter().map(|&x| narrow(widen(x) * row.scale));
        Self {
            x: scaled.collect(),
            rstd: rstd * row.inverse,
            scale: row.scale,
        }
    }
}

/// The row sum of (h, h), h scaled.
#[inline(always)]
fn sum_of_squares(h: &[u16], row: RowScale) -> f32 {
    let (tiles, tail) = h.as_chunks();
    let mut sum = RowSum::default();
    for h in tiles {
        let h = by_lane(h, row.scale);
        sum.add_tile(lane_values(&h, &h));
    }
    let h = |j: usize| widen(tail[j]) * row.scale;
    sum.add_tile(tail_lane_values(tail.len(), |j| (h(j), h(j))));
    sum.finish()
}

/// The row sum of (a, x), a = dy ⊗ w.
#[inline(always)]
fn dot(dy: &[u16], w: &RowWeight, x: &[u16]) -> f32 {
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
    let terms = |j: usize| (widen(dy[j]) * w[j], widen(x[j]));
    sum.add_tile(tail_lane_values(dy.len(), terms));
    sum.finish()
}

/// A tile by position in the lane: `[i][lane]` is element 8·lane + i.
type ByLane = [[f32; LANES]; LANE_ELEMENTS];

/// Widens a tile, scaled.
#[inline(always)]
fn by_lane(tile: &[u16; TILE], scale: f32) -> ByLane {
    let mut out = [[0.0; LANES]; LANE_ELEMENTS];
    for (lane, elements) in tile.as_chunks::<LANE_ELEMENTS>().0.iter().enumerate() {
        for (i, &[low, high]) in elements.as_chunks().0.iter().enumerate() {
            // Two elements at a time: a word is what SIMD shuffles handle best.
            let word = u32::from(low) | u32::from(high) << 16;
            out[2 * i][lane] = widen_low(word) * scale;
            out[2 * i + 1][lane] = widen_high(word) * scale;
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
struct RowSum {
    lanes: [f32; LANES],
    tiles: usize,
}

impl RowSum {
    #[inline(always)]
    fn add_tile(&mut self, values: [f32; LANES]) {
        self.lanes[self.tiles % LANES] += butterfly(values);
        self.tiles += 1;
    }

    #[inline(always)]
    fn finish(self) -> f32 {
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

#[inline(always)]
fn widen(bits: u16) -> f32 {
    widen_low(u32::from(bits))
}

#[inline(always)]
fn narrow(value: f32) -> u16 {
    bf16x2(value, 0.0) as u16
}
