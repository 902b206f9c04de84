//! The FP64 reference: RMSNorm as the formulas say, with no order of its own.
//!
//! ```text
//! rstd = 1 / sqrt(Σ x² / H + eps)       y_j = x_j · rstd · w_j
//! a = dy · w      k = rstd³ · Σ(a·x) / H
//! dx_j = rstd·a_j − k·x_j + dh_j        dw_j = Σ_t dy_tj · x_tj · rstd_t
//! ```
//!
//! w is what the rows are multiplied by: with its offset, or ones where there is no weight.
//!
//! It shares no arithmetic with the kernels and the golden implementation. Sums are compensated: of
//! BF16 and FP16 inputs and FP32 rstd the terms of dw and of Σx² are exact in FP64, so results are
//! good to about 2⁻⁵⁰ of the largest term, however much they cancel; of FP32 inputs the terms of dw
//! are rounded twice, to 2⁻⁵² of each. Matrices are packed rows of `hidden` elements;
//! functions take any number of rows, so a large T can be worked on in blocks.

pub mod gated;

use crate::element::Element;
use crate::error::{Argument, Error, Result};
use half::bf16;
use rayon::prelude::*;

/// Elements as FP64; exact.
#[must_use]
pub fn from_elements<E: Element>(values: &[E]) -> Vec<f64> {
    values.iter().map(|value| value.to_f64()).collect()
}

/// BF16 values as FP64; exact.
#[must_use]
pub fn from_bf16(values: &[bf16]) -> Vec<f64> {
    from_elements(values)
}

/// FP32 values as FP64; exact.
#[must_use]
pub fn from_f32(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// What a forward gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Forward {
    /// [T, H].
    pub y: Vec<f64>,
    /// \[T\].
    pub rstd: Vec<f64>,
}

/// y and rstd of the rows `x` [T, H] and the weight `w` \[H\].
///
/// # Errors
/// - [`Error::UnsupportedHidden`] when `hidden` is 0; [`Error::Length`] when `x` is not whole
///   rows or `w` not one row.
pub fn forward(x: &[f64], w: &[f64], hidden: usize, eps: f64) -> Result<Forward> {
    let rows = whole_rows(Argument::X, x.len(), hidden)?;
    check_length(Argument::W, w.len(), hidden)?;
    let mut result = Forward {
        y: vec![0.0; x.len()],
        rstd: vec![0.0; rows],
    };
    let outputs = result.y.par_chunks_mut(hidden).zip(&mut result.rstd);
    outputs
        .zip(x.par_chunks(hidden))
        .for_each(|((y, rstd), x)| {
            let mean_square = sum(x.iter().map(|x| x * x)) / hidden as f64;
            *rstd = 1.0 / (mean_square + eps).sqrt();
            for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
                *y = x * *rstd * w;
            }
        });
    Ok(result)
}

/// y of the rows `x` [T, H] with the weight `w` \[H\] and `rstd` \[T\].
///
/// # Errors
/// - As [`forward`]; [`Error::Length`] also when `rstd` has not an element a row.
pub fn normalised(x: &[f64], w: &[f64], rstd: &[f64], hidden: usize) -> Result<Vec<f64>> {
    let rows = whole_rows(Argument::X, x.len(), hidden)?;
    check_length(Argument::W, w.len(), hidden)?;
    check_length(Argument::Rstd, rstd.len(), rows)?;
    let mut y = vec![0.0; x.len()];
    let outputs = y.par_chunks_mut(hidden).zip(rstd);
    outputs
        .zip(x.par_chunks(hidden))
        .for_each(|((y, rstd), x)| {
            for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
                *y = x * rstd * w;
            }
        });
    Ok(y)
}

/// Gradient of x, and the size of what it is the sum of.
#[derive(Clone, Debug, PartialEq)]
pub struct InputGradient {
    /// dx [T, H].
    pub dx: Vec<f64>,
    /// |rstd·a_j| + |x_j|·rstd³·Σ|a·x| / H + |dh_j| of each element [T, H]: what may cancel in
    /// dx, the terms of the sum in k included.
    pub terms: Vec<f64>,
}

/// Gradient of w, and the size of what it is the sum of.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightGradient {
    /// dw \[H\].
    pub dw: Vec<f64>,
    /// Σ_t |dy·x·rstd| of each column \[H\].
    pub terms: Vec<f64>,
}

