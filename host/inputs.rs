//! Seeded inputs: the same on every platform, with the rows that real models have and that
//! normally distributed data lacks.
//!
//! Only integer arithmetic and correctly rounded operations are used (no `ln`, no `exp`), so a
//! seed names the same tensors everywhere. Each row has its own ChaCha stream: rows are filled in
//! parallel, and row t does not depend on T.

pub mod pool;

use crate::element::Element;
use crate::golden;
use crate::view::Dtype;
use half::{bf16, f16};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rayon::prelude::*;
use std::collections::TryReserveError;

/// The inputs of a forward and a backward. Matrices are packed, `rows` x `hidden`.
#[derive(Clone, Debug, PartialEq)]
pub struct Inputs<E = bf16> {
    /// T.
    pub rows: usize,
    /// H.
    pub hidden: usize,
    /// Input of the forward.
    pub x: Vec<E>,
    /// What is added to x first, in the residual form.
    pub residual: Option<Vec<E>>,
    /// Gradient of y.
    pub dy: Vec<E>,
    /// Gradient of h from elsewhere, added to dx.
    pub dh: Option<Vec<E>>,
    /// Weight, of `hidden` elements.
    pub w: Weight,
}

impl<E: Element> Inputs<E> {
    /// The same inputs with matrices of another type, each element rounded to nearest even.
    #[must_use]
    pub fn to_type<F: Element>(&self) -> Inputs<F> {
        let matrix = |values: &Vec<E>| values.iter().map(|&x| F::from_f32(x.to_f32())).collect();
        Inputs {
            rows: self.rows,
            hidden: self.hidden,
            x: matrix(&self.x),
            residual: self.residual.as_ref().map(matrix),
            dy: matrix(&self.dy),
            dh: self.dh.as_ref().map(matrix),
            w: self.w.clone(),
        }
    }
}

/// A weight vector.
#[derive(Clone, Debug, PartialEq)]
pub enum Weight {
    /// FP32.
    F32(Vec<f32>),
    /// BF16.
    Bf16(Vec<bf16>),
    /// FP16.
    F16(Vec<f16>),
}

impl Weight {
    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        match self {
            Weight::F32(_) => Dtype::F32,
            Weight::Bf16(_) => Dtype::Bf16,
            Weight::F16(_) => Dtype::F16,
        }
    }

    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Weight::F32(w) => w.len(),
            Weight::Bf16(w) => w.len(),
            Weight::F16(w) => w.len(),
        }
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as they lie in memory.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Weight::F32(w) => bytemuck::cast_slice(w),
            Weight::Bf16(w) => bytemuck::cast_slice(w),
            Weight::F16(w) => bytemuck::cast_slice(w),
        }
    }

    /// The weight as the golden implementation takes it.
    #[must_use]
    pub fn as_golden(&self) -> golden::Weight<'_> {
        match self {
            Weight::F32(w) => golden::Weight::F32(w),
            Weight::Bf16(w) => golden::Weight::Bf16(w),
            Weight::F16(w) => golden::Weight::F16(w),
        }
    }

    /// The elements, widened exactly to FP32.
    #[must_use]
    pub fn to_f32(&self) -> Vec<f32> {
        match self {
            Weight::F32(w) => w.clone(),
            Weight::Bf16(w) => w.iter().map(|w| w.to_f32()).collect(),
            Weight::F16(w) => w.iter().map(|w| w.to_f32()).collect(),
        }
    }

    /// The weight as `dtype`, each element rounded to nearest even (exact to a wider type).
    #[must_use]
    pub fn to_dtype(&self, dtype: Dtype) -> Weight {
        let elements = self.to_f32();
        match dtype {
            Dtype::F32 => Weight::F32(elements),
            Dtype::Bf16 => Weight::Bf16(elements.into_iter().map(bf16::from_f32).collect()),
            Dtype::F16 => Weight::F16(elements.into_iter().map(f16::from_f32).collect()),
        }
    }
}

/// log₂ of the largest factor of outlier channels.
const LARGEST_OUTLIER: i32 = 14;

