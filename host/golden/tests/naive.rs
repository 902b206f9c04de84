//! The numerics contract a second time: one element after the other, every padding and every
//! lane of a butterfly spelled out. Of the crate's arithmetic it takes only the choice of the
//! power of two for extreme rows.

use super::{Case, Outputs};
use cake_rmsnorm_kernels::arith;
use half::bf16;

pub fn run(case: &Case) -> Outputs {
    let hidden = case.hidden;
    let w = case.w.clone();
    let mut out = Outputs {
        h: vec![],
        y: vec![],
        rstd: vec![],
        dx: vec![],
        dw: vec![],
    };
    for row in 0..case.rows {
        let at = row * hidden..(row + 1) * hidden;
        let mut h = widened(&case.x[at.clone()]);
        if let Some(residual) = &case.residual {
            let residual = widened(&residual[at]);
            let sums: Vec<u16> = (0..hidden).map(|j| narrow(h[j] + residual[j])).collect();
            h = widened(&sums);
            out.h.extend(sums);
        }
        let (y, rstd) = forward(&h, &w, case.eps);
        out.y.extend(y);
        out.rstd.push(rstd.to_bits());
    }
    let normalised = if case.residual.is_some() {
        &out.h
    } else {
        &case.x
    };
    let rstd: Vec<f32> = out.rstd.iter().map(|&bits| f32::from_bits(bits)).collect();
    for (row, &rstd) in rstd.iter().enumerate() {
        let at = row * hidden..(row + 1) * hidden;
        let (dy, x) = (
            widened(&case.dy[at.clone()]),
            widened(&normalised[at.clone()]),
        );
        let dh = case.dh.as_ref().map(|dh| widened(&dh[at]));
        out.dx
            .extend(input_gradient(&dy, &x, dh.as_deref(), &w, rstd));
    }
    for column in 0..hidden {
        let at = |row: usize| row * hidden + column;
        let terms: Vec<(f32, f32, f32)> = (0..case.rows)
            .map(|row| {
                (
                    widen(case.dy[at(row)]),
                    widen(normalised[at(row)]),
                    rstd[row],
                )
            })
            .collect();
        out.dw.push(weight_gradient(&terms, hidden).to_bits());
    }
    out
}

fn forward(h: &[f32], w: &[f32], eps: f32) -> (Vec<u16>, f32) {
    let hidden = h.len() as f32;
    let (mean, rescue) = arith::mean_square(row_sum(h, h), hidden, eps);
    let rstd = match rescue {
        None => 1.0 / mean.sqrt(),
        Some(row) => {
            let h: Vec<f32> = h.iter().map(|h| h * row.scale).collect();
            let mean = row_sum(&h, &h) / hidden + eps * row.scale * row.scale;
            1.0 / mean.sqrt() * row.scale
        }
    };
    let y = h
        .iter()
        .zip(w)
        .map(|(h, w)| narrow((h * rstd) * w))
        .collect();
    (y, canonical(rstd))
}

fn input_gradient(dy: &[f32], x: &[f32], dh: Option<&[f32]>, w: &[f32], rstd: f32) -> Vec<u16> {
    let hidden = dy.len() as f32;
    let a: Vec<f32> = dy.iter().zip(w).map(|(dy, w)| dy * w).collect();
    let finish = |dx: f32, j: usize| narrow(dh.map_or(dx, |dh| dx + dh[j]));
    let unscaled = |x: &[f32], rstd: f32| -> Vec<f32> {
        let dot = row_sum(&a, x);
        let k = dot / hidden * rstd * rstd * rstd;
        (0..dy.len())
            .map(|j| (-k).mul_add(x[j], rstd * a[j]))
            .collect()
    };
    let dx = match arith::backward_scale(rstd) {
        None => unscaled(x, rstd),
        Some(row) => {
            let x: Vec<f32> = x.iter().map(|&x| scaled(x, row)).collect();
            let dx = unscaled(&x, rstd * row.inverse);
            dx.iter().map(|dx| dx * row.scale).collect()
        }
    };
    dx.iter()
        .enumerate()
        .map(|(j, &dx)| finish(dx, j))
        .collect()
}

