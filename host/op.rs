//! The operator: y = norm(x)·w and its gradient.

use crate::error::{Error, Result};
use crate::plan::{self, BackwardPlan, DeviceProperties, ForwardPlan};
use crate::view::{Dtype, RowsView, VectorView, Workspace};
use cake_rmsnorm_kernels::contract::WeightType;

/// Widest row that has a kernel.
pub const MAX_HIDDEN: u64 = 65_536;
/// Most rows of one call.
pub const MAX_ROWS: u64 = (1 << 31) - 1;

/// RMSNorm over rows of H BF16 elements, with a BF16 or FP32 weight.
///
/// Forward: rstd = 1 / sqrt(Σ h² / H + eps), y = BF16(h·rstd·w), where h is x, or BF16(x + residual)
/// in the residual form. Backward: dx and the FP32 weight gradient dw from dy, h, w and rstd.
/// (Zhang and Sennrich 2019; docs/numerics.md gives every operation and its order.)
///
/// One operator serves every number of rows, every stream and every backend. All backends give
/// the same bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    hidden: u32,
    weight: WeightType,
    eps: f32,
}

impl RmsNorm {
    /// An operator for rows of `hidden` elements, a weight of type `weight`, and `eps` inside the
    /// square root.
    ///
    /// # Errors
    /// - [`Error::UnsupportedHidden`] unless `hidden` is a multiple of 8 from 8 to 65,536.
    /// - [`Error::InvalidEps`] when `eps` is negative, infinite or not a number.
    pub fn new(hidden: u64, weight: Dtype, eps: f32) -> Result<Self> {
        if hidden == 0 || hidden > MAX_HIDDEN || !hidden.is_multiple_of(8) {
            return Err(Error::UnsupportedHidden { hidden });
        }
        if !(0.0..f32::INFINITY).contains(&eps) {
            return Err(Error::InvalidEps { eps });
        }
        let weight = match weight {
            Dtype::F32 => WeightType::F32,
            Dtype::Bf16 => WeightType::Bf16,
        };
        Ok(Self {
            hidden: hidden as u32,
            weight,
            eps,
        })
    }

    /// H.
    #[must_use]
    pub fn hidden(&self) -> u64 {
        u64::from(self.hidden)
    }

    /// The weight's element type.
    #[must_use]
    pub fn weight(&self) -> Dtype {
        match self.weight {
            WeightType::F32 => Dtype::F32,
            WeightType::Bf16 => Dtype::Bf16,
        }
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn weight_type(&self) -> WeightType {
        self.weight
    }

    /// eps.
    #[must_use]
    pub fn eps(&self) -> f32 {
        self.eps
    }

    /// What a forward over `rows` rows launches on `device`.
    ///
    /// # Errors
    /// - [`Error::TooManyRows`]; [`Error::UnsupportedDevice`].
    pub fn forward_plan(
        &self,
        rows: u64,
        residual: bool,
        device: &DeviceProperties,
    ) -> Result<ForwardPlan> {
        plan::forward(self.hidden, self.weight, rows, residual, device)
    }

    /// What a backward over `rows` rows launches on `device`, its leaf table and its workspace.
    ///
    /// # Errors
    /// - [`Error::TooManyRows`]; [`Error::UnsupportedDevice`]; [`Error::SharedMemory`].
    pub fn backward_plan(
        &self,
        rows: u64,
        residual: bool,
        device: &DeviceProperties,
    ) -> Result<BackwardPlan> {
        plan::backward(self.hidden, self.weight, rows, residual, device)
    }
}

/// Arguments of a forward. All matrices are BF16 [T, H].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForwardArgs {
    /// Input.
    pub x: RowsView,
    /// Input that is added to x first; together with `h`.
    pub residual: Option<RowsView>,
    /// Input, \[H\] of the operator's weight type.
    pub w: VectorView,
    /// Output BF16(x + residual); together with `residual`.
    pub h: Option<RowsView>,
    /// Output.
    pub y: RowsView,
    /// Output, FP32 \[T\].
    pub rstd: VectorView,
}

/// Arguments of a backward. All matrices are BF16 [T, H].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackwardArgs {
    /// Input: gradient of y.
    pub dy: RowsView,
    /// Input: what the forward normalised (x, or h of the residual form).
    pub x: RowsView,
    /// Input that is added to dx: gradient of h from elsewhere.
    pub dh: Option<RowsView>,
    /// Input, \[H\] of the operator's weight type.
    pub w: VectorView,
    /// Input, FP32 \[T\]: of the forward.
    pub rstd: VectorView,
    /// Output: gradient of x (and of the residual).
    pub dx: RowsView,
    /// Output, FP32 \[H\]: gradient of w.
    pub dw: VectorView,
    /// Scratch memory of at least [`BackwardPlan::workspace_bytes`].
    pub workspace: Workspace,
}