/// What inputs to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// T.
    pub rows: usize,
    /// H.
    pub hidden: usize,
    /// The weight's type.
    pub weight: Dtype,
    /// Whether to make `residual` and `dh` too.
    pub residual: bool,
    /// Names the tensors.
    pub seed: u64,
}

impl Spec {
    /// Makes BF16 inputs, with all of rayon's threads.
    ///
    /// Of 16 rows, about 10 are ordinary (RMS from 2⁻⁴ to 2⁴), 4 hold a few channels up to 2¹⁴
    /// times as large as the rest (always the same channels, as massive activations do), and 2 are
    /// tiny (RMS from 2⁻²⁰ to 2⁻¹⁰, below the square root of a usual eps). dy has heavy tails; w
    /// is spread around 1.
    ///
    /// # Errors
    /// - Memory for a tensor cannot be had.
    pub fn generate(&self) -> Result<Inputs, TryReserveError> {
        self.generate_as()
    }

    /// Makes inputs of any type. FP16 and FP32 values are those of which the BF16 ones are rounded,
    /// but for outliers that FP16 does not reach: of FP16 they are up to 2¹¹ times as large.
    ///
    /// # Errors
    /// - Memory for a tensor cannot be had.
    pub fn generate_as<E: Element>(&self) -> Result<Inputs<E>, TryReserveError> {
        let outliers = self.outlier_channels(LARGEST_OUTLIER.min(E::EXPONENTS.1 - 4));
        let x = self.matrix(Tensor::X, |rng, row| {
            let kind = Kind::draw(rng);
            let scale = kind.scale(rng);
            bell_row(rng, row, scale);
            if kind == Kind::Outlier {
                amplify(rng, row, &outliers);
            }
        })?;
        let dy = self.matrix(Tensor::Dy, heavy_row)?;
        let (residual, dh) = if self.residual {
            let residual = self.matrix(Tensor::Residual, |rng, row| {
                let scale = power_of_two(rng, -4, 2);
                bell_row(rng, row, scale);
            })?;
            (Some(residual), Some(self.matrix(Tensor::Dh, heavy_row)?))
        } else {
            (None, None)
        };
        let w = Weight::F32(self.weight_vector()).to_dtype(self.weight);
        Ok(Inputs {
            rows: self.rows,
            hidden: self.hidden,
            x,
            residual,
            dy,
            dh,
            w,
        })
    }

    /// Makes gates for the gated form: z, of `rows` x `hidden`, bell-shaped with an RMS from 1/2 to
    /// 8 a row.
    ///
    /// # Errors
    /// - Memory for the tensor cannot be had.
    pub fn generate_gate(&self) -> Result<Vec<bf16>, TryReserveError> {
        self.matrix(Tensor::Gate, |rng, row| {
            let scale = power_of_two(rng, -1, 2);
            bell_row(rng, row, scale);
        })
    }

    /// A matrix whose rows `fill` writes, each from its own stream.
    fn matrix<E: Element>(
        &self,
        tensor: Tensor,
        fill: impl Fn(&mut ChaCha8Rng, &mut [E]) + Sync,
    ) -> Result<Vec<E>, TryReserveError> {
        // More than can be addressed fails to be reserved.
        let len = self.rows.saturating_mul(self.hidden);
        let mut values = Vec::new();
        values.try_reserve_exact(len)?;
        values.resize(len, E::zeroed());
        if len > 0 {
            let base = ChaCha8Rng::seed_from_u64(self.seed);
            let rows = values
                .par_chunks_exact_mut(self.hidden)
                .with_min_len(64)
                .enumerate();
            rows.for_each(|(t, row)| fill(&mut stream(&base, tensor, t), row));
        }
        Ok(values)
    }

    /// The channels that outlier rows amplify, with their factors, which are from 2⁸ to
    /// 2^`largest`.
    fn outlier_channels(&self, largest: i32) -> Vec<(usize, f32)> {
        let base = ChaCha8Rng::seed_from_u64(self.seed);
        let mut rng = stream(&base, Tensor::Channels, 0);
        let count = if self.hidden == 0 {
            0
        } else {
            1 + self.hidden / 1024
        };
        let mut channel = || {
            let channel = (rng.next_u64() % self.hidden as u64) as usize;
            (channel, power_of_two(&mut rng, 8, largest))
        };
        (0..count).map(|_| channel()).collect()
    }

