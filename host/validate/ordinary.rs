//! A quick look that lets ordinary calls through: everything has the type and size that the operator
//! wants, rows lie in order in one piece, and no output near anything else. What it does not let
//! through is looked at properly, and may be just as right. It halves what a call costs its host.

use crate::op::{BackwardArgs, ForwardArgs, RmsNorm, WeightGradient};
use crate::view::{Dtype, RowsView, VectorView, Workspace};

/// First byte, and the one behind the last.
type Extent = (u64, u64);

/// Of what is not there: it meets nothing.
const NOWHERE: Extent = (0, 0);

/// Strides up to which no product of a call leaves 64 bits.
const LARGEST_STRIDE: i64 = 1 << 28;

/// Whether a forward of at most [`crate::op::MAX_ROWS`] rows is an ordinary one.
pub fn forward(op: &RmsNorm, args: &ForwardArgs) -> bool {
    let rows = args.x.rows;
    let look = || {
        let inputs = [
            matrix(op, &args.x, rows)?,
            optional(&args.residual, |view| matrix(op, view, rows))?,
            weight(op, &args.w)?,
        ];
        let outputs = [
            matrix(op, &args.y, rows)?,
            optional(&args.h, |view| matrix(op, view, rows))?,
            optional(&args.rstd, |view| vector(view, Dtype::F32, rows))?,
        ];
        Some(disjoint(outputs, inputs))
    };
    args.residual.is_some() == args.h.is_some() && look().unwrap_or(false)
}

/// Whether a backward of at most [`crate::op::MAX_ROWS`] rows is an ordinary one.
pub fn backward(op: &RmsNorm, args: &BackwardArgs) -> bool {
    let rows = args.dy.rows;
    let look = || {
        let inputs = [
            matrix(op, &args.dy, rows)?,
            matrix(op, &args.x, rows)?,
            optional(&args.dh, |view| matrix(op, view, rows))?,
            weight(op, &args.w)?,
            optional(&args.rstd, |view| vector(view, Dtype::F32, rows))?,
        ];
        let [dw, dw_bf16] = match &args.dw {
            Some(dw) => weight_gradient(op, dw)?,
            None => [NOWHERE; 2],
        };
        let outputs = [
            optional(&args.dx, |view| matrix(op, view, rows))?,
            dw,
            dw_bf16,
            scratch(args.workspace)?,
        ];
        Some(disjoint(outputs, inputs))
    };
    (args.dx.is_some() || args.dw.is_some()) && look().unwrap_or(false)
}

fn optional<T>(view: &Option<T>, look: impl FnOnce(&T) -> Option<Extent>) -> Option<Extent> {
    match view {
        Some(view) => look(view),
        None => Some(NOWHERE),
    }
}

#[inline]
fn matrix(op: &RmsNorm, view: &RowsView, rows: u64) -> Option<Extent> {
    let hidden = op.hidden();
    let expected = view.dtype == op.input() && view.hidden == hidden && view.rows == rows;
    let in_order = (hidden as i64..=LARGEST_STRIDE).contains(&view.stride);
    if !expected || rows == 0 || view.groups.is_some() || !in_order {
        return None;
    }
    let elements = (rows - 1) * view.stride as u64 + hidden;
    placed(
        view.address,
        elements * view.dtype.bytes(),
        view.dtype.bytes(),
    )
}

#[inline]
fn vector(view: &VectorView, dtype: Dtype, len: u64) -> Option<Extent> {
    if view.dtype != dtype || view.len != len {
        return None;
    }
    placed(view.address, len * dtype.bytes(), dtype.bytes())
}

#[inline]
fn weight(op: &RmsNorm, w: &Option<VectorView>) -> Option<Extent> {
    match (w, op.weight()) {
        (None, None) => Some(NOWHERE),
        (Some(w), Some(dtype)) => vector(w, dtype, op.hidden()),
        _ => None,
    }
}

/// FP32, and BF16 besides or not.
#[inline]
fn weight_gradient(op: &RmsNorm, dw: &WeightGradient) -> Option<[Extent; 2]> {
    op.weight()?;
    let bf16 = |view: &VectorView| vector(view, Dtype::Bf16, op.hidden());
    Some([
        vector(&dw.dw, Dtype::F32, op.hidden())?,
        optional(&dw.bf16, bf16)?,
    ])
}

#[inline]
fn scratch(workspace: Workspace) -> Option<Extent> {
    match workspace.bytes {
        0 => Some(NOWHERE),
        bytes => placed(workspace.address, bytes, super::WORKSPACE_ALIGNMENT),
    }
}

#[inline]
fn placed(address: u64, bytes: u64, alignment: u64) -> Option<Extent> {
    if address == 0 || !address.is_multiple_of(alignment) {
        return None;
    }
    Some((address, address.checked_add(bytes)?))
}

/// Whether no output's bytes lie between the first and the last of anything else.
#[inline]
fn disjoint<const OUTPUTS: usize, const INPUTS: usize>(
    outputs: [Extent; OUTPUTS],
    inputs: [Extent; INPUTS],
) -> bool {
    let meet = |a: Extent, b: Extent| a.0 < b.1 && b.0 < a.1;
    // All pairs: there are few, and no branch among them.
    let mut any = false;
    for (i, &output) in outputs.iter().enumerate() {
        for &input in &inputs {
            any |= meet(output, input);
        }
        for &other in &outputs[..i] {
            any |= meet(output, other);
        }
    }
    !any
}

#[cfg(test)]
mod tests;
