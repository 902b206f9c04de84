//! The gated form in FP64: with s = 1 / (1 + e⁻ᶻ) and g = z·s,
//!
//! ```text
//! norm before gate    y = x·rstd·w·g       rstd of x
//! gate before norm    y = u·rstd·w         u = x·g, rstd of u
//! ```
//!
//! and the derivatives, with silu′(z) = s·(1 + z·(1 − s)). Each group of columns is normalised on
//! its own.

use super::{InputGradient, WeightGradientSum, check_length, sum, whole_rows};
use crate::error::{Argument, Result};
use crate::gated::GateOrder;

/// What the formulas need to know besides the tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Which comes first.
    pub order: GateOrder,
    /// H.
    pub hidden: usize,
    /// Groups that a row is cut into.
    pub groups: usize,
}

/// y [T, H] and rstd [T, groups] of the rows `x`, `z` [T, H] and the weight `w` \[H\].
///
/// # Errors
/// - [`crate::Error::UnsupportedHidden`] when H is 0; [`crate::Error::Length`] when `x` is not
///   whole rows, or another argument has not the length that `x` and H ask for.
pub fn forward(shape: Shape, x: &[f64], z: &[f64], w: &[f64], eps: f64) -> Result<super::Forward> {
    let rows = whole_rows(Argument::X, x.len(), shape.hidden)?;
    check_length(Argument::Z, z.len(), x.len())?;
    check_length(Argument::W, w.len(), shape.hidden)?;
    let mut result = super::Forward {
        y: vec![0.0; x.len()],
        rstd: vec![0.0; rows * shape.groups],
    };
    for (part, columns) in shape.parts(rows) {
        let rstd = {
            let squares = columns
                .clone()
                .map(|j| shape.normalised(x[j], z[j]).powi(2));
            let mean_square = sum(squares) / columns.len() as f64;
            1.0 / (mean_square + eps).sqrt()
        };
        result.rstd[part] = rstd;
        for j in columns {
            let norm = shape.normalised(x[j], z[j]) * rstd * w[j % shape.hidden];
            result.y[j] = match shape.order {
                GateOrder::NormFirst => norm * silu(z[j]),
                GateOrder::GateFirst => norm,
            };
        }
    }
    Ok(result)
}

/// The gradients of a block of rows but for dw, each with the sizes of what may cancel in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// Gradient of x [T, H].
    pub dx: InputGradient,
    /// Gradient of z [T, H]; its field is called dx too.
    pub dz: InputGradient,
}

/// dx and dz of the rows `dy`, `x`, `z` [T, H] with `w` \[H\] and `rstd` [T, groups]; their terms
/// join `dw`, a sum of H columns.
///
/// # Errors
/// - As [`forward`].
pub fn backward(
    shape: Shape,
    dy: &[f64],
    x: &[f64],
    z: &[f64],
    w: &[f64],
    rstd: &[f64],
    dw: &mut WeightGradientSum,
) -> Result<Gradients> {
    let rows = whole_rows(Argument::Dy, dy.len(), shape.hidden)?;
    check_length(Argument::X, x.len(), dy.len())?;
    check_length(Argument::Z, z.len(), dy.len())?;
    check_length(Argument::W, w.len(), shape.hidden)?;
    check_length(Argument::Rstd, rstd.len(), rows * shape.groups)?;
    let zeros = || InputGradient {
        dx: vec![0.0; dy.len()],
        terms: vec![0.0; dy.len()],
    };
    let (mut dx, mut dz) = (zeros(), zeros());
    let mut normalised = vec![0.0; dy.len()];
    let mut of_norm = vec![0.0; dy.len()];
    for (part, columns) in shape.parts(rows) {
        let rstd = rstd[part];
        let gate_first = shape.order == GateOrder::GateFirst;
        for j in columns.clone() {
            normalised[j] = shape.normalised(x[j], z[j]) * rstd;
            of_norm[j] = if gate_first {
                dy[j]
            } else {
                dy[j] * silu(z[j])
            };
        }
        // With n = u·rstd: du = rstd·(a − n·mean(a·n)).
        let a = |j: usize| of_norm[j] * w[j % shape.hidden];
        let products = columns.clone().map(|j| a(j) * normalised[j]);
        let mean_size = products.clone().map(f64::abs).sum::<f64>() / columns.len() as f64;
        let mean = sum(products) / columns.len() as f64;
        for j in columns {
            let n = normalised[j];
            let du = rstd * (a(j) - n * mean);
            let du_size = rstd * (a(j).abs() + n.abs() * mean_size);
            let (slope, slope_size) = slope(z[j]);
            if gate_first {
                (dx.dx[j], dx.terms[j]) = (du * silu(z[j]), du_size * silu(z[j]).abs());
                (dz.dx[j], dz.terms[j]) = (du * x[j] * slope, du_size * x[j].abs() * slope_size);
            } else {
                let direct = dy[j] * n * w[j % shape.hidden];
                (dx.dx[j], dx.terms[j]) = (du, du_size);
                (dz.dx[j], dz.terms[j]) = (direct * slope, direct.abs() * slope_size);
            }
        }
    }
    dw.add_rows(&of_norm, &normalised, &vec![1.0; rows])?;
    Ok(Gradients { dx, dz })
}

