//! The layer.

use crate::ops;
use candle_core::{Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};

/// RMSNorm with a weight, in the place of candle-nn's.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f64,
    weight_offset: f64,
}

impl RmsNorm {
    /// A layer with this weight, \[H\], and `eps` inside the square root.
    #[must_use]
    pub const fn new(weight: Tensor, eps: f64) -> Self {
        Self {
            weight,
            eps,
            weight_offset: 0.0,
        }
    }

    /// Adds `offset` to each element of the weight, in FP32: 1 for zero-centred weights.
    #[must_use]
    pub fn with_weight_offset(self, offset: f64) -> Self {
        Self {
            weight_offset: offset,
            ..self
        }
    }

    /// The weight.
    #[must_use]
    pub const fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// eps.
    #[must_use]
    pub const fn eps(&self) -> f64 {
        self.eps
    }

    /// Normalises x + residual; returns y and the sum, which is the next layer's residual.
    ///
    /// # Errors
    /// - As [`ops::rms_norm_residual`].
    pub fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        let options = self.options();
        ops::rms_norm_residual(x, residual, &self.weight, options)
    }

    fn options(&self) -> ops::Options {
        ops::Options {
            eps: self.eps as f32,
            weight_offset: self.weight_offset as f32,
        }
    }
}

impl Module for RmsNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::rms_norm(x, &self.weight, self.options())
    }
}

/// A layer whose weight, \[`size`\], is the tensor `weight` of `vb`; ones where it is new.
///
/// # Errors
/// - The tensor is missing, or has another shape.
pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder<'_>) -> Result<RmsNorm> {
    let weight = vb.get_with_hints(size, "weight", Init::Const(1.0))?;
    Ok(RmsNorm::new(weight, eps))
}
