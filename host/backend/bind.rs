//! An operator's arguments as kernel parameters.

use crate::op::{BackwardArgs, ForwardArgs, RmsNorm, Update, WeightGradient};
use crate::plan::{BackwardPlan, Launch};
use crate::view::{Dtype, RowsView, VectorView};
use cake_rmsnorm_kernels::contract::Program;
use cake_rmsnorm_kernels::format::Format;
use cake_rmsnorm_kernels::general::params::{GeneralBackwardParams, GeneralForwardParams, Tensor};
use cake_rmsnorm_kernels::params::{
    BackwardParams, ForwardParams, Groups, ReduceParams, Stride, WeightGradientOut, keep,
};

/// Parameters of a kernel of either family.
pub(super) enum Params<Fast, General> {
    Fast(Fast),
    General(General),
}

impl<Fast, General> Params<Fast, General> {
    /// Where the kernel's parameter struct is.
    pub fn pointer(&self) -> *const u8 {
        match self {
            Params::Fast(params) => (&raw const *params).cast(),
            Params::General(params) => (&raw const *params).cast(),
        }
    }
}

pub(super) type Forward = Params<ForwardParams, GeneralForwardParams>;
pub(super) type Backward = Params<BackwardParams, GeneralBackwardParams>;

pub(super) fn forward(op: &RmsNorm, args: &ForwardArgs, rows: u32, launch: &Launch) -> Forward {
    match launch.kernel.program {
        Program::GeneralForward => Forward::General(general_forward(op, args, rows)),
        _ => Forward::Fast(fast_forward(op, args, rows)),
    }
}

/// The forward that a backward without rstd begins with.
pub(super) fn statistics(
    op: &RmsNorm,
    args: &BackwardArgs,
    rows: u32,
    plan: &BackwardPlan,
    launch: &Launch,
) -> Forward {
    match launch.kernel.program {
        Program::GeneralForward => Forward::General(general_statistics(op, args, rows, plan)),
        _ => Forward::Fast(fast_statistics(op, args, rows, plan)),
    }
}

pub(super) fn backward(
    op: &RmsNorm,
    args: &BackwardArgs,
    rows: u32,
    plan: &BackwardPlan,
    launch: &Launch,
) -> Backward {
    match launch.kernel.program {
        Program::GeneralBackward => Backward::General(general_backward(op, args, rows, plan)),
        _ => Backward::Fast(fast_backward(op, args, rows, plan)),
    }
}

fn fast_forward(op: &RmsNorm, args: &ForwardArgs, rows: u32) -> ForwardParams {
    ForwardParams {
        x: pointer(args.x.address),
        residual: pointer(address(args.residual)),
        w: pointer(vector(args.w)),
        h: pointer_mut(address(args.h)),
        y: pointer_mut(args.y.address),
        rstd: pointer_mut(vector(args.rstd)),
        x_stride: stride(Some(args.x)),
        residual_stride: stride(args.residual),
        h_stride: stride(args.h),
        y_stride: stride(Some(args.y)),
        rows,
        hidden: op.hidden() as u32,
        y_columns: op.hidden() as u32,
        keep: keep(
            1 + u64::from(args.residual.is_some()),
            rows.into(),
            op.hidden(),
        ),
        eps: op.eps(),
        weight_offset: op.added_offset(),
        groups: groups([Some(args.x), args.residual, args.h, Some(args.y)]),
    }
}

fn general_forward(op: &RmsNorm, args: &ForwardArgs, rows: u32) -> GeneralForwardParams {
    GeneralForwardParams {
        x: tensor(Some(args.x)),
        residual: tensor(args.residual),
        w: tensor(args.w.map(|w| w.as_rows())),
        h: tensor(args.h),
        y: tensor(Some(args.y)),
        rstd: pointer_mut(vector(args.rstd)),
        rows,
        hidden: op.hidden() as u32,
        eps: op.eps(),
        weight_offset: op.added_offset(),
        groups: groups([Some(args.x), args.residual, args.h, Some(args.y)]),
    }
}

fn fast_statistics(
    op: &RmsNorm,
    args: &BackwardArgs,
    rows: u32,
    plan: &BackwardPlan,
) -> ForwardParams {
    let none = pointer_mut(0);
    ForwardParams {
        x: pointer(args.x.address),
        residual: none,
        w: pointer(0),
        h: none,
        y: none,
        rstd: pointer_mut(rstd(args, plan)),
        x_stride: stride(Some(args.x)),
        residual_stride: Stride::default(),
        h_stride: Stride::default(),
        y_stride: Stride::default(),
        rows,
        hidden: op.hidden() as u32,
        y_columns: 0,
        keep: keep(1, rows.into(), op.hidden()),
        eps: op.eps(),
        weight_offset: -0.0,
        groups: backward_groups(args),
    }
}

fn general_statistics(
    op: &RmsNorm,
    args: &BackwardArgs,
    rows: u32,
    plan: &BackwardPlan,
) -> GeneralForwardParams {
    GeneralForwardParams {
        x: tensor(Some(args.x)),
        residual: tensor(None),
        w: tensor(None),
        h: tensor(None),
        y: tensor(None),
        rstd: pointer_mut(rstd(args, plan)),
        rows,
        hidden: op.hidden() as u32,
        eps: op.eps(),
        weight_offset: -0.0,
        groups: backward_groups(args),
    }
}

