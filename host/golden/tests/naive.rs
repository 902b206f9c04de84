//! The numerics contract a second time: one element after the other, every padding and every
//! lane of a butterfly spelled out. Of the crate's arithmetic it takes only the choice of the
//! power of two for extreme rows.

use super::{Case, Outputs, bits};
use crate::element::Element;
use cake_rmsnorm_kernels::arith::{self, Width};
use half::{bf16, f16};

/// Conversions that owe nothing to the kernels' own.
pub trait Naive: Element {
    /// Whether products of two elements are FP32 values.
    const EXACT_PRODUCTS: bool;
    fn value(self) -> f32;
    fn round(value: f32) -> Self;
    /// An element of an extreme row in the backward.
    fn scaled(x: f32, row: arith::RowScale) -> f32 {
        x * row.scale
    }
}

impl Naive for bf16 {
    const EXACT_PRODUCTS: bool = true;
    fn value(self) -> f32 {
        bf16::to_f32(self)
    }
    fn round(value: f32) -> Self {
        if value.is_nan() {
            return bf16::from_bits(0x7fff);
        }
        bf16::from_f32(value)
    }
    /// A BF16 value again.
    fn scaled(x: f32, row: arith::RowScale) -> f32 {
        Self::round(x * row.scale).value()
    }
}

impl Naive for f16 {
    const EXACT_PRODUCTS: bool = true;
    fn value(self) -> f32 {
        f16::to_f32(self)
    }
    fn round(value: f32) -> Self {
        if value.is_nan() {
            return f16::from_bits(0x7fff);
        }
        f16::from_f32(value)
    }
}

impl Naive for f32 {
    const EXACT_PRODUCTS: bool = false;
    fn value(self) -> f32 {
        self
    }
    fn round(value: f32) -> Self {
        canonical(value)
    }
}

fn values<E: Naive>(elements: &[E]) -> Vec<f32> {
    elements.iter().map(|element| element.value()).collect()
}

pub fn run<E: Naive>(case: &Case<E>) -> Outputs {
    let hidden = case.hidden;
    let w = case.w.clone();
    let (mut h_out, mut y_out, mut dx, mut rstds, mut dw) =
        (vec![], vec![], vec![], vec![], vec![]);
    for row in 0..case.rows {
        let at = row * hidden..(row + 1) * hidden;
        let mut h = values(&case.x[at.clone()]);
        if let Some(residual) = &case.residual {
            let residual = values(&residual[at]);
            let sums: Vec<E> = (0..hidden).map(|j| E::round(h[j] + residual[j])).collect();
            h = values(&sums);
            h_out.extend(sums);
        }
        let (y, rstd) = forward::<E>(&h, &w, case.eps);
        y_out.extend(y);
        rstds.push(rstd);
    }
    let normalised = if case.residual.is_some() {
        &h_out
    } else {
        &case.x
    };
    for (row, &rstd) in rstds.iter().enumerate() {
        let at = row * hidden..(row + 1) * hidden;
        let (dy, x) = (
            values(&case.dy[at.clone()]),
            values(&normalised[at.clone()]),
        );
        let dh = case.dh.as_ref().map(|dh| values(&dh[at]));
        dx.extend(input_gradient::<E>(&dy, &x, dh.as_deref(), &w, rstd));
    }
    for column in 0..hidden {
        let at = |row: usize| row * hidden + column;
        let terms: Vec<(f32, f32, f32)> = (0..case.rows)
            .map(|row| {
                (
                    case.dy[at(row)].value(),
                    normalised[at(row)].value(),
                    rstds[row],
                )
            })
            .collect();
        let old = case.old.as_ref().map(|old| old[column]);
        dw.push(weight_gradient::<E>(&terms, hidden, old));
    }
    let dw_bf16: Vec<bf16> = dw.iter().map(|&dw| Naive::round(dw)).collect();
    Outputs {
        h: bits(&h_out),
        y: bits(&y_out),
        rstd: bits(&rstds),
        dx: bits(&dx),
        dw: bits(&dw),
        dw_bf16: bits(&dw_bf16),
    }
}

