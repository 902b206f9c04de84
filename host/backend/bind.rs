//! An operator's arguments as kernel parameters.

use crate::op::{BackwardArgs, ForwardArgs, RmsNorm};
use crate::plan::BackwardPlan;
use crate::view::{Dtype, RowsView};
use cake_rmsnorm_kernels::format::Format;
use cake_rmsnorm_kernels::general::params::{GeneralBackwardParams, GeneralForwardParams, Tensor};
use cake_rmsnorm_kernels::params::{
    BackwardParams, ForwardParams, Groups, ReduceParams, Stride, WeightGradientOut,
};

/// Changes no bit of a weight.
const NO_OFFSET: f32 = -0.0;

pub(super) fn forward(op: &RmsNorm, args: &ForwardArgs, rows: u32) -> ForwardParams {
    ForwardParams {
        x: pointer(args.x.address),
        residual: pointer(args.residual.map_or(0, |view| view.address)),
        w: pointer(args.w.address),
        h: pointer_mut(args.h.map_or(0, |view| view.address)),
        y: pointer_mut(args.y.address),
        rstd: pointer_mut(args.rstd.address),
        x_stride: stride(Some(args.x)),
        residual_stride: stride(args.residual),
        h_stride: stride(args.h),
        y_stride: stride(Some(args.y)),
        rows,
        hidden: op.hidden() as u32,
        y_columns: op.hidden() as u32,
        eps: op.eps(),
        weight_offset: NO_OFFSET,
        groups: Groups::ONE,
    }
}

pub(super) fn general_forward(op: &RmsNorm, args: &ForwardArgs, rows: u32) -> GeneralForwardParams {
    GeneralForwardParams {
        x: tensor(&args.x),
        residual: optional_tensor(args.residual),
        w: tensor(&args.w.as_rows()),
        h: optional_tensor(args.h),
        y: tensor(&args.y),
        rstd: pointer_mut(args.rstd.address),
        rows,
        hidden: op.hidden() as u32,
        eps: op.eps(),
        weight_offset: NO_OFFSET,
        groups: Groups::ONE,
    }
}

pub(super) fn backward(
    op: &RmsNorm,
    args: &BackwardArgs,
    rows: u32,
    plan: &BackwardPlan,
) -> BackwardParams {
    BackwardParams {
        dy: pointer(args.dy.address),
        x: pointer(args.x.address),
        dh: pointer(args.dh.map_or(0, |view| view.address)),
        w: pointer(args.w.address),
        rstd: pointer(args.rstd.address),
        dx: pointer_mut(args.dx.address),
        nodes: pointer_mut(args.workspace.address),
        dw: weight_gradient(args),
        dy_stride: stride(Some(args.dy)),
        x_stride: stride(Some(args.x)),
        dh_stride: stride(args.dh),
        dx_stride: stride(Some(args.dx)),
        rows,
        hidden: op.hidden() as u32,
        dx_columns: op.hidden() as u32,
        weight_offset: NO_OFFSET,
        groups: Groups::ONE,
        leaf_log2: plan.leaf.leaf_log2,
        run_log2: plan.leaf.run_log2,
    }
}

pub(super) fn general_backward(
    op: &RmsNorm,
    args: &BackwardArgs,
    rows: u32,
    plan: &BackwardPlan,
) -> GeneralBackwardParams {
    GeneralBackwardParams {
        dy: tensor(&args.dy),
        x: tensor(&args.x),
        dh: optional_tensor(args.dh),
        w: tensor(&args.w.as_rows()),
        dx: tensor(&args.dx),
        rstd: pointer(args.rstd.address),
        nodes: pointer_mut(args.workspace.address),
        rows,
        hidden: op.hidden() as u32,
        weight_offset: NO_OFFSET,
        groups: Groups::ONE,
        leaf_log2: plan.leaf.leaf_log2,
        run_log2: plan.leaf.run_log2,
        sums_in_shared: u32::from(plan.sums_in_shared),
    }
}

pub(super) fn reduce(op: &RmsNorm, args: &BackwardArgs, plan: &BackwardPlan) -> ReduceParams {
    ReduceParams {
        nodes: pointer(args.workspace.address),
        dw: weight_gradient(args),
        hidden: op.hidden() as u32,
        node_count: plan.leaf.runs(),
        chunk_log2: plan.chunk_log2,
    }
}

fn weight_gradient(args: &BackwardArgs) -> WeightGradientOut {
    WeightGradientOut {
        dw: pointer_mut(args.dw.address),
        dw_bf16: pointer_mut(0),
        accumulate: 0,
    }
}

fn tensor(view: &RowsView) -> Tensor {
    Tensor {
        base: pointer_mut(view.address),
        stride: stride(Some(*view)),
        format: match view.dtype {
            Dtype::Bf16 => Format::Bf16,
            Dtype::F16 => Format::F16,
            Dtype::F32 => Format::F32,
        },
        aligned: u32::from(view.is_aligned()),
    }
}

/// What is not there has no address.
fn optional_tensor(view: Option<RowsView>) -> Tensor {
    tensor(&view.unwrap_or(RowsView::packed(0, 0, 0)))
}

fn pointer<T>(address: u64) -> *const T {
    address as usize as *const T
}

fn pointer_mut<T>(address: u64) -> *mut T {
    address as usize as *mut T
}

fn stride(view: Option<RowsView>) -> Stride {
    view.map_or(Stride::default(), |view| Stride {
        row: view.stride,
        group: 0,
    })
}
