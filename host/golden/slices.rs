//! The golden implementation on slices: packed rows, checked.

use crate::element::Element;
use crate::error::{Argument, Error, Result};
use crate::op::{BackwardArgs, ForwardArgs, MAX_ROWS, RmsNorm, WeightGradient};
use crate::view::{Dtype, RowsView, VectorView, Workspace};
use half::{bf16, f16};

/// A weight in host memory, \[H\].
#[derive(Clone, Copy, Debug)]
pub enum Weight<'a> {
    /// No weight.
    None,
    /// BF16.
    Bf16(&'a [bf16]),
    /// FP16.
    F16(&'a [f16]),
    /// FP32.
    F32(&'a [f32]),
}

impl Weight<'_> {
    /// The element type; `None` without a weight.
    #[must_use]
    pub fn dtype(&self) -> Option<Dtype> {
        self.view().map(|view| view.dtype)
    }

    pub(crate) fn view(&self) -> Option<VectorView> {
        match self {
            Weight::None => None,
            Weight::Bf16(w) => Some(VectorView::bf16(w.as_ptr() as u64, w.len() as u64)),
            Weight::F16(w) => Some(VectorView::f16(w.as_ptr() as u64, w.len() as u64)),
            Weight::F32(w) => Some(VectorView::f32(w.as_ptr() as u64, w.len() as u64)),
        }
    }
}

/// What a forward gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Forward<E = bf16> {
    /// x + residual, rounded, [T, H]; `None` without a residual.
    pub h: Option<Vec<E>>,
    /// y [T, H].
    pub y: Vec<E>,
    /// rstd, FP32 \[T\].
    pub rstd: Vec<f32>,
}

/// What a backward gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Backward<E = bf16> {
    /// Gradient of x [T, H].
    pub dx: Vec<E>,
    /// Gradient of w, FP32 \[H\]; empty without a weight.
    pub dw: Vec<f32>,
}

/// Forward over packed rows [T, H] in host memory.
///
/// # Errors
/// - [`Error::Length`] when `x` is not whole rows, when `residual` has another length, or `w` not
///   H elements; [`Error::Dtype`] when `x` or `w` is not of the operator's type;
///   [`Error::TooManyRows`].
pub fn forward_slices<E: Element>(
    op: &RmsNorm,
    x: &[E],
    residual: Option<&[E]>,
    w: Weight<'_>,
) -> Result<Forward<E>> {
    let rows = whole_rows(op, Argument::X, x)?;
    if let Some(residual) = residual {
        check_length(Argument::Residual, residual.len(), x.len())?;
    }
    check_weight(op, w)?;

    let mut h = residual.map(|_| vec![E::zeroed(); x.len()]);
    let mut y = vec![E::zeroed(); x.len()];
    let mut rstd = vec![0.0; rows as usize];
    let args = ForwardArgs {
        x: packed(op, x.as_ptr(), rows),
        residual: residual.map(|residual| packed(op, residual.as_ptr(), rows)),
        w: w.view(),
        h: h.as_mut().map(|h| packed(op, h.as_mut_ptr(), rows)),
        y: packed(op, y.as_mut_ptr(), rows),
        rstd: Some(VectorView::f32(rstd.as_mut_ptr() as u64, rows)),
    };
    // SAFETY: the views are those of live slices whose lengths were checked; the outputs are new.
    unsafe { super::forward(op, &args) };
    Ok(Forward { h, y, rstd })
}

/// Backward over packed rows [T, H] in host memory: `dy`, `x` (what the forward normalised),
/// `dh` (added to dx), and `rstd` of the forward, FP32 \[T\].
///
/// # Errors
/// - [`Error::Length`] when `dy` is not whole rows, or another argument has not the length that
///   `dy` and H ask for; [`Error::Dtype`] when `dy` or `w` is not of the operator's type;
///   [`Error::TooManyRows`].
pub fn backward_slices<E: Element>(
    op: &RmsNorm,
    dy: &[E],
    x: &[E],
    dh: Option<&[E]>,
    w: Weight<'_>,
    rstd: &[f32],
) -> Result<Backward<E>> {
    let rows = whole_rows(op, Argument::Dy, dy)?;
    check_length(Argument::X, x.len(), dy.len())?;
    if let Some(dh) = dh {
        check_length(Argument::Dh, dh.len(), dy.len())?;
    }
    check_weight(op, w)?;
    check_length(Argument::Rstd, rstd.len(), rows as usize)?;

    let mut dx = vec![E::zeroed(); dy.len()];
    let mut dw = vec![0.0; op.weight().map_or(0, |_| op.hidden() as usize)];
    let dw_view = VectorView::f32(dw.as_mut_ptr() as u64, op.hidden());
    let dw_view = op.weight().map(|_| WeightGradient::overwrite(dw_view));
    let args = BackwardArgs {
        dy: packed(op, dy.as_ptr(), rows),
        x: packed(op, x.as_ptr(), rows),
        dh: dh.map(|dh| packed(op, dh.as_ptr(), rows)),
        w: w.view(),
        rstd: Some(VectorView::f32(rstd.as_ptr() as u64, rows)),
        dx: Some(packed(op, dx.as_mut_ptr(), rows)),
        dw: dw_view,
        workspace: Workspace {
            address: 0,
            bytes: 0,
        },
    };
    // SAFETY: the views are those of live slices whose lengths were checked; the outputs are new.
    unsafe { super::backward(op, &args) };
    Ok(Backward { dx, dw })
}

/// T of the first argument.
fn whole_rows<E: Element>(op: &RmsNorm, argument: Argument, first: &[E]) -> Result<u64> {
    if E::DTYPE != op.input() {
        return Err(Error::Dtype {
            argument,
            found: E::DTYPE,
            accepted: op.input(),
        });
    }
    let (elements, hidden) = (first.len() as u64, op.hidden());
    if !elements.is_multiple_of(hidden) {
        return Err(Error::Length {
            argument,
            found: elements,
            expected: elements.next_multiple_of(hidden),
        });
    }
    let rows = elements / hidden;
    if rows > MAX_ROWS {
        return Err(Error::TooManyRows { rows });
    }
    Ok(rows)
}

fn check_length(argument: Argument, found: usize, expected: usize) -> Result<()> {
    if found != expected {
        return Err(Error::Length {
            argument,
            found: found as u64,
            expected: expected as u64,
        });
    }
    Ok(())
}

fn check_weight(op: &RmsNorm, w: Weight<'_>) -> Result<()> {
    let argument = Argument::W;
    match (w.view(), op.weight()) {
        (None, None) => Ok(()),
        (None, Some(_)) => Err(Error::Missing { argument }),
        (Some(_), None) => Err(Error::Unexpected { argument }),
        (Some(found), Some(accepted)) if found.dtype != accepted => Err(Error::Dtype {
            argument,
            found: found.dtype,
            accepted,
        }),
        (Some(found), Some(_)) => check_length(argument, found.len as usize, op.hidden() as usize),
    }
}

fn packed<E: Element>(op: &RmsNorm, address: *const E, rows: u64) -> RowsView {
    RowsView::packed(address as u64, rows, op.hidden()).with_dtype(E::DTYPE)
}
