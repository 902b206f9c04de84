//! Validation of a gated operator's arguments, before anything is launched.

use super::op::{GatedBackwardArgs, GatedForwardArgs, GatedRmsNorm};
use super::view::HeadsView;
use crate::error::{Argument, Error, Result};
use crate::op::MAX_ROWS;
use crate::view::{Dtype, VectorView, Workspace};

/// Bytes that 16-byte access needs addresses to be multiples of.
const ALIGNMENT: u64 = 16;
/// Elements of a 16-byte access.
const VECTOR: u64 = 8;
/// Strides are counted in 16-byte vectors, in 32 bits.
const MAX_STRIDE: u64 = VECTOR * i32::MAX as u64;

/// An argument with what was found of it.
#[derive(Clone, Copy)]
struct Checked {
    argument: Argument,
    /// Rows, and how they lie; a vector is one row.
    view: HeadsView,
    extent: Option<(u64, u64)>,
}

/// Checks a forward's arguments; returns the number of rows.
pub(crate) fn forward(op: &GatedRmsNorm, args: &GatedForwardArgs) -> Result<u32> {
    let rows = rows_of(&args.x)?;
    let matrix = |argument, view| matrix(op, argument, view, &args.x);
    let inputs = [
        matrix(Argument::X, args.x)?,
        matrix(Argument::Z, args.z)?,
        vector(Argument::W, args.w, op.weight(), op.hidden())?,
    ];
    let y = output(matrix(Argument::Y, args.y)?)?;
    match args.rstd {
        None => disjoint(&[y], &inputs)?,
        Some(rstd) => disjoint(&[y, statistics(op, rstd, rows)?], &inputs)?,
    }
    Ok(rows)
}

/// Checks a backward's arguments, but for the size of the workspace; returns the number of rows.
pub(crate) fn backward(op: &GatedRmsNorm, args: &GatedBackwardArgs) -> Result<u32> {
    let rows = rows_of(&args.dy)?;
    let matrix = |argument, view| matrix(op, argument, view, &args.dy);
    let mut inputs = vec![
        matrix(Argument::Dy, args.dy)?,
        matrix(Argument::X, args.x)?,
        matrix(Argument::Z, args.z)?,
        vector(Argument::W, args.w, op.weight(), op.hidden())?,
    ];
    if let Some(rstd) = args.rstd {
        inputs.push(statistics(op, rstd, rows)?);
    }
    let mut outputs = vec![
        output(matrix(Argument::Dx, args.dx)?)?,
        output(matrix(Argument::Dz, args.dz)?)?,
    ];
    if let Some((dw, _)) = args.dw {
        outputs.push(vector(Argument::Dw, dw, Dtype::F32, op.hidden())?);
    }
    outputs.push(scratch(args.workspace)?);
    disjoint(&outputs, &inputs)?;
    Ok(rows)
}

fn rows_of(first: &HeadsView) -> Result<u32> {
    let rows = first.tokens.saturating_mul(first.heads);
    if rows > MAX_ROWS {
        return Err(Error::TooManyRows { rows });
    }
    Ok(rows as u32)
}

/// A BF16 tensor [tokens, heads, H] with 16-byte aligned rows.
fn matrix(
    op: &GatedRmsNorm,
    argument: Argument,
    view: HeadsView,
    first: &HeadsView,
) -> Result<Checked> {
    if view.dtype != Dtype::Bf16 {
        return Err(Error::Dtype {
            argument,
            found: view.dtype,
            accepted: Dtype::Bf16,
        });
    }
    if view.hidden != op.hidden() {
        return Err(Error::Length {
            argument,
            found: view.hidden,
            expected: op.hidden(),
        });
    }
    if view.tokens != first.tokens {
        return Err(Error::Rows {
            argument,
            found: view.tokens,
            expected: first.tokens,
        });
    }
    if view.heads != first.heads {
        return Err(Error::Heads {
            argument,
            found: view.heads,
            expected: first.heads,
        });
    }
    let (token, head) = view.strides();
    for stride in [token, head] {
        if stride.rem_euclid(VECTOR as i64) != 0 {
            return Err(Error::StrideMultiple {
                argument,
                stride,
                multiple: VECTOR,
            });
        }
        if stride.unsigned_abs() > MAX_STRIDE {
            return Err(Error::StrideTooLarge { argument, stride });
        }
    }
    placed(argument, view)
}