/// Both gradients.
#[derive(Clone, Debug, PartialEq)]
pub struct Backward {
    /// Gradient of x.
    pub input: InputGradient,
    /// Gradient of w.
    pub weight: WeightGradient,
}

/// The gradients from `dy`, `x`, `dh` [T, H], `w` \[H\] and `rstd` \[T\].
///
/// # Errors
/// - As [`input_gradient`].
pub fn backward(
    dy: &[f64],
    x: &[f64],
    dh: Option<&[f64]>,
    w: &[f64],
    rstd: &[f64],
    hidden: usize,
) -> Result<Backward> {
    let input = input_gradient(dy, x, dh, w, rstd, hidden)?;
    let mut weight = WeightGradientSum::new(hidden);
    weight.add_rows(dy, x, rstd)?;
    Ok(Backward {
        input,
        weight: weight.finish(),
    })
}

/// dx of the rows `dy`, `x`, `dh` [T, H] with `w` \[H\] and `rstd` \[T\].
///
/// # Errors
/// - [`Error::UnsupportedHidden`] when `hidden` is 0; [`Error::Length`] when `dy` is not whole
///   rows, or another argument has not the length that `dy` and `hidden` ask for.
pub fn input_gradient(
    dy: &[f64],
    x: &[f64],
    dh: Option<&[f64]>,
    w: &[f64],
    rstd: &[f64],
    hidden: usize,
) -> Result<InputGradient> {
    let rows = whole_rows(Argument::Dy, dy.len(), hidden)?;
    check_length(Argument::X, x.len(), dy.len())?;
    if let Some(dh) = dh {
        check_length(Argument::Dh, dh.len(), dy.len())?;
    }
    check_length(Argument::W, w.len(), hidden)?;
    check_length(Argument::Rstd, rstd.len(), rows)?;
    let mut result = InputGradient {
        dx: vec![0.0; dy.len()],
        terms: vec![0.0; dy.len()],
    };
    let outputs = result
        .dx
        .par_chunks_mut(hidden)
        .zip(result.terms.par_chunks_mut(hidden));
    outputs.enumerate().for_each(|(row, (dx, terms))| {
        let elements = row * hidden..(row + 1) * hidden;
        let (dy, x, rstd) = (&dy[elements.clone()], &x[elements.clone()], rstd[row]);
        let dh = dh.map(|dh| &dh[elements]);
        let products = dy.iter().zip(x).zip(w).map(|((dy, x), w)| dy * w * x);
        let projection = |dot: f64| rstd.powi(3) * (dot / hidden as f64);
        let size = projection(products.clone().map(f64::abs).sum());
        let k = projection(sum(products));
        for j in 0..hidden {
            let direct = rstd * (dy[j] * w[j]);
            let dh = dh.map_or(0.0, |dh| dh[j]);
            dx[j] = direct - k * x[j] + dh;
            terms[j] = direct.abs() + (size * x[j]).abs() + dh.abs();
        }
    });
    Ok(result)
}

/// dw, summed over blocks of rows.
#[derive(Clone, Debug)]
pub struct WeightGradientSum {
    columns: Vec<Column>,
}

#[derive(Clone, Debug, Default)]
struct Column {
    sum: Sum,
    terms: f64,
}

impl WeightGradientSum {
    /// The sum over no rows of `hidden` elements.
    #[must_use]
    pub fn new(hidden: usize) -> Self {
        Self {
            columns: vec![Column::default(); hidden],
        }
    }

    /// Adds the terms of the rows `dy`, `x` [T, H] with `rstd` \[T\].
    ///
    /// # Errors
    /// - As [`input_gradient`].
    pub fn add_rows(&mut self, dy: &[f64], x: &[f64], rstd: &[f64]) -> Result<()> {
        /// Columns of a task: 512 bytes of each row.
        const COLUMNS: usize = 64;
        let hidden = self.columns.len();
        let rows = whole_rows(Argument::Dy, dy.len(), hidden)?;
        check_length(Argument::X, x.len(), dy.len())?;
        check_length(Argument::Rstd, rstd.len(), rows)?;
        self.columns
            .par_chunks_mut(COLUMNS)
            .enumerate()
            .for_each(|(block, columns)| {
                for (row, rstd) in rstd.iter().enumerate() {
                    let first = row * hidden + block * COLUMNS;
                    for ((column, dy), x) in columns.iter_mut().zip(&dy[first..]).zip(&x[first..]) {
                        let term = dy * x * rstd;
                        column.sum.add(term);
                        column.terms += term.abs();
                    }
                }
            });
        Ok(())
    }