fn fast_backward(
    op: &RmsNorm,
    args: &BackwardArgs,
    rows: u32,
    plan: &BackwardPlan,
) -> BackwardParams {
    let hidden = op.hidden() as u32;
    BackwardParams {
        dy: pointer(args.dy.address),
        x: pointer(args.x.address),
        dh: pointer(address(args.dh)),
        w: pointer(vector(args.w)),
        rstd: pointer(rstd(args, plan)),
        dx: pointer_mut(address(args.dx)),
        nodes: pointer_mut(nodes(args, plan)),
        dw: weight_gradient(args.dw),
        dy_stride: stride(Some(args.dy)),
        x_stride: stride(Some(args.x)),
        dh_stride: stride(args.dh),
        dx_stride: stride(args.dx),
        rows,
        hidden,
        dx_columns: args.dx.map_or(0, |_| hidden),
        keep: keep(2 + u64::from(args.dh.is_some()), rows.into(), op.hidden()),
        weight_offset: op.added_offset(),
        groups: backward_groups(args),
        leaf_log2: plan.leaf.leaf_log2,
        run_log2: plan.leaf.run_log2,
    }
}

fn general_backward(
    op: &RmsNorm,
    args: &BackwardArgs,
    rows: u32,
    plan: &BackwardPlan,
) -> GeneralBackwardParams {
    GeneralBackwardParams {
        dy: tensor(Some(args.dy)),
        x: tensor(Some(args.x)),
        dh: tensor(args.dh),
        w: tensor(args.w.map(|w| w.as_rows())),
        dx: tensor(args.dx),
        rstd: pointer(rstd(args, plan)),
        nodes: pointer_mut(nodes(args, plan)),
        rows,
        hidden: op.hidden() as u32,
        weight_offset: op.added_offset(),
        groups: backward_groups(args),
        leaf_log2: plan.leaf.leaf_log2,
        run_log2: plan.leaf.run_log2,
        sums_in_shared: u32::from(plan.sums_in_shared),
    }
}

pub(super) fn reduce(op: &RmsNorm, args: &BackwardArgs, plan: &BackwardPlan) -> ReduceParams {
    ReduceParams {
        nodes: pointer(nodes(args, plan)),
        dw: weight_gradient(args.dw),
        hidden: op.hidden() as u32,
        node_count: plan.leaf.runs(),
        chunk_log2: plan.chunk_log2,
    }
}

/// Where the nodes of dw lie, if there are any.
fn nodes(args: &BackwardArgs, plan: &BackwardPlan) -> u64 {
    match plan.reduce {
        Some(_) => args.workspace.address,
        None => 0,
    }
}

/// Where rstd lies: the caller's, or behind the nodes.
fn rstd(args: &BackwardArgs, plan: &BackwardPlan) -> u64 {
    match args.rstd {
        Some(rstd) => rstd.address,
        None => args.workspace.address + plan.node_bytes,
    }
}

fn weight_gradient(dw: Option<WeightGradient>) -> WeightGradientOut {
    let (f32, bf16) = dw.as_ref().map_or((None, None), WeightGradient::outputs);
    WeightGradientOut {
        dw: pointer_mut(vector(f32)),
        dw_bf16: pointer_mut(vector(bf16)),
        accumulate: dw.map_or(0, |dw| u32::from(dw.update == Update::Accumulate)),
    }
}

/// What is not there has no address.
fn tensor(view: Option<RowsView>) -> Tensor {
    let view = view.unwrap_or(RowsView::packed(0, 0, 0));
    Tensor {
        base: pointer_mut(view.address),
        stride: stride(Some(view)),
        format: match view.dtype {
            Dtype::Bf16 => Format::Bf16,
            Dtype::F16 => Format::F16,
            Dtype::F32 => Format::F32,
        },
        aligned: u32::from(view.is_aligned()),
    }
}

fn address(view: Option<RowsView>) -> u64 {
    view.map_or(0, |view| view.address)
}

fn vector(view: Option<VectorView>) -> u64 {
    view.map_or(0, |view| view.address)
}

fn pointer<T>(address: u64) -> *const T {
    address as usize as *const T
}

fn pointer_mut<T>(address: u64) -> *mut T {
    address as usize as *mut T
}

fn stride(view: Option<RowsView>) -> Stride {
    let Some(view) = view.map(RowsView::normal) else {
        return Stride::default();
    };
    // The arithmetic of the kernels: modulo 2⁶⁴, in which rows have their places all the same.
    let beyond = view.groups.map_or(0, |groups| {
        let rows = (groups.rows as i64).wrapping_mul(view.stride);
        groups.stride.wrapping_sub(rows)
    });
    Stride {
        row: view.stride,
        group: beyond,
    }
}

fn backward_groups(args: &BackwardArgs) -> Groups {
    groups([Some(args.dy), Some(args.x), args.dh, args.dx])
}

/// The groups of the matrices that have some: validation saw that they are the same.
fn groups(matrices: [Option<RowsView>; 4]) -> Groups {
    let mut groups = matrices
        .iter()
        .flatten()
        .filter_map(|view| view.normal().groups);
    groups
        .next()
        .map_or(Groups::ONE, |groups| Groups::of(groups.rows as u32))
}
