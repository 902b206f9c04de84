//! Validation of arguments, before anything is launched. Part of every call: allocates nothing.

mod ordinary;
mod overlap;

use crate::error::{Argument, Error, Result};
use crate::op::{BackwardArgs, ForwardArgs, MAX_ROWS, RmsNorm, Update, WeightGradient};
use crate::view::{Dtype, RowGroups, RowsView, VectorView, Workspace};
use overlap::{Region, overlap};

/// Nodes of dw travel in 16-byte accesses.
const WORKSPACE_ALIGNMENT: u64 = 16;

/// An argument with what was found of it. Small, since every call moves a few of them about.
#[derive(Clone, Copy)]
struct Checked<'a> {
    argument: Argument,
    view: Viewed<'a>,
    /// First byte, and the one behind the last; equal when there are no elements.
    extent: (u64, u64),
}

/// What an argument was given as.
#[derive(Clone, Copy)]
enum Viewed<'a> {
    Rows(&'a RowsView),
    Vector(&'a VectorView),
    Workspace(&'a Workspace),
}

impl Viewed<'_> {
    /// As a matrix, without groups where one stride tells all.
    fn rows(self) -> RowsView {
        match self {
            Viewed::Rows(view) => view.normal(),
            Viewed::Vector(view) => view.as_rows(),
            Viewed::Workspace(workspace) => {
                VectorView::f32(workspace.address, workspace.bytes / 4).as_rows()
            }
        }
    }
}

/// Checks a forward's arguments; returns T.
pub(crate) fn forward(op: &RmsNorm, args: &ForwardArgs) -> Result<u32> {
    let rows = rows_of(&args.x)?;
    if !ordinary::forward(op, args) {
        any_forward(op, args)?;
    }
    Ok(rows)
}

fn any_forward(op: &RmsNorm, args: &ForwardArgs) -> Result<()> {
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
        Some(matrix(Argument::X, &args.x)?),
        optional(&args.residual, |view| matrix(Argument::Residual, view))?,
        weight(op, args.w.as_ref())?,
    ];
    let outputs = [
        Some(output(matrix(Argument::Y, &args.y)?)?),
        optional(&args.h, |view| output(matrix(Argument::H, view)?))?,
        rstd(&args.rstd, args.x.rows)?,
    ];
    one_group_size(inputs.iter().chain(&outputs))?;
    disjoint(&outputs, &inputs)
}

/// Checks a backward's arguments, but for the size of the workspace; returns T.
pub(crate) fn backward(op: &RmsNorm, args: &BackwardArgs) -> Result<u32> {
    let rows = rows_of(&args.dy)?;
    if !ordinary::backward(op, args) {
        any_backward(op, args)?;
    }
    Ok(rows)
}

fn any_backward(op: &RmsNorm, args: &BackwardArgs) -> Result<()> {
    let matrix = |argument, view| matrix(op, argument, view, args.dy.rows);
    let inputs = [
        Some(matrix(Argument::Dy, &args.dy)?),
        Some(matrix(Argument::X, &args.x)?),
        optional(&args.dh, |view| matrix(Argument::Dh, view))?,
        weight(op, args.w.as_ref())?,
        rstd(&args.rstd, args.dy.rows)?,
    ];
    if args.dx.is_none() && args.dw.is_none() {
        return Err(Error::NoGradient);
    }
    let dx = optional(&args.dx, |view| output(matrix(Argument::Dx, view)?))?;
    let [dw, dw_bf16] = weight_gradient(op, args.dw.as_ref())?;
    let outputs = [dx, dw, dw_bf16, Some(scratch(&args.workspace)?)];
    one_group_size(inputs.iter().chain(&outputs))?;
    disjoint(&outputs, &inputs)
}

/// Checks an argument that need not be there.
fn optional<'a, T>(
    view: &'a Option<T>,
    check: impl FnOnce(&'a T) -> Result<Checked<'a>>,
) -> Result<Option<Checked<'a>>> {
    view.as_ref().map(check).transpose()
}