    /// Adds a value to each column: what a backward that accumulates finds in dw.
    ///
    /// # Errors
    /// - [`Error::Length`] when there are not as many values as columns.
    pub fn add_values(&mut self, values: &[f64]) -> Result<()> {
        check_length(Argument::Dw, values.len(), self.columns.len())?;
        for (column, value) in self.columns.iter_mut().zip(values) {
            column.sum.add(*value);
            column.terms += value.abs();
        }
        Ok(())
    }

    /// The sum so far.
    #[must_use]
    pub fn finish(&self) -> WeightGradient {
        WeightGradient {
            dw: self
                .columns
                .iter()
                .map(|column| column.sum.value())
                .collect(),
            terms: self.columns.iter().map(|column| column.terms).collect(),
        }
    }
}

/// A compensated sum (Neumaier 1974): the roundings' losses are summed apart.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    sum: f64,
    lost: f64,
}

impl Sum {
    fn add(&mut self, term: f64) {
        let sum = self.sum + term;
        let (large, small) = if self.sum.abs() >= term.abs() {
            (self.sum, term)
        } else {
            (term, self.sum)
        };
        self.lost += (large - sum) + small;
        self.sum = sum;
    }

    fn value(self) -> f64 {
        if self.sum.is_finite() {
            self.sum + self.lost
        } else {
            self.sum
        }
    }
}

fn sum(terms: impl Iterator<Item = f64>) -> f64 {
    let mut sum = Sum::default();
    terms.for_each(|term| sum.add(term));
    sum.value()
}

fn whole_rows(argument: Argument, elements: usize, hidden: usize) -> Result<usize> {
    if hidden == 0 {
        return Err(Error::UnsupportedHidden { hidden: 0 });
    }
    check_length(argument, elements, elements.next_multiple_of(hidden))?;
    Ok(elements / hidden)
}

