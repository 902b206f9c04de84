//! The operator: y = norm(x)·w and its gradient.

use crate::error::{Error, Result};
use crate::plan::{
    self, BackwardForm, BackwardPlan, DeviceProperties, ForwardForm, ForwardPlan, Routes,
};
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
/// w is the weight, plus an offset if there is one (zero-centred weights have 1), or 1 without a
/// weight.
///
/// Matrices and the weight are BF16, FP16 or FP32, each at any address of its type, with any row
/// stride, or two. Fastest is a BF16 matrix with a BF16 or FP32 weight, H a multiple of 8, and rows that
/// start at multiples of 16 bytes; everything else has kernels of its own.
///
/// One operator serves every number of rows, every stream and every backend. All backends give
/// the same bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    hidden: u32,
    input: Dtype,
    weight: Option<Dtype>,
    weight_offset: f32,
    eps: f32,
}

/// What an [`RmsNorm`] is made of; see [`RmsNorm::builder`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "an operator is made by `build`"]
pub struct RmsNormBuilder {
    hidden: u64,
    input: Dtype,
    weight: Option<Dtype>,
    weight_offset: f32,
    eps: f32,
}

impl RmsNormBuilder {
    /// Element type of the matrices: x, residual, h, y, dy, dh, dx. BF16 if not given.
    pub const fn input(self, input: Dtype) -> Self {
        Self { input, ..self }
    }

    /// Element type of the weight. BF16 if not given.
    pub const fn weight(self, weight: Dtype) -> Self {
        Self {
            weight: Some(weight),
            ..self
        }
    }

    /// No weight: y is the normalised row, and there is no dw.
    pub const fn no_weight(self) -> Self {
        Self {
            weight: None,
            ..self
        }
    }