/// The weight is there if, and only if, the operator has one.
fn weight<'a>(op: &RmsNorm, w: Option<&'a VectorView>) -> Result<Option<Checked<'a>>> {
    let argument = Argument::W;
    match (w, op.weight()) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Error::Missing { argument }),
        (Some(_), None) => Err(Error::Unexpected { argument }),
        (Some(w), Some(dtype)) => vector(argument, w, dtype, op.hidden()).map(Some),
    }
}

fn rstd(view: &Option<VectorView>, rows: u64) -> Result<Option<Checked<'_>>> {
    optional(view, |view| vector(Argument::Rstd, view, Dtype::F32, rows))
}

/// dw, and dw as BF16 besides.
fn weight_gradient<'a>(
    op: &RmsNorm,
    dw: Option<&'a WeightGradient>,
) -> Result<[Option<Checked<'a>>; 2]> {
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
        Some(vector(Argument::Dw, &dw.dw, dtype, op.hidden())?),
        optional(&dw.bf16, bf16)?,
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
fn matrix<'a>(
    op: &RmsNorm,
    argument: Argument,
    view: &'a RowsView,
    rows: u64,
) -> Result<Checked<'a>> {
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
        _ => placed(argument, Viewed::Rows(view), view.dtype.bytes()),
    }
}

/// A vector of `len` elements.
fn vector(argument: Argument, view: &VectorView, dtype: Dtype, len: u64) -> Result<Checked<'_>> {
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
    placed(argument, Viewed::Vector(view), dtype.bytes())
}

/// Scratch bytes.
fn scratch(workspace: &Workspace) -> Result<Checked<'_>> {
    let view = Viewed::Workspace(workspace);
    placed(Argument::Workspace, view, WORKSPACE_ALIGNMENT)
}

/// Checks where the argument lies.
fn placed(argument: Argument, view: Viewed<'_>, alignment: u64) -> Result<Checked<'_>> {
    let given = view;
    let view = given.rows();
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
        view: given,
        extent: extent.unwrap_or((0, 0)),
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
fn output(checked: Checked<'_>) -> Result<Checked<'_>> {
    let Checked { argument, view, .. } = checked;
    let view = view.rows();
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
fn one_group_size<'a>(arguments: impl Iterator<Item = &'a Option<Checked<'a>>>) -> Result<()> {
    let mut expected = None;
    for Checked { argument, view, .. } in arguments.flatten() {
        let Viewed::Rows(view) = view else { continue };
        let Some(RowGroups { rows: found, .. }) = view.normal().groups else {
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
fn disjoint(outputs: &[Option<Checked<'_>>], inputs: &[Option<Checked<'_>>]) -> Result<()> {
    for (i, output) in outputs.iter().enumerate() {
        let Some(output) = output else { continue };
        for other in inputs.iter().chain(&outputs[i + 1..]).flatten() {
            // Where rows lie in each other's gaps is worked out only for extents that meet.
            let meet = output.extent.0 < other.extent.1 && other.extent.0 < output.extent.1;
            if meet && share(output, other) {
                return Err(Error::Overlap {
                    output: output.argument,
                    other: other.argument,
                });
            }
        }
    }
    Ok(())
}

/// Whether an output shares memory with another argument in a way that it must not.
#[cold]
fn share(output: &Checked<'_>, other: &Checked<'_>) -> bool {
    let (a, b) = (output.view.rows(), other.view.rows());
    overlap(&region(&a), &region(&b)) && !(may_replace(output, other) && a.same_memory(&b))
}

/// Whether `output` may lie where `input` does.
fn may_replace(output: &Checked<'_>, input: &Checked<'_>) -> bool {
    use Argument::{Dh, Dx, Dy, H, Residual, X, Y};
    let pair = (output.argument, input.argument);
    matches!(pair, (Y | H, X | Residual) | (Dx, Dy | X | Dh))
}