fn forward<E: Naive>(h: &[f32], w: &[f32], eps: f32) -> (Vec<E>, f32) {
    let hidden = h.len() as f32;
    let mean = row_sum(h, h) / hidden + eps;
    let (_, rescue) = arith::mean_square(row_sum(h, h), Width::new(h.len() as u32), eps);
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
        .map(|(h, w)| E::round((h * rstd) * w))
        .collect();
    (y, canonical(rstd))
}

fn input_gradient<E: Naive>(
    dy: &[f32],
    x: &[f32],
    dh: Option<&[f32]>,
    w: &[f32],
    rstd: f32,
) -> Vec<E> {
    let hidden = dy.len() as f32;
    let a: Vec<f32> = dy.iter().zip(w).map(|(dy, w)| dy * w).collect();
    let finish = |dx: f32, j: usize| E::round(dh.map_or(dx, |dh| dx + dh[j]));
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
            let x: Vec<f32> = x.iter().map(|&x| E::scaled(x, row)).collect();
            let dx = unscaled(&x, rstd * row.inverse);
            dx.iter().map(|dx| dx * row.scale).collect()
        }
    };
    dx.iter()
        .enumerate()
        .map(|(j, &dx)| finish(dx, j))
        .collect()
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
fn weight_gradient<E: Naive>(terms: &[(f32, f32, f32)], hidden: usize, old: Option<f32>) -> f32 {
    let leaf_rows = leaf_rows(terms.len(), hidden);
    let leaves: Vec<(f32, f32)> = terms
        .chunks(leaf_rows)
        .map(|rows| rows.iter().fold((0.0, 0.0), add_term::<E>))
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
    let root = root.unwrap_or_default();
    let (sum, comp) = old.map_or(root, |old| combine(root, (old, 0.0)));
    canonical(if sum.abs() < f32::INFINITY {
        sum + comp
    } else {
        sum
    })
}

/// Published: other values change the bits of dw.
fn leaf_rows(rows: usize, hidden: usize) -> usize {
    let window = match hidden {
        0..=256 => 256,
        257..=1024 => 512,
        _ => 1024,
    };
    if rows <= window {
        let leaves = match hidden {
            2049..=4096 if rows <= 256 => 64,
            4097..=8192 if rows > 64 && rows <= 128 => 32,
            _ => 128,
        };
        let mut leaf_rows = 1;
        while leaf_rows * leaves < rows {
            leaf_rows *= 2;
        }
        return leaf_rows;
    }
    let leaves = match hidden {
        0..=256 => 2048,
        257..=1024 => 1024,
        1025..=4096 => 512,
        4097..=8192 => 256,
        _ => 128,
    };
    let mut leaf_rows = 1;
    if hidden <= 512 {
        if hidden > 256 {
            leaf_rows = 2;
        }
        while leaf_rows < 8 && leaf_rows * leaves <= rows {
            leaf_rows *= 2;
        }
    }
    while 2 * leaf_rows <= rows / leaves {
        leaf_rows *= 2;
    }
    leaf_rows
}

fn add_term<E: Naive>((sum, comp): (f32, f32), &(dy, x, rstd): &(f32, f32, f32)) -> (f32, f32) {
    let (x, rstd) = match arith::backward_scale(rstd) {
        None => (x, rstd),
        Some(row) => (E::scaled(x, row), rstd * row.inverse),
    };
    let g = dy * x;
    let product = g * rstd;
    let next = sum + product;
    let product_part = next - sum;
    let sum_part = next - product_part;
    let lost = (sum - sum_part) + g.mul_add(rstd, -product_part);
    let comp = comp + lost;
    if E::EXACT_PRODUCTS {
        return (next, comp);
    }
    let rest = dy.mul_add(x, -g);
    (next, rest.mul_add(rstd, comp))
}

fn combine(left: (f32, f32), right: (f32, f32)) -> (f32, f32) {
    let sum = left.0 + right.0;
    let right_part = sum - left.0;
    let left_part = sum - right_part;
    let lost = (left.0 - left_part) + (right.0 - right_part);
    (sum, (left.1 + right.1) + lost)
}

fn canonical(value: f32) -> f32 {
    if value.is_nan() {
        f32::from_bits(0x7fff_ffff)
    } else {
        value
    }
}