    fn weight_vector(&self) -> Vec<f32> {
        let base = ChaCha8Rng::seed_from_u64(self.seed);
        let mut rng = stream(&base, Tensor::W, 0);
        (0..self.hidden)
            .map(|_| 1.0 + 0.25 * bell(rng.next_u64()))
            .collect()
    }
}

/// What a stream is for; a number of each.
#[derive(Clone, Copy)]
enum Tensor {
    X = 0,
    Dy = 1,
    Residual = 2,
    Dh = 3,
    W = 4,
    Channels = 5,
    Differences = 6,
    Gate = 7,
}

fn stream(base: &ChaCha8Rng, tensor: Tensor, row: usize) -> ChaCha8Rng {
    let mut rng = base.clone();
    rng.set_stream(((row as u64) << 3) | tensor as u64);
    rng
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Ordinary,
    Outlier,
    Tiny,
}

impl Kind {
    fn draw(rng: &mut ChaCha8Rng) -> Kind {
        match rng.next_u32() % 16 {
            0..10 => Kind::Ordinary,
            10..14 => Kind::Outlier,
            _ => Kind::Tiny,
        }
    }

    fn scale(self, rng: &mut ChaCha8Rng) -> f32 {
        match self {
            Kind::Ordinary => power_of_two(rng, -4, 4),
            Kind::Outlier => power_of_two(rng, -2, 1),
            Kind::Tiny => power_of_two(rng, -20, -10),
        }
    }
}

/// 2^k with k from `low` to `high`, both included, times a factor from 1 to 2.
fn power_of_two(rng: &mut ChaCha8Rng, low: i32, high: i32) -> f32 {
    let draw = rng.next_u64();
    let exponent = low + (draw as u32 % (high - low + 1) as u32) as i32;
    let mantissa = (draw >> 41) as u32;
    f32::from_bits((((127 + exponent) as u32) << 23) | mantissa)
}

/// 1 / the standard deviation of a sum of four 16-bit values: √3 / 2¹⁶, rounded.
const BELL_UNIT: f32 = 1.732_050_8 / 65_536.0;

/// A bell-shaped value of standard deviation 1: the sum of four 16-bit values, centred.
pub(crate) fn bell(draw: u64) -> f32 {
    let parts = [draw, draw >> 16, draw >> 32, draw >> 48];
    let sum: i32 = parts.iter().map(|&part| i32::from(part as u16)).sum();
    (sum - 2 * 65_535) as f32 * BELL_UNIT
}

fn bell_row<E: Element>(rng: &mut ChaCha8Rng, row: &mut [E], scale: f32) {
    for value in row {
        *value = E::from_f32(bell(rng.next_u64()) * scale);
    }
}

/// Multiplies the outlier channels.
fn amplify<E: Element>(rng: &mut ChaCha8Rng, row: &mut [E], channels: &[(usize, f32)]) {
    for &(channel, factor) in channels {
        // Away from zero, so that the channel does stand out.
        let value = bell(rng.next_u64());
        row[channel] = E::from_f32((value + 1f32.copysign(value)) * factor);
    }
}

/// A row of heavy-tailed values: a bell divided by the root of a uniform value (a tail of 1 / t²),
/// up to 256 times as large as the bell's.
fn heavy_row<E: Element>(rng: &mut ChaCha8Rng, row: &mut [E]) {
    let scale = power_of_two(rng, -10, -2);
    for value in row {
        let draw = rng.next_u64();
        let uniform = (f32::from(draw as u16) + 1.0) / 65_536.0;
        // The low 16 bits are spent: a sum of three shifted values has another scale, which the
        // row's absorbs.
        let parts = [draw >> 16, draw >> 32, draw >> 48];
        let sum: i32 = parts.iter().map(|&part| 2 * i32::from(part as u16)).sum();
        let bell = (sum - 3 * 65_535) as f32 / 65_536.0;
        *value = E::from_f32(bell / uniform.sqrt() * scale);
    }
}

#[cfg(test)]
mod tests;