/// A vector of `len` elements.
fn vector(argument: Argument, view: VectorView, dtype: Dtype, len: u64) -> Result<Checked> {
    if view.dtype != dtype {
        return Err(Error::Dtype {
            argument,
            found: view.dtype,
            accepted: dtype,
        });
    }
    if view.len != len {
        return Err(Error::Length {
            argument,
            found: view.len,
            expected: len,
        });
    }
    placed(argument, one_row(view.address, view.dtype, view.len))
}

/// rstd, an element a group.
fn statistics(op: &GatedRmsNorm, view: VectorView, rows: u32) -> Result<Checked> {
    let len = u64::from(rows) * op.groups();
    vector(Argument::Rstd, view, Dtype::F32, len)
}

/// Scratch bytes.
fn scratch(workspace: Workspace) -> Result<Checked> {
    let view = one_row(workspace.address, Dtype::F32, workspace.bytes / 4);
    placed(Argument::Workspace, view)
}

fn one_row(address: u64, dtype: Dtype, len: u64) -> HeadsView {
    HeadsView {
        dtype,
        ..HeadsView::packed(address, 1, 1, len)
    }
}

/// Checks where the argument lies.
fn placed(argument: Argument, view: HeadsView) -> Result<Checked> {
    let extent = view.extent(argument)?;
    if extent.is_some() {
        if view.address == 0 {
            return Err(Error::NullPointer { argument });
        }
        // rstd is read and written an element at a time.
        let alignment = if argument == Argument::Rstd {
            4
        } else {
            ALIGNMENT
        };
        if !view.address.is_multiple_of(alignment) {
            return Err(Error::Misaligned {
                argument,
                address: view.address,
                alignment,
            });
        }
    }
    Ok(Checked {
        argument,
        view,
        extent,
    })
}

/// An output's rows must not overlap each other: tokens beyond the reach of a token's heads, or
/// heads beyond the reach of a head's tokens. Where there are no rows, nothing overlaps.
fn output(checked: Checked) -> Result<Checked> {
    if checked.extent.is_none() {
        return Ok(checked);
    }
    let HeadsView {
        tokens,
        heads,
        hidden,
        ..
    } = checked.view;
    let (token, head) = checked.view.strides();
    let nested = |inner: i64, count: u64, outer: i64, outer_count: u64| {
        let (inner, outer) = (i128::from(inner), i128::from(outer));
        let inner_fits = count < 2 || inner >= i128::from(hidden);
        let reach = i128::from(count.saturating_sub(1)) * inner + i128::from(hidden);
        inner_fits && (outer_count < 2 || outer >= reach)
    };
    if nested(head, heads, token, tokens) || nested(token, tokens, head, heads) {
        return Ok(checked);
    }
    Err(Error::OutputStrides {
        argument: checked.argument,
        token_stride: checked.view.token_stride,
        head_stride: checked.view.head_stride,
        hidden,
    })
}

/// Outputs share memory with nothing.
fn disjoint(outputs: &[Checked], inputs: &[Checked]) -> Result<()> {
    for (i, output) in outputs.iter().enumerate() {
        for other in inputs.iter().chain(&outputs[i + 1..]) {
            if overlap(output, other) {
                return Err(Error::Overlap {
                    output: output.argument,
                    other: other.argument,
                });
            }
        }
    }
    Ok(())
}

/// Whether two arguments share bytes. Rows of one tensor may lie in the gaps of another: where both
/// have the same strides, all distances between rows are multiples of the strides' greatest common
/// divisor. With other strides they are taken to overlap as soon as their extents meet.
fn overlap(a: &Checked, b: &Checked) -> bool {
    let (Some((a_start, a_end)), Some((b_start, b_end))) = (a.extent, b.extent) else {
        return false;
    };
    if a_end <= b_start || b_end <= a_start {
        return false;
    }
    let same = a.view.strides() == b.view.strides() && a.view.dtype == b.view.dtype;
    let (token, head) = a.view.strides();
    let period = gcd(token.unsigned_abs(), head.unsigned_abs());
    let bytes = i128::from(a.view.dtype.bytes());
    let period = i128::from(period) * bytes;
    if !same || period == 0 {
        return true;
    }
    let width = |c: &Checked| i128::from(c.view.hidden) * bytes;
    let offset = (i128::from(b.view.address) - i128::from(a.view.address)).rem_euclid(period);
    offset < width(a) || offset + width(b) > period
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
