//! The golden implementation of the gated form on slices: packed rows, checked.

use super::op::{GatedBackwardArgs, GatedForwardArgs, GatedRmsNorm};
use super::view::HeadsView;
use crate::error::{Argument, Error, Result};
use crate::golden::{self, Weight};
use crate::op::Update;
use crate::view::{Dtype, VectorView, Workspace};
use half::bf16;

/// What a forward gives.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedForward {
    /// y, BF16 [T, H].
    pub y: Vec<bf16>,
    /// rstd, FP32 [T, groups].
    pub rstd: Vec<f32>,
}

/// What a backward gives.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedBackward {
    /// Gradient of x, BF16 [T, H].
    pub dx: Vec<bf16>,
    /// Gradient of z, BF16 [T, H].
    pub dz: Vec<bf16>,
    /// Gradient of w, FP32 \[H\].
    pub dw: Vec<f32>,
}

/// Forward over packed BF16 rows [T, H] in host memory.
///
/// # Errors
/// - [`Error::Length`], [`Error::Dtype`], [`Error::TooManyRows`] where a slice is not what the
///   operator asks for.
pub fn forward_slices(
    op: &GatedRmsNorm,
    x: &[bf16],
    z: &[bf16],
    w: Weight<'_>,
) -> Result<GatedForward> {
    let rows = whole_rows(op, Argument::X, x)?;
    check_length(Argument::Z, z.len(), x.len())?;
    let mut y = vec![bf16::ZERO; x.len()];
    let mut rstd = vec![0.0f32; (rows * op.groups()) as usize];
    let args = GatedForwardArgs {
        x: packed(op, x.as_ptr(), rows),
        z: packed(op, z.as_ptr(), rows),
        w: weight(op, w)?,
        y: packed(op, y.as_mut_ptr(), rows),
        rstd: Some(VectorView::f32(rstd.as_mut_ptr() as u64, rstd.len() as u64)),
    };
    // SAFETY: the views are those of live slices whose lengths were checked; the outputs are new.
    unsafe { golden::gated::forward(op, &args) };
    Ok(GatedForward { y, rstd })
}

/// Backward over packed BF16 rows [T, H] in host memory; rstd, FP32 [T, groups], is recomputed
/// where it is not given.
///
/// # Errors
/// - As [`forward_slices`].
pub fn backward_slices(
    op: &GatedRmsNorm,
    dy: &[bf16],
    x: &[bf16],
    z: &[bf16],
    w: Weight<'_>,
    rstd: Option<&[f32]>,
) -> Result<GatedBackward> {
    let rows = whole_rows(op, Argument::Dy, dy)?;
    check_length(Argument::X, x.len(), dy.len())?;
    check_length(Argument::Z, z.len(), dy.len())?;
    if let Some(rstd) = rstd {
        check_length(Argument::Rstd, rstd.len(), (rows * op.groups()) as usize)?;
    }
    let mut dx = vec![bf16::ZERO; dy.len()];
    let mut dz = vec![bf16::ZERO; dy.len()];
    let mut dw = vec![0.0f32; op.hidden() as usize];
    let args = GatedBackwardArgs {
        dy: packed(op, dy.as_ptr(), rows),
        x: packed(op, x.as_ptr(), rows),
        z: packed(op, z.as_ptr(), rows),
        w: weight(op, w)?,
        rstd: rstd.map(|rstd| VectorView::f32(rstd.as_ptr() as u64, rstd.len() as u64)),
        dx: packed(op, dx.as_mut_ptr(), rows),
        dz: packed(op, dz.as_mut_ptr(), rows),
        dw: Some((
            VectorView::f32(dw.as_mut_ptr() as u64, op.hidden()),
            Update::Overwrite,
        )),
        workspace: Workspace {
            address: 0,
            bytes: 0,
        },
    };
    // SAFETY: the views are those of live slices whose lengths were checked; the outputs are new.
    unsafe { golden::gated::backward(op, &args) };
    Ok(GatedBackward { dx, dz, dw })
}

/// T of the first argument.
fn whole_rows(op: &GatedRmsNorm, argument: Argument, first: &[bf16]) -> Result<u64> {
    let (elements, hidden) = (first.len() as u64, op.hidden());
    check_length(
        argument,
        first.len(),
        elements.next_multiple_of(hidden) as usize,
    )?;
    let rows = elements / hidden;
    if rows > crate::op::MAX_ROWS {
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

fn weight(op: &GatedRmsNorm, w: Weight<'_>) -> Result<VectorView> {
    let refused = |found| {
        Err(Error::Dtype {
            argument: Argument::W,
            found,
            accepted: op.weight(),
        })
    };
    let view = match w {
        Weight::F32(w) => VectorView::f32(w.as_ptr() as u64, w.len() as u64),
        Weight::Bf16(w) => VectorView::bf16(w.as_ptr() as u64, w.len() as u64),
        Weight::F16(_) => return refused(Dtype::F16),
        Weight::None => {
            return Err(Error::Length {
                argument: Argument::W,
                found: 0,
                expected: op.hidden(),
            });
        }
    };
    if view.dtype != op.weight() {
        return refused(view.dtype);
    }
    check_length(Argument::W, view.len as usize, op.hidden() as usize)?;
    Ok(view)
}

fn packed(op: &GatedRmsNorm, address: *const bf16, rows: u64) -> HeadsView {
    HeadsView::packed(address as u64, rows, 1, op.hidden())
}
