//! One row: its sums, y, and dx.

use cake_rmsnorm_kernels::arith::{
    self, LANE_ELEMENTS, Lane, RowScale, backward_scale, canonical, input_gradient, lane_dot,
    mean_square, narrow, normalise, projection, reciprocal_root, scaled_rstd, weighted, widen,
};
use cake_rmsnorm_kernels::device::Words4;

/// Elements of a tile.
const TILE: usize = arith::TILE as usize;
/// Lanes of a tile.
const LANES: usize = TILE / LANE_ELEMENTS;

/// h = BF16(x ⊕ residual).
#[inline(always)]
pub(super) fn add_residual(x: &[u16], residual: &[u16], h: &mut [u16]) {
    map_lanes(h, |lane| arith::add_residual(words(x, lane), words(residual, lane)));
}

/// y of a row h; returns rstd. `w` is padded to whole tiles.
#[inline(always)]
pub(super) fn forward(h: &[u16], w: &[f32], eps: f32, y: &mut [u16]) -> f32 {
    let hidden = h.len() as f32;
    let (mean, rescue) = mean_square(row_sum(h.len(), |lane| square(h, lane, None)), hidden, eps);
    match rescue {
        None => {
            let rstd = reciprocal_root(mean);
            map_lanes(y, |lane| narrow(&normalise(&scaled(h, lane, None), rstd, weight(w, lane))));
            canonical(rstd)
        }
        Some(scale) => {
            let sum = row_sum(h.len(), |lane| square(h, lane, rescue));
            let rstd = scaled_rstd(sum, hidden, eps, scale);
            map_lanes(y, |lane| narrow(&normalise(&scaled(h, lane, rescue), rstd, weight(w, lane))));
            canonical(rstd * scale.scale)
        }
    }
}

/// dx of a row. `w` is padded to whole tiles.
#[inline(always)]
pub(super) fn backward(
    dy: &[u16],
    x: &[u16],
    dh: Option<&[u16]>,
    w: &[f32],
    rstd: f32,
    dx: &mut [u16],
) {
    match backward_scale(rstd) {
        None => scaled_backward(dy, x, dh, w, (rstd, None), dx),
        Some(scale) => scaled_backward(dy, x, dh, w, (rstd * scale.inverse, Some(scale)), dx),
    }
}

/// dx of a row with the rstd of the scaled row.
#[inline(always)]
fn scaled_backward(
    dy: &[u16],
    x: &[u16],
    dh: Option<&[u16]>,
    w: &[f32],
    (rstd, scale): (f32, Option<RowScale>),
    dx: &mut [u16],
) {
    let a = |lane| weighted(&widen(words(dy, lane)), weight(w, lane));
    let dot = row_sum(dx.len(), |lane| lane_dot(&a(lane), &scaled(x, lane, scale)));
    let k = projection(dot, dx.len() as f32, rstd);
    map_lanes(dx, |lane| {
        let mut dx = input_gradient(&a(lane), &scaled(x, lane, scale), rstd, k);
        if let Some(scale) = scale {
            dx = scale.apply(&dx);
        }
        if let Some(dh) = dh {
            let dh = widen(words(dh, lane));
            dx = std::array::from_fn(|i| dx[i] + dh[i]);
        }
        narrow(&dx)
    });
}

/// The canonical row sum of the lane values `value(0)`, `value(1)`, … of a row of `hidden`
/// elements: lanes add up to tiles, tiles to the row.
#[inline(always)]
fn row_sum(hidden: usize, value: impl Fn(usize) -> f32) -> f32 {
    let lanes = hidden.div_ceil(LANE_ELEMENTS);
    let full_tiles = hidden / TILE;
    let mut sums = [0.0; LANES];
    for tile in 0..full_tiles {
        let mut values = [0.0; LANES];
        for (lane, v) in values.iter_mut().enumerate() {
            *v = value(tile * LANES + lane);
        }
        sums[tile % LANES] += butterfly(values);
    }
    if full_tiles * LANES < lanes {
        let mut values = [0.0; LANES];
        for lane in full_tiles * LANES..lanes {
            values[lane % LANES] = value(lane);
        }
        sums[full_tiles % LANES] += butterfly(values);
    }
    butterfly(sums)
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

/// A lane's sum of squares.
#[inline(always)]
fn square(h: &[u16], lane: usize, scale: Option<RowScale>) -> f32 {
    let h = scaled(h, lane, scale);
    lane_dot(&h, &h)
}

/// A lane's elements, scaled for an extreme row.
#[inline(always)]
fn scaled(row: &[u16], lane: usize, scale: Option<RowScale>) -> Lane {
    let elements = widen(words(row, lane));
    match scale {
        None => elements,
        Some(scale) => scale.apply(&elements),
    }
}

/// A lane's weights.
#[inline(always)]
fn weight(w: &[f32], lane: usize) -> &Lane {
    &w.as_chunks().0[lane]
}

/// A lane's elements; +0 past the end of the row.
#[inline(always)]
fn words(row: &[u16], lane: usize) -> Words4 {
    let (lanes, tail) = row.as_chunks();
    match lanes.get(lane) {
        Some(lane) => pack(lane),
        None => {
            let mut padded = [0; LANE_ELEMENTS];
            padded[..tail.len()].copy_from_slice(tail);
            pack(&padded)
        }
    }
}

#[inline(always)]
fn pack(lane: &[u16; LANE_ELEMENTS]) -> Words4 {
    let word = |i: usize| u32::from(lane[i]) | u32::from(lane[i + 1]) << 16;
    Words4(word(0), word(2), word(4), word(6))
}

#[inline(always)]
fn unpack(words: Words4) -> [u16; LANE_ELEMENTS] {
    let Words4(a, b, c, d) = words;
    let (low, high) = (|w: u32| w as u16, |w: u32| (w >> 16) as u16);
    [low(a), high(a), low(b), high(b), low(c), high(c), low(d), high(d)]
}

/// row = `value`(lane) for every lane.
#[inline(always)]
fn map_lanes(row: &mut [u16], value: impl Fn(usize) -> Words4) {
    let (lanes, tail) = row.as_chunks_mut();
    for (lane, out) in lanes.iter_mut().enumerate() {
        *out = unpack(value(lane));
    }
    if !tail.is_empty() {
        tail.copy_from_slice(&unpack(value(lanes.len()))[..tail.len()]);
    }
}