fn check_length(argument: Argument, found: usize, expected: usize) -> Result<()> {
    if found != expected {
        return Err(Error::Length {
            argument,
            found: found as u64,
            expected: expected as u64,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers whose results are exact by hand: x = (1, −7, 5, 5), Σx²/4 = 25, rstd = 1/5.
    const X: [f64; 4] = [1.0, -7.0, 5.0, 5.0];
    const W: [f64; 4] = [1.0, 2.0, 0.5, -1.0];

    #[test]
    fn forward_by_hand() {
        let result = forward(&X, &W, 4, 0.0).unwrap();
        assert_eq!(result.rstd, [0.2]);
        let exact = [0.2, -2.8, 0.5, -1.0];
        for (y, exact) in result.y.iter().zip(exact) {
            assert!((y - exact).abs() < 1e-15, "{y} {exact}");
        }
        assert_eq!(
            forward(&[0.0; 4], &W, 4, 1e-6).unwrap().rstd,
            [1.0 / 1e-6f64.sqrt()]
        );
    }

    /// dx and dw against central differences of the loss Σ g·y.
    #[test]
    fn gradients_are_derivatives() {
        let g = [0.3, -1.0, 2.0, 0.7, 1.1, 0.2, -0.4, 0.9];
        let x = [1.0, -2.0, 0.5, 3.0, -1.5, 0.25, 2.0, 1.0];
        let eps = 1e-2;
        let loss = |x: &[f64], w: &[f64]| -> f64 {
            let y = forward(x, w, 4, eps).unwrap().y;
            y.iter().zip(g).map(|(y, g)| y * g).sum()
        };
        let rstd = forward(&x, &W, 4, eps).unwrap().rstd;
        let result = backward(&g, &x, None, &W, &rstd, 4).unwrap();
        let step = 1e-5;
        let slope = |at: &dyn Fn(f64) -> f64| (at(step) - at(-step)) / (2.0 * step);
        for j in 0..8 {
            let moved = |d: f64| {
                let mut x = x;
                x[j] += d;
                loss(&x, &W)
            };
            let (dx, slope) = (result.input.dx[j], slope(&moved));
            assert!((dx - slope).abs() < 1e-8, "dx[{j}] = {dx}, slope {slope}");
        }
        for j in 0..4 {
            let moved = |d: f64| {
                let mut w = W;
                w[j] += d;
                loss(&x, &w)
            };
            let (dw, slope) = (result.weight.dw[j], slope(&moved));
            assert!((dw - slope).abs() < 1e-8, "dw[{j}] = {dw}, slope {slope}");
        }
    }

    #[test]
    fn normalised_is_the_forwards_y() {
        let exact = forward(&X, &W, 4, 0.0).unwrap();
        assert_eq!(normalised(&X, &W, &exact.rstd, 4).unwrap(), exact.y);
        let length = |argument, found, expected| {
            Err(Error::Length {
                argument,
                found,
                expected,
            })
        };
        assert_eq!(normalised(&X, &W, &[], 4), length(Argument::Rstd, 0, 1));
        assert_eq!(
            normalised(&X, &W[1..], &[1.0], 4),
            length(Argument::W, 3, 4)
        );
    }

    #[test]
    fn residual_gradient_is_added() {
        let dy = [1.0, 0.0, 0.0, 0.0];
        let plain = backward(&dy, &X, None, &W, &[0.2], 4).unwrap();
        let added = backward(&dy, &X, Some(&[8.0, -8.0, 0.0, 0.0]), &W, &[0.2], 4).unwrap();
        let difference = |j: usize| added.input.dx[j] - plain.input.dx[j];
        assert!((difference(0) - 8.0).abs() < 1e-14 && (difference(1) + 8.0).abs() < 1e-14);
        assert!((added.input.terms[1] - plain.input.terms[1] - 8.0).abs() < 1e-14);
        assert_eq!(added.weight, plain.weight);
    }

    #[test]
    fn sums_survive_cancellation() {
        assert_eq!(
            sum([1e30, 1.0, -1e30, 2f64.powi(-60)].into_iter()),
            1.0 + 2f64.powi(-60)
        );
        assert_eq!(sum([f64::INFINITY, 1.0].into_iter()), f64::INFINITY);
        assert!(sum([f64::INFINITY, f64::NEG_INFINITY].into_iter()).is_nan());
    }

    #[test]
    fn blocks_of_rows_give_the_whole() {
        let dy: Vec<f64> = (0..40).map(|i| f64::from(i % 7) - 3.0).collect();
        let x: Vec<f64> = (0..40).map(|i| f64::from(i % 5) - 2.0).collect();
        let rstd = [0.5, 0.25, 1.0, 2.0, 0.125];
        let whole = backward(&dy, &x, None, &[1.0; 8], &rstd, 8).unwrap().weight;
        let mut blocks = WeightGradientSum::new(8);
        blocks.add_rows(&dy[..24], &x[..24], &rstd[..3]).unwrap();
        blocks.add_rows(&dy[24..], &x[24..], &rstd[3..]).unwrap();
        assert_eq!(blocks.finish(), whole);
    }

    #[test]
    fn values_join_the_sum() {
        let mut sum = WeightGradientSum::new(2);
        sum.add_values(&[1e30, -2.0]).unwrap();
        sum.add_rows(&[1.0, 1.0], &[2.0, 3.0], &[0.5]).unwrap();
        sum.add_values(&[-1e30, 0.25]).unwrap();
        let result = sum.finish();
        assert_eq!(result.dw, [1.0, -0.25]);
        assert_eq!(result.terms, [2e30 + 1.0, 3.75]);
        let short = sum.add_values(&[0.0]);
        assert_eq!(
            short,
            Err(Error::Length {
                argument: Argument::Dw,
                found: 1,
                expected: 2,
            })
        );
    }

    #[test]
    fn shapes_are_checked() {
        let length = |argument, found, expected| {
            Err(Error::Length {
                argument,
                found,
                expected,
            })
        };
        assert_eq!(
            forward(&X, &W, 0, 0.0).map(drop),
            Err(Error::UnsupportedHidden { hidden: 0 })
        );
        assert_eq!(forward(&X, &W, 3, 0.0).map(drop), length(Argument::X, 4, 6));
        assert_eq!(
            forward(&X, &W[..3], 4, 0.0).map(drop),
            length(Argument::W, 3, 4)
        );
        let rstd = backward(&X, &X, None, &W, &[], 4).map(drop);
        assert_eq!(rstd, length(Argument::Rstd, 0, 1));
        let dh = backward(&X, &X, Some(&[]), &W, &[0.2], 4).map(drop);
        assert_eq!(dh, length(Argument::Dh, 0, 4));
    }
}