    /// What is added to each element of the weight, in FP32: 1 for zero-centred weights. 0 if not
    /// given.
    pub const fn weight_offset(self, weight_offset: f32) -> Self {
        Self {
            weight_offset,
            ..self
        }
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
    /// - [`Error::InvalidWeightOffset`] when the offset is not finite;
    ///   [`Error::OffsetWithoutWeight`] when it is not 0 although there is no weight.
    pub fn build(self) -> Result<RmsNorm> {
        let Self {
            hidden,
            input,
            weight,
            weight_offset,
            eps,
        } = self;
        if hidden == 0 || hidden > MAX_HIDDEN {
            return Err(Error::UnsupportedHidden { hidden });
        }
        if !(0.0..f32::INFINITY).contains(&eps) {
            return Err(Error::InvalidEps { eps });
        }
        let offset = weight_offset;
        if !offset.is_finite() {
            return Err(Error::InvalidWeightOffset { offset });
        }
        if weight.is_none() && offset != 0.0 {
            return Err(Error::OffsetWithoutWeight { offset });
        }
        Ok(RmsNorm {
            hidden: hidden as u32,
            input,
            weight,
            weight_offset,
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
            weight: Some(Dtype::Bf16),
            weight_offset: 0.0,
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

    /// The weight's element type; `None` without a weight.
    #[must_use]
    pub fn weight(&self) -> Option<Dtype> {
        self.weight
    }

    /// What is added to each element of the weight.
    #[must_use]
    pub fn weight_offset(&self) -> f32 {
        self.weight_offset
    }

    /// The offset as kernels add it to every element: −0 changes no bit of any.
    pub(crate) fn added_offset(&self) -> f32 {
        if self.weight_offset == 0.0 {
            -0.0
        } else {
            self.weight_offset
        }
    }

    /// The weight's type, where the fast kernels have the types and the width.
    pub(crate) fn fast_weight(&self) -> Option<WeightType> {
        if self.input != Dtype::Bf16 || !self.hidden.is_multiple_of(8) {
            return None;
        }
        match self.weight {
            // A weight of ones is not read: either kernel does.
            None | Some(Dtype::Bf16) => Some(WeightType::Bf16),
            Some(Dtype::F16) => None,
            Some(Dtype::F32) => Some(WeightType::F32),
        }
    }

    /// eps.
    #[must_use]
    pub fn eps(&self) -> f32 {
        self.eps
    }

    /// What a forward over `rows` rows launches on `device` by the built-in routes, where all rows
    /// have one distance, and they and the weight start at multiples of 16 bytes;
    /// [`plan::forward`] tells of others.
    ///
    /// # Errors
    /// - [`Error::TooManyRows`]; [`Error::UnsupportedDevice`].
    pub fn forward_plan(
        &self,
        rows: u64,
        residual: bool,
        device: &DeviceProperties,
    ) -> Result<ForwardPlan> {
        self.forward_plan_by(Routes::built_in(), rows, residual, device)
    }

    /// As [`RmsNorm::forward_plan`], by other routes.
    ///
    /// # Errors
    /// - As [`RmsNorm::forward_plan`].
    pub fn forward_plan_by(
        &self,
        routes: &Routes,
        rows: u64,
        residual: bool,
        device: &DeviceProperties,
    ) -> Result<ForwardPlan> {
        let form = ForwardForm {
            residual,
            ..ForwardForm::default()
        };
        plan::forward_by(routes, self, rows, form, device)
    }

    /// What a backward over `rows` rows launches on `device` by the built-in routes, its leaf table
    /// and its workspace, where dx and dw are both wanted, rstd was kept, all rows have one distance, and they and the
    /// weight start at multiples of 16 bytes; [`plan::backward`] tells of others.
    ///
    /// # Errors
    /// - [`Error::TooManyRows`]; [`Error::UnsupportedDevice`]; [`Error::SharedMemory`].
    pub fn backward_plan(
        &self,
        rows: u64,
        residual: bool,
        device: &DeviceProperties,
    ) -> Result<BackwardPlan> {
        self.backward_plan_by(Routes::built_in(), rows, residual, device)
    }

    /// As [`RmsNorm::backward_plan`], by other routes: those of the backend that runs it
    /// ([`crate::backend::Backend::routes`]), or the workspace may be too small.
    ///
    /// # Errors
    /// - As [`RmsNorm::backward_plan`].
    pub fn backward_plan_by(
        &self,
        routes: &Routes,
        rows: u64,
        residual: bool,
        device: &DeviceProperties,
    ) -> Result<BackwardPlan> {
        let form = BackwardForm {
            residual,
            ..BackwardForm::default()
        };
        plan::backward_by(routes, self, rows, form, device)
    }

    /// Bytes of workspace that serve a backward over `rows` rows on `device` by the built-in routes,
    /// however its arguments lie and whatever of them is there.
    ///
    /// # Errors
    /// - As [`RmsNorm::backward_plan`].
    pub fn workspace_bytes(
        &self,
        rows: u64,
        residual: bool,
        device: &DeviceProperties,
    ) -> Result<u64> {
        self.workspace_bytes_by(Routes::built_in(), rows, residual, device)
    }

    /// As [`RmsNorm::workspace_bytes`], by other routes.
    ///
    /// # Errors
    /// - As [`RmsNorm::backward_plan`].
    pub fn workspace_bytes_by(
        &self,
        routes: &Routes,
        rows: u64,
        residual: bool,
        device: &DeviceProperties,
    ) -> Result<u64> {
        let mut bytes = 0;
        for form in BackwardForm::every(residual) {
            let plan = plan::backward_by(routes, self, rows, form, device)?;
            bytes = plan.workspace_bytes.max(bytes);
        }
        Ok(bytes)
    }
}

/// Arguments of a forward. All matrices are [T, H] of the operator's input type.
///
/// Outputs share no memory with other arguments, but for y and h, which may lie in the place of x
/// or of residual: same address, same strides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForwardArgs {
    /// Input.
    pub x: RowsView,
    /// Input that is added to x first; together with `h`.
    pub residual: Option<RowsView>,
    /// Input, \[H\] of the operator's weight type; `None` for an operator without a weight.
    pub w: Option<VectorView>,
    /// Output x + residual, rounded; together with `residual`.
    pub h: Option<RowsView>,
    /// Output.
    pub y: RowsView,
    /// Output, FP32 \[T\], if it is wanted: a backward can work it out again.
    pub rstd: Option<VectorView>,
}

/// Arguments of a backward. All matrices are [T, H] of the operator's input type.
///
/// Outputs share no memory with other arguments, but for dx, which may lie in the place of dy, x or
/// dh: same address, same strides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackwardArgs {
    /// Input: gradient of y.
    pub dy: RowsView,
    /// Input: what the forward normalised (x, or h of the residual form).
    pub x: RowsView,
    /// Input that is added to dx: gradient of h from elsewhere.
    pub dh: Option<RowsView>,
    /// Input, \[H\] of the operator's weight type; `None` for an operator without a weight.
    pub w: Option<VectorView>,
    /// Input, FP32 \[T\]: of the forward. Without it, it is worked out again from x, with the same
    /// bits: one more launch, and one more read of x.
    pub rstd: Option<VectorView>,
    /// Output, if it is wanted: gradient of x (and of the residual).
    pub dx: Option<RowsView>,
    /// Output, if it is wanted: gradient of w.
    pub dw: Option<WeightGradient>,
    /// Scratch memory of at least [`BackwardPlan::workspace_bytes`]; [`RmsNorm::workspace_bytes`]
    /// serves any arguments.
    pub workspace: Workspace,
}

/// Where the gradient of w goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightGradient {
    /// Output \[H\], FP32; or BF16, if it is overwritten and there is no other.
    pub dw: VectorView,
    /// Whether it is overwritten or added to.
    pub update: Update,
    /// Output, BF16 \[H\], if it is wanted: dw, rounded once more.
    pub bf16: Option<VectorView>,
}

/// What happens to the values that dw holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Update {
    /// They do not matter.
    Overwrite,
    /// They join the sum before it is rounded: gradients of several calls add up with one rounding
    /// each.
    Accumulate,
}

impl WeightGradient {
    /// dw is overwritten.
    #[must_use]
    pub const fn overwrite(dw: VectorView) -> Self {
        Self {
            dw,
            update: Update::Overwrite,
            bf16: None,
        }
    }

    /// dw is added to.
    #[must_use]
    pub const fn accumulate(dw: VectorView) -> Self {
        Self {
            update: Update::Accumulate,
            ..Self::overwrite(dw)
        }
    }

    /// The same, and dw rounded to BF16 besides.
    #[must_use]
    pub const fn and_bf16(self, bf16: VectorView) -> Self {
        Self {
            bf16: Some(bf16),
            ..self
        }
    }

    /// The FP32 output and the BF16 output.
    pub(crate) fn outputs(&self) -> (Option<VectorView>, Option<VectorView>) {
        match self.dw.dtype {
            Dtype::Bf16 => (None, Some(self.dw)),
            _ => (Some(self.dw), self.bf16),
        }
    }
}

impl From<VectorView> for WeightGradient {
    /// dw is overwritten.
    fn from(dw: VectorView) -> Self {
        Self::overwrite(dw)
    }
}
