//! The gated operator and its arguments.

use super::GateOrder;
use super::view::HeadsView;
use crate::error::{Argument, Error, Result};
use crate::op::Update;
use crate::plan::{self, DeviceProperties, GatedBackwardPlan, GatedForwardPlan, Spacing};
use crate::view::{Dtype, VectorView, Workspace};
use cake_rmsnorm_kernels::contract::WeightType;

/// Widest group that has a kernel.
pub const MAX_WIDTH: u64 = 8192;

/// RMSNorm with a SiLU gate over rows of H BF16 elements, with a BF16 or FP32 weight.
///
/// With g = z·sigmoid(z), forward: y = BF16(norm(x)·w·g) where the norm comes first (Qwen3-Next,
/// GatedDeltaNet), y = BF16(norm(x·g)·w) where the gate does (Mamba-2). Backward: dx, dz and the
/// FP32 weight gradient dw from dy, x, z and w. A row may be cut into groups that are normalised
/// each on its own. (docs/numerics.md gives every operation and its order.)
///
/// One operator serves every number of rows, every stream and every backend. All backends give
/// the same bits. A grouped operator gives the bits of one operator a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedRmsNorm {
    hidden: u32,
    groups: u32,
    weight: WeightType,
    eps: f32,
    order: GateOrder,
}

impl GatedRmsNorm {
    /// An operator for rows of `hidden` elements, a weight of type `weight`, and `eps` inside the
    /// square root; one group a row.
    ///
    /// # Errors
    /// - [`Error::UnsupportedWidth`] unless `hidden` is a multiple of 8 from 8 to 8,192.
    /// - [`Error::InvalidEps`] when `eps` is negative, infinite or not a number.
    /// - [`Error::Dtype`] when `weight` is FP16.
    pub fn new(order: GateOrder, hidden: u64, weight: Dtype, eps: f32) -> Result<Self> {
        Self::with_groups(order, hidden, 1, weight, eps)
    }

    /// The same for rows that are cut into `groups` groups of `hidden / groups` elements.
    ///
    /// # Errors
    /// - [`Error::UnsupportedWidth`] unless `hidden / groups` is whole and a multiple of 8 from 8 to
    ///   8,192, and `hidden` at most 65,536.
    /// - [`Error::InvalidEps`], [`Error::Dtype`] as [`GatedRmsNorm::new`].
    pub fn with_groups(
        order: GateOrder,
        hidden: u64,
        groups: u64,
        weight: Dtype,
        eps: f32,
    ) -> Result<Self> {
        let whole = groups > 0 && hidden <= crate::op::MAX_HIDDEN && hidden.is_multiple_of(groups);
        let width = hidden / groups.max(1);
        if !whole || width == 0 || width > MAX_WIDTH || !width.is_multiple_of(8) {
            return Err(Error::UnsupportedWidth { hidden, groups });
        }
        if !(0.0..f32::INFINITY).contains(&eps) {
            return Err(Error::InvalidEps { eps });
        }
        let weight = match weight {
            Dtype::F32 => WeightType::F32,
            Dtype::Bf16 => WeightType::Bf16,
            found @ Dtype::F16 => {
                return Err(Error::Dtype {
                    argument: Argument::W,
                    found,
                    accepted: Dtype::Bf16,
                });
            }
        };
        Ok(Self {
            hidden: hidden as u32,
            groups: groups as u32,
            weight,
            eps,
            order,
        })
    }

    /// H.
    #[must_use]
    pub fn hidden(&self) -> u64 {
        u64::from(self.hidden)
    }

    /// Groups of a row.
    #[must_use]
    pub fn groups(&self) -> u64 {
        u64::from(self.groups)
    }

    /// Elements of a group: what one rstd belongs to.
    #[must_use]
    pub fn width(&self) -> u64 {
        u64::from(self.hidden / self.groups)
    }

    /// The weight's element type.
    #[must_use]
    pub fn weight(&self) -> Dtype {
        match self.weight {
            WeightType::F32 => Dtype::F32,
            WeightType::Bf16 => Dtype::Bf16,
        }
    }

    pub(crate) fn weight_type(&self) -> WeightType {
        self.weight
    }

    /// eps.
    #[must_use]
    pub fn eps(&self) -> f32 {
        self.eps
    }

    /// Which comes first.
    #[must_use]
    pub fn order(&self) -> GateOrder {
        self.order
    }

    /// What a forward over `rows` rows (tokens times heads), which lie as `spacing` says, launches on
    /// `device`.
    ///
    /// # Errors
    /// - [`Error::TooManyRows`]; [`Error::UnsupportedDevice`].
    pub fn forward_plan(
        &self,
        rows: u64,
        spacing: Spacing,
        device: &DeviceProperties,
    ) -> Result<GatedForwardPlan> {
        plan::gated_forward(self, rows, spacing, device)
    }

    /// What a backward over `rows` rows launches on `device`, its leaf table and its workspace;
    /// `dw` says whether dw is wanted.
    ///
    /// # Errors
    /// - [`Error::TooManyRows`]; [`Error::UnsupportedDevice`]; [`Error::SharedMemory`].
    pub fn backward_plan(
        &self,
        rows: u64,
        dw: bool,
        device: &DeviceProperties,
    ) -> Result<GatedBackwardPlan> {
        plan::gated_backward(self, rows, dw, device)
    }
}

/// Arguments of a gated forward. Tensors are BF16 [tokens, heads, H].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedForwardArgs {
    /// Input.
    pub x: HeadsView,
    /// Input: the gate.
    pub z: HeadsView,
    /// Input, \[H\] of the operator's weight type; all heads share it.
    pub w: VectorView,
    /// Output.
    pub y: HeadsView,
    /// Output, if wanted: FP32 [tokens, heads, groups].
    pub rstd: Option<VectorView>,
}

/// Arguments of a gated backward. Tensors are BF16 [tokens, heads, H].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedBackwardArgs {
    /// Input: gradient of y.
    pub dy: HeadsView,
    /// Input of the forward.
    pub x: HeadsView,
    /// Input of the forward.
    pub z: HeadsView,
    /// Input, \[H\] of the operator's weight type.
    pub w: VectorView,
    /// Input: the forward's rstd, FP32 [tokens, heads, groups]; recomputed, with the same bits,
    /// where it is not given.
    pub rstd: Option<VectorView>,
    /// Output: gradient of x.
    pub dx: HeadsView,
    /// Output: gradient of z.
    pub dz: HeadsView,
    /// Output, if wanted: gradient of w, FP32 \[H\].
    pub dw: Option<(VectorView, Update)>,
    /// Scratch memory of at least [`GatedBackwardPlan::workspace_bytes`].
    pub workspace: Workspace,
}