/// An element of an extreme row in the backward: a BF16 value again.
fn scaled(x: f32, row: arith::RowScale) -> f32 {
    widen(narrow(x * row.scale))
}

fn row_sum(a: &[f32], b: &[f32]) -> f32 {
    let tiles = a.len().div_ceil(256);
    let at = |row: &[f32], j: usize| row.get(j).copied().unwrap_or(0.0);
    let mut tile_sums = Vec::new();
    for tile in 0..tiles {
        let lane_value = |lane: usize| {
            (0..8).fold(0.0f32, |v, i| {
                let j = 256 * tile + 8 * lane + i;
                at(a, j).mul_add(at(b, j), v)
            })
        };
        tile_sums.push(butterfly((0..32).map(lane_value).collect()));
    }
    let lane_sum = |lane: usize| {
        tile_sums
            .iter()
            .skip(lane)
            .step_by(32)
            .fold(0.0, |sum, tile| sum + tile)
    };
    butterfly((0..32).map(lane_sum).collect())
}

fn butterfly(mut lanes: Vec<f32>) -> f32 {
    for distance in [16, 8, 4, 2, 1] {
        lanes = (0..32)
            .map(|lane| lanes[lane] + lanes[lane ^ distance])
            .collect();
    }
    let agree = |lane: &f32| canonical(*lane).to_bits() == canonical(lanes[0]).to_bits();
    assert!(lanes.iter().all(agree), "all lanes hold the sum");
    lanes[0]
}

/// dw of one column, from its (dy, x, rstd).
fn weight_gradient(terms: &[(f32, f32, f32)], hidden: usize) -> f32 {
    let leaf_rows = leaf_rows(terms.len(), hidden);
    let leaves: Vec<(f32, f32)> = terms
        .chunks(leaf_rows)
        .map(|rows| rows.iter().fold((0.0, 0.0), add_term))
        .collect();
    // Level by level: neighbours combine, a last one without a neighbour goes up as it is.
    let mut level = leaves;
    while level.len() > 1 {
        let pairs = level.chunks(2).map(|pair| match *pair {
            [left, right] => combine(left, right),
            _ => pair[0],
        });
        level = pairs.collect();
    }
    let root = level.first().copied();
    let (sum, comp) = root.unwrap_or_default();
    canonical(if sum.abs() < f32::INFINITY {
        sum + comp
    } else {
        sum
    })
}

/// Published: other values change the bits of dw.
fn leaf_rows(rows: usize, hidden: usize) -> usize {
    let leaves = match hidden {
        0..=512 => 4096,
        513..=1024 => 1024,
        1025..=8192 => 512,
        _ => 128,
    };
    let mut leaf_rows = 1;
    while 2 * leaf_rows <= rows / leaves {
        leaf_rows *= 2;
    }
    leaf_rows
}

fn add_term((sum, comp): (f32, f32), &(dy, x, rstd): &(f32, f32, f32)) -> (f32, f32) {
    let (x, rstd) = match arith::backward_scale(rstd) {
        None => (x, rstd),
        Some(row) => (scaled(x, row), rstd * row.inverse),
    };
    let g = dy * x;
    let product = g * rstd;
    let next = sum + product;
    let product_part = next - sum;
    let sum_part = next - product_part;
    let lost = (sum - sum_part) + g.mul_add(rstd, -product_part);
    (next, comp + lost)
}

fn combine(left: (f32, f32), right: (f32, f32)) -> (f32, f32) {
    let sum = left.0 + right.0;
    let right_part = sum - left.0;
    let left_part = sum - right_part;
    let lost = (left.0 - left_part) + (right.0 - right_part);
    (sum, (left.1 + right.1) + lost)
}

fn widen(bits: u16) -> f32 {
    bf16::from_bits(bits).to_f32()
}

fn widened(bits: &[u16]) -> Vec<f32> {
    bits.iter().map(|&bits| widen(bits)).collect()
}

fn narrow(value: f32) -> u16 {
    if value.is_nan() {
        0x7fff
    } else {
        bf16::from_f32(value).to_bits()
    }
}

fn canonical(value: f32) -> f32 {
    if value.is_nan() {
        f32::from_bits(0x7fff_ffff)
    } else {
        value
    }
}
