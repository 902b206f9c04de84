//! The operator: y = norm(x)·w and its gradient.

use crate::error::{Error, Result};
use crate::plan::{self, Alignment, BackwardPlan, DeviceProperties, ForwardPlan};
use crate::view::{Dtype, RowsView, VectorView, Workspace};
use cake_rmsnorm_kernels::contract::WeightType;

/// Widest row that has a kernel.
pub const MAX_HIDDEN: u64 = 65_536;
/// Most rows of one call.
pub const MAX_ROWS: u64 = (1 << 31) - 1;

/// RMSNorm over rows of H elements.
///
/// Forward: rstd = 1 / sqrt(Σ h² / H + eps), y = h·rstd·w, where h is x, or x + residual in the
/// residual form, rounded to its type as y is. Backward: dx and the FP32 weight gradient dw from dy, h, w and rstd.
/// (Zhang and Sennrich 2019; docs/numerics.md gives every operation and its order.)
///
/// Matrices and the weight are BF16, FP16 or FP32, each at any address of its type, with any row
/// stride. Fastest is a BF16 matrix with a BF16 or FP32 weight, H a multiple of 8, and rows that
/// start at multiples of 16 bytes; everything else has kernels of its own.
///
/// One operator serves every number of rows, every stream and every backend. All backends give
/// the same bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    hidden: u32,
    input: Dtype,
    weight: Dtype,
    eps: f32,
}

/// What an [`RmsNorm`] is made of; see [`RmsNorm::builder`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "an operator is made by `build`"]
pub struct RmsNormBuilder {
    hidden: u64,
    input: Dtype,
    weight: Dtype,
    eps: f32,
}

impl RmsNormBuilder {
    /// Element type of the matrices: x, residual, h, y, dy, dh, dx. BF16 if not given.
    pub const fn input(self, input: Dtype) -> Self {
        Self { input, ..self }
    }

    /// Element type of the weight. BF16 if not given.
    pub const fn weight(self, weight: Dtype) -> Self {
        Self { weight, ..self }
    }

    /// What is added to the mean square. 1e-6 if not given.
    pub const fn eps(self, eps: f32) -> Self {
        Self { eps, ..self }
    }

    /// The operator.
    ///
    /// # Errors
    /// - [`Error::UnsupportedHidden`] unless H is from 1 to 65,536.
    /// - [`Error::InvalidEps`] when eps is negative, infinite or not a number.
    pub fn build(self) -> Result<RmsNorm> {
        let Self {
            hidden,
            input,
            weight,
            eps,
        } = self;
        if hidden == 0 || hidden > MAX_HIDDEN {
            return Err(Error::UnsupportedHidden { hidden });
        }
        if !(0.0..f32::INFINITY).contains(&eps) {
            return Err(Error::InvalidEps { eps });
        }
        Ok(RmsNorm {
            hidden: hidden as u32,
            input,
            weight,
            eps,
        })
    }
}

impl RmsNorm {
    /// Starts an operator for rows of `hidden` elements: BF16 matrices, a BF16 weight, eps 1e-6,
    /// unless the builder is told otherwise.
    ///
    /// ```
    /// use cake_rmsnorm::{Dtype, RmsNorm};
    ///
    /// let op = RmsNorm::builder(4096).weight(Dtype::F32).eps(1e-5).build()?;
    /// assert_eq!(op.hidden(), 4096);
    /// # Ok::<(), cake_rmsnorm::Error>(())
    /// ```
    pub const fn builder(hidden: u64) -> RmsNormBuilder {
        RmsNormBuilder {
            hidden,
            input: Dtype::Bf16,
            weight: Dtype::Bf16,
            eps: 1e-6,
        }
    }

    /// An operator for BF16 rows of `hidden` elements, a weight of type `weight`, and `eps` inside
    /// the square root.
    ///
    /// # Errors
    /// - As [`RmsNormBuilder::build`].
    pub fn new(hidden: u64, weight: Dtype, eps: f32) -> Result<Self> {
        Self::builder(hidden).weight(weight).eps(eps).build()
    }

    /// H.
    #[must_use]
    pub fn hidden(&self) -> u64 {
        u64::from(self.hidden)
    }

    /// The element type of the matrices.
    #[must_use]
    pub fn input(&self) -> Dtype {
        self.input
    }

    /// The weight's element type.
    #[must_use]
    pub fn weight(&self) -> Dtype {
        self.weight
    }

    /// The weight's type, where the fast kernels have the types and the width.
    pub(crate) fn fast_weight(&self) -> Option<WeightType> {
        if self.input != Dtype::Bf16 || !self.hidden.is_multiple_of(8) {
            return None;
        }
        match self.weight {
            Dtype::Bf16 => Some(WeightType::Bf16),
            Dtype::F16 => None,
            Dtype::F32 => Some(WeightType::F32),
        }
    }

    /// eps.
    #[must_use]
    pub fn eps(&self) -> f32 {
        self.eps
    }

    /// What a forward over `rows` rows launches on `device`, where all rows and the weight start at
    /// multiples of 16 bytes; [`plan::forward`] tells of others.
    ///
    /// # Errors
    /// - [`Error::TooManyRows`]; [`Error::UnsupportedDevice`].
    pub fn forward_plan(
        &self,
        rows: u64,
        residual: bool,
        device: &DeviceProperties,
    ) -> Result<ForwardPlan> {
        plan::forward(self, rows, residual, Alignment::Vector, device)
    }

    /// What a backward over `rows` rows launches on `device`, its leaf table and its workspace,
    /// where all rows and the weight start at multiples of 16 bytes; [`plan::backward`] tells of
    /// others.
    ///
    /// # Errors
    /// - [`Error::TooManyRows`]; [`Error::UnsupportedDevice`]; [`Error::SharedMemory`].
    pub fn backward_plan(
        &self,
        rows: u64,
        residual: bool,
        device: &DeviceProperties,
    ) -> Result<BackwardPlan> {
        plan::backward(self, rows, residual, Alignment::Vector, device)
    }

    /// Bytes of workspace that serve a backward over `rows` rows on `device`, however its arguments
    /// are aligned.
    ///
    /// # Errors
    /// - As [`RmsNorm::backward_plan`].
    pub fn workspace_bytes(
        &self,
        rows: u64,
        residual: bool,
        device: &DeviceProperties,
    ) -> Result<u64> {
        let bytes = |alignment| {
            let plan = plan::backward(self, rows, residual, alignment, device)?;
            Ok(plan.workspace_bytes)
        };
        Ok(bytes(Alignment::Vector)?.max(bytes(Alignment::Element)?))
    }
}

/// Arguments of a forward. All matrices are [T, H] of the operator's input type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForwardArgs {
    /// Input.
    pub x: RowsView,
    /// Input that is added to x first; together with `h`.
    pub residual: Option<RowsView>,
    /// Input, \[H\] of the operator's weight type.
    pub w: VectorView,
    /// Output x + residual, rounded; together with `residual`.
    pub h: Option<RowsView>,
    /// Output.
    pub y: RowsView,
    /// Output, FP32 \[T\].
    pub rstd: VectorView,
}

/// Arguments of a backward. All matrices are [T, H] of the operator's input type.
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
    /// Scratch memory of at least [`BackwardPlan::workspace_bytes`]; [`RmsNorm::workspace_bytes`]
    /// serves any alignment.
    pub workspace: Workspace,
}
