//! Validation of arguments, before anything is launched. Part of every call: allocates nothing.

mod overlap;

use crate::error::{Argument, Error, Result};
use crate::op::{BackwardArgs, ForwardArgs, MAX_ROWS, RmsNorm, Update, WeightGradient};
use crate::view::{Dtype, RowGroups, RowsView, VectorView, Workspace};
use overlap::{Region, overlap};

/// Nodes of dw travel in 16-byte accesses.
const WORKSPACE_ALIGNMENT: u64 = 16;

/// An argument with what was found of it.
#[derive(Clone, Copy)]
struct Checked {
    argument: Argument,
    view: RowsView,
    /// First byte, and the one behind the last; `None` when there are no elements.
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
        weight(op, args.w)?,
    ];
    let outputs = [
        Some(output(matrix(Argument::Y, args.y)?)?),
        optional(args.h, |view| output(matrix(Argument::H, view)?))?,
        rstd(args.rstd, args.x.rows)?,
    ];
    one_group_size(inputs.iter().chain(&outputs))?;
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
        weight(op, args.w)?,
        rstd(args.rstd, args.dy.rows)?,
    ];
    if args.dx.is_none() && args.dw.is_none() {
        return Err(Error::NoGradient);
    }
    let dx = optional(args.dx, |view| output(matrix(Argument::Dx, view)?))?;
    let [dw, dw_bf16] = weight_gradient(op, args.dw.as_ref())?;
    let outputs = [dx, dw, dw_bf16, Some(scratch(args.workspace)?)];
    one_group_size(inputs.iter().chain(&outputs))?;
    disjoint(&outputs, &inputs)?;
    Ok(rows)
}

/// Checks an argument that need not be there.
fn optional<T>(
    view: Option<T>,
    check: impl FnOnce(T) -> Result<Checked>,
) -> Result<Option<Checked>> {
    view.map(check).transpose()
}

/// The weight is there if, and only if, the operator has one.
fn weight(op: &RmsNorm, w: Option<VectorView>) -> Result<Option<Checked>> {
    let argument = Argument::W;
    match (w, op.weight()) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Error::Missing { argument }),
        (Some(_), None) => Err(Error::Unexpected { argument }),
        (Some(w), Some(dtype)) => vector(argument, w, dtype, op.hidden()).map(Some),
    }
}

fn rstd(view: Option<VectorView>, rows: u64) -> Result<Option<Checked>> {
    optional(view, |view| vector(Argument::Rstd, view, Dtype::F32, rows))
}

/// dw, and dw as BF16 besides.
fn weight_gradient(op: &RmsNorm, dw: Option<&WeightGradient>) -> Result<[Option<Checked>; 2]> {
    let Some(dw) = dw else {
        return Ok([None, None]);
    };
    if op.weight().is_none() {
        return Err(Error::Unexpected {
            argument: Argument::Dw,
        });
    }
    // BF16 has too few bits to add up in.
    let narrow = dw.dw.dtype == Dtype::Bf16;
    let dtype = if narrow && dw.update == Update::Overwrite && dw.bf16.is_none() {
        Dtype::Bf16
    } else {
        Dtype::F32
    };
    let bf16 = |view| vector(Argument::DwBf16, view, Dtype::Bf16, op.hidden());
    Ok([
        Some(vector(Argument::Dw, dw.dw, dtype, op.hidden())?),
        optional(dw.bf16, bf16)?,
    ])
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
    match view.groups {
        Some(groups) if groups.rows == 0 || !rows.is_multiple_of(groups.rows) => {
            Err(Error::RowGroups {
                argument,
                rows,
                group: groups.rows,
            })
        }
        _ => placed(argument, view.normal(), view.dtype.bytes()),
    }
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
    placed(argument, view.as_rows(), dtype.bytes())
}

/// Scratch bytes.
fn scratch(workspace: Workspace) -> Result<Checked> {
    let words = VectorView::f32(workspace.address, workspace.bytes / 4);
    placed(Argument::Workspace, words.as_rows(), WORKSPACE_ALIGNMENT)
}

/// Checks where the argument lies.
fn placed(argument: Argument, view: RowsView, alignment: u64) -> Result<Checked> {
    let extent = view.extent(argument)?;
    if extent.is_some() {
        if view.address == 0 {
            return Err(Error::NullPointer { argument });
        }
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

/// The bytes of a view that has some.
fn region(view: &RowsView) -> Region {
    let bytes = i128::from(view.dtype.bytes());
    let (groups, rows, group_stride) = view.grouping();
    Region {
        start: i128::from(view.address),
        width: i128::from(view.hidden) * bytes,
        rows: i128::from(rows),
        row_stride: i128::from(view.stride) * bytes,
        groups: i128::from(groups),
        group_stride: i128::from(group_stride) * bytes,
    }
}

/// An output's rows must not overlap each other.
fn output(checked: Checked) -> Result<Checked> {
    let Checked { argument, view, .. } = checked;
    let (groups, rows, group_stride) = view.grouping();
    if rows > 1 && view.stride < view.hidden as i64 {
        return Err(Error::OutputStride {
            argument,
            stride: view.stride,
            hidden: view.hidden,
        });
    }
    // A group lies behind the other, or its rows in the gaps of the other's.
    let reach = |count: u64, stride: i64| i128::from(count - 1) * i128::from(stride);
    let behind = |stride: i64, needed: i128| i128::from(stride) >= needed;
    let hidden = i128::from(view.hidden);
    if groups > 1 {
        let needed = reach(rows, view.stride) + hidden;
        let between = i128::from(group_stride) >= hidden
            && behind(view.stride, reach(groups, group_stride) + hidden);
        if !behind(group_stride, needed) && !between {
            return Err(Error::OutputGroups {
                argument,
                stride: group_stride,
                needed,
            });
        }
    }
    Ok(checked)
}

/// Kernels divide the row's number by one size.
fn one_group_size<'a>(arguments: impl Iterator<Item = &'a Option<Checked>>) -> Result<()> {
    let mut expected = None;
    for Checked { argument, view, .. } in arguments.flatten() {
        let Some(RowGroups { rows: found, .. }) = view.groups else {
            continue;
        };
        let expected = *expected.get_or_insert(found);
        if found != expected {
            return Err(Error::GroupsDiffer {
                argument: *argument,
                found,
                expected,
            });
        }
    }
    Ok(())
}

/// Outputs share memory with nothing, but for elements that take the place of the same ones of an
/// input: whoever writes one has read the other.
fn disjoint(outputs: &[Option<Checked>], inputs: &[Option<Checked>]) -> Result<()> {
    for (i, output) in outputs.iter().enumerate() {
        let Some(output) = output else { continue };
        for other in inputs.iter().chain(&outputs[i + 1..]).flatten() {
            let (Some(a), Some(b)) = (output.extent, other.extent) else {
                continue;
            };
            // Where rows lie in each other's gaps is worked out only for extents that meet.
            let meet = a.0 < b.1 && b.0 < a.1;
            let overlap = || overlap(&region(&output.view), &region(&other.view));
            if meet && overlap() && !in_place(output, other) {
                return Err(Error::Overlap {
                    output: output.argument,
                    other: other.argument,
                });
            }
        }
    }
    Ok(())
}

/// Whether `output` may lie where `input` does, and does so element for element.
fn in_place(output: &Checked, input: &Checked) -> bool {
    use Argument::{Dh, Dx, Dy, H, Residual, X, Y};
    let pair = (output.argument, input.argument);
    matches!(pair, (Y | H, X | Residual) | (Dx, Dy | X | Dh))
        && output.view.same_memory(&input.view)
}