impl Shape {
    /// Each group of each row: its number, and its elements.
    fn parts(self, rows: usize) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
        let width = self.hidden / self.groups.max(1);
        (0..rows * self.groups).map(move |part| (part, part * width..(part + 1) * width))
    }

    fn normalised(self, x: f64, z: f64) -> f64 {
        match self.order {
            GateOrder::NormFirst => x,
            GateOrder::GateFirst => x * silu(z),
        }
    }
}

/// 1 / (1 + e⁻ᶻ).
fn sigmoid(z: f64) -> f64 {
    let e = (-z.abs()).exp();
    if z < 0.0 {
        e / (1.0 + e)
    } else {
        1.0 / (1.0 + e)
    }
}

fn silu(z: f64) -> f64 {
    z * sigmoid(z)
}

/// silu′(z), and the sum of the sizes of its terms.
fn slope(z: f64) -> (f64, f64) {
    let s = sigmoid(z);
    let product = z * s * sigmoid(-z);
    (s + product, s + product.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: [f64; 8] = [1.0, -2.0, 0.5, 3.0, -1.5, 0.25, 2.0, 1.0];
    const Z: [f64; 8] = [0.0, 1.0, -1.5, 4.0, -6.0, 0.3, 2.0, -0.1];
    const W: [f64; 4] = [1.0, 2.0, 0.5, -1.0];
    const G: [f64; 8] = [0.3, -1.0, 2.0, 0.7, 1.1, 0.2, -0.4, 0.9];

    /// dx, dz and dw against central differences of the loss Σ G·y, for both orders and for one
    /// group and two.
    #[test]
    fn gradients_are_derivatives() {
        for order in [GateOrder::NormFirst, GateOrder::GateFirst] {
            for groups in [1, 2] {
                let shape = Shape {
                    order,
                    hidden: 4,
                    groups,
                };
                let eps = 1e-2;
                let loss = |x: &[f64], z: &[f64], w: &[f64]| -> f64 {
                    let y = forward(shape, x, z, w, eps).unwrap().y;
                    y.iter().zip(G).map(|(y, g)| y * g).sum()
                };
                let rstd = forward(shape, &X, &Z, &W, eps).unwrap().rstd;
                let mut dw = WeightGradientSum::new(4);
                let found = backward(shape, &G, &X, &Z, &W, &rstd, &mut dw).unwrap();
                let step = 1e-5;
                let slope = |at: &dyn Fn(f64) -> f64| (at(step) - at(-step)) / (2.0 * step);
                let near = |found: f64, slope: f64, what: &str, j: usize| {
                    let same = (found - slope).abs() < 1e-8;
                    assert!(
                        same,
                        "{order:?} {groups} {what}[{j}] = {found}, slope {slope}"
                    );
                };
                for j in 0..8 {
                    let moved = |values: [f64; 8], d: f64| {
                        let mut values = values;
                        values[j] += d;
                        values
                    };
                    near(
                        found.dx.dx[j],
                        slope(&|d| loss(&moved(X, d), &Z, &W)),
                        "dx",
                        j,
                    );
                    near(
                        found.dz.dx[j],
                        slope(&|d| loss(&X, &moved(Z, d), &W)),
                        "dz",
                        j,
                    );
                }
                for (j, &dw) in dw.finish().dw.iter().enumerate() {
                    let moved = |d: f64| {
                        let mut w = W;
                        w[j] += d;
                        loss(&X, &Z, &w)
                    };
                    near(dw, slope(&moved), "dw", j);
                }
            }
        }
    }
}
