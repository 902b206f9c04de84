//! Validation of arguments, before anything is launched. Part of every call: allocates nothing.

use crate::error::{Argument, Error, Result};
use crate::op::{BackwardArgs, ForwardArgs, MAX_ROWS, RmsNorm};
use crate::view::{Dtype, RowsView, Workspace};

/// Nodes of dw travel in 16-byte accesses.
const WORKSPACE_ALIGNMENT: u64 = 16;

/// An argument with what was found of it.
#[derive(Clone, Copy)]
struct Checked {
    argument: Argument,
    view: RowsView,
    extent: Option<(u64, u64)>,
}

/// Checks a forward's arguments; returns T.
pub(crate) fn forward(op: &RmsNorm, args: &ForwardArgs) -> Result<u32> {
    let rows = rows_of(&args.x)?;
    match (args.residual, args.h) {
        (Some(_), None) => {
            return Err(Error::Unpaired {
                given: Argument::Residual,
                missing: Argument::H,
            });
        }
        (None, Some(_)) => {
            return Err(Error::Unpaired {
                given: Argument::H,
                missing: Argument::Residual,
            });
        }
        _ => {}
    }
    let matrix = |argument, view| matrix(op, argument, view, args.x.rows);
    let inputs = [
        Some(matrix(Argument::X, args.x)?),
        optional(args.residual, |view| matrix(Argument::Residual, view))?,
        Some(vector(
            Argument::W,
            args.w.as_rows(),
            op.weight(),
            op.hidden(),
        )?),
    ];
    let outputs = [
        Some(output(matrix(Argument::Y, args.y)?)?),
        optional(args.h, |view| output(matrix(Argument::H, view)?))?,
        Some(vector(
            Argument::Rstd,
            args.rstd.as_rows(),
            Dtype::F32,
            args.x.rows,
        )?),
    ];
    disjoint(&outputs, &inputs)?;
    Ok(rows)
}

/// Checks a backward's arguments, but for the size of the workspace; returns T.
pub(crate) fn backward(op: &RmsNorm, args: &BackwardArgs) -> Result<u32> {
    let rows = rows_of(&args.dy)?;
    let matrix = |argument, view| matrix(op, argument, view, args.dy.rows);
    let inputs = [
        Some(matrix(Argument::Dy, args.dy)?),
        Some(matrix(Argument::X, args.x)?),
        optional(args.dh, |view| matrix(Argument::Dh, view))?,
        Some(vector(
            Argument::W,
            args.w.as_rows(),
            op.weight(),
            op.hidden(),
        )?),
        Some(vector(
            Argument::Rstd,
            args.rstd.as_rows(),
            Dtype::F32,
            args.dy.rows,
        )?),
    ];
    let outputs = [
        Some(output(matrix(Argument::Dx, args.dx)?)?),
        Some(vector(
            Argument::Dw,
            args.dw.as_rows(),
            Dtype::F32,
            op.hidden(),
        )?),
        Some(scratch(args.workspace)?),
    ];
    disjoint(&outputs, &inputs)?;
    Ok(rows)
}

/// Checks an argument that need not be there.
fn optional(
    view: Option<RowsView>,
    check: impl FnOnce(RowsView) -> Result<Checked>,
) -> Result<Option<Checked>> {
    view.map(check).transpose()
}

/// Checks that the workspace has `needed` bytes.
pub(crate) fn workspace(workspace: Workspace, needed: u64) -> Result<()> {
    if workspace.bytes < needed {
        return Err(Error::WorkspaceTooSmall {
            found: workspace.bytes,
            needed,
        });
    }
    Ok(())
}

fn rows_of(first: &RowsView) -> Result<u32> {
    if first.rows > MAX_ROWS {
        return Err(Error::TooManyRows { rows: first.rows });
    }
    Ok(first.rows as u32)
}

/// A matrix [rows, H].
fn matrix(op: &RmsNorm, argument: Argument, view: RowsView, rows: u64) -> Result<Checked> {
    if view.dtype != op.input() {
        return Err(Error::Dtype {
            argument,
            found: view.dtype,
            accepted: op.input(),
        });
    }
    if view.hidden != op.hidden() {
        return Err(Error::Length {
            argument,
            found: view.hidden,
            expected: op.hidden(),
        });
    }
    if view.rows != rows {
        return Err(Error::Rows {
            argument,
            found: view.rows,
            expected: rows,
        });
    }
    placed(argument, view)
}

/// A vector of `len` elements.
fn vector(argument: Argument, view: RowsView, dtype: Dtype, len: u64) -> Result<Checked> {
    if view.dtype != dtype {
        return Err(Error::Dtype {
            argument,
            found: view.dtype,
            accepted: dtype,
        });
    }
    if view.hidden != len {
        return Err(Error::Length {
            argument,
            found: view.hidden,
            expected: len,
        });
    }
    placed(argument, view)
}

/// Scratch bytes.
fn scratch(workspace: Workspace) -> Result<Checked> {
    let view = RowsView {
        address: workspace.address,
        dtype: Dtype::F32,
        rows: 1,
        hidden: workspace.bytes / 4,
        stride: 0,
    };
    placed(Argument::Workspace, view)
}

/// Checks where the argument lies.
fn placed(argument: Argument, view: RowsView) -> Result<Checked> {
    let extent = view.extent(argument)?;
    if extent.is_some() {
        if view.address == 0 {
            return Err(Error::NullPointer { argument });
        }
        let alignment = match argument {
            Argument::Workspace => WORKSPACE_ALIGNMENT,
            _ => view.dtype.bytes(),
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

/// An output's rows must not overlap each other.
fn output(checked: Checked) -> Result<Checked> {
    let RowsView {
        rows,
        hidden,
        stride,
        ..
    } = checked.view;
    if rows > 1 && stride < hidden as i64 {
        return Err(Error::OutputStride {
            argument: checked.argument,
            stride,
            hidden,
        });
    }
    Ok(checked)
}

/// Outputs share memory with nothing.
fn disjoint(outputs: &[Option<Checked>], inputs: &[Option<Checked>]) -> Result<()> {
    for (i, output) in outputs.iter().enumerate() {
        let Some(output) = output else { continue };
        for other in inputs.iter().chain(&outputs[i + 1..]).flatten() {
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

fn overlap(a: &Checked, b: &Checked) -> bool {
    let (Some((a_start, a_end)), Some((b_start, b_end))) = (a.extent, b.extent) else {
        return false;
    };
    if a_end <= b_start || b_end <= a_start {
        return false;
    }
    // Rows of one matrix may lie in the gaps of another: exact where the strides agree.
    let period = a.view.stride as i128 * i128::from(a.view.dtype.bytes());
    let same = a.view.stride == b.view.stride && a.view.dtype == b.view.dtype;
    if !same || period <= 0 || a.view.rows < 2 || b.view.rows < 2 {
        return true;
    }
    let width = |c: &Checked| i128::from(c.view.hidden) * i128::from(c.view.dtype.bytes());
    let offset = (i128::from(b.view.address) - i128::from(a.view.address)).rem_euclid(period);
    offset < width(a) || offset + width(b) > period
}
