//! The forward's plan.

use super::{Alignment, DeviceProperties, ForwardForm, Launch, check_rows, entry, general, routes};
use crate::error::Result;
use crate::op::RmsNorm;
use cake_rmsnorm_kernels::arith::TILE;
use cake_rmsnorm_kernels::contract::{Program, WeightType};
use cake_rmsnorm_kernels::row_sum::SCRATCH_BYTES;

/// What a forward launches.
#[derive(Clone, Copy, Debug)]
pub struct ForwardPlan {
    /// `None` when there are no rows.
    pub launch: Option<Launch>,
}

/// Plans a forward of `op` over `rows` rows.
///
/// # Errors
/// - [`crate::Error::TooManyRows`]; [`crate::Error::UnsupportedDevice`];
///   [`crate::Error::SharedMemory`].
pub fn forward(
    op: &RmsNorm,
    rows: u64,
    form: ForwardForm,
    device: &DeviceProperties,
) -> Result<ForwardPlan> {
    check_rows(rows)?;
    device.check()?;
    if rows == 0 {
        return Ok(ForwardPlan { launch: None });
    }
    let hidden = op.hidden() as u32;
    let (Some(weight), Alignment::Vector) = (op.fast_weight(), form.alignment) else {
        let launch = Some(general::forward(hidden, rows, device)?);
        return Ok(ForwardPlan { launch });
    };
    Ok(ForwardPlan {
        launch: Some(launch(hidden, weight, rows, form, device)),
    })
}

/// rstd of `rows` rows, and nothing else: the forward of a backward that has none.
pub(super) fn statistics(
    op: &RmsNorm,
    rows: u64,
    alignment: Alignment,
    device: &DeviceProperties,
) -> Result<Launch> {
    let hidden = op.hidden() as u32;
    match (op.fast_weight(), alignment) {
        (Some(weight), Alignment::Vector) => {
            let form = ForwardForm {
                residual: false,
                alignment,
                grouped: true,
            };
            Ok(launch(hidden, weight, rows, form, device))
        }
        _ => general::forward(hidden, rows, device),
    }
}

/// The launch of the program whose time it is.
fn launch(
    hidden: u32,
    weight: WeightType,
    rows: u64,
    form: ForwardForm,
    device: &DeviceProperties,
) -> Launch {
    let route = routes::FORWARD
        .iter()
        .find(|route| hidden <= route.max_hidden);
    let route = route.unwrap_or_else(|| unreachable!("the operator's hidden size was checked"));
    let multiprocessors = u64::from(device.multiprocessors());
    let programs = if form.residual {
        route.residual
    } else {
        route.plain
    };
    let serves = |most: u64| form.grouped || rows.div_ceil(multiprocessors) <= most;
    let forward = programs.iter().find(|(most, _)| serves(*most));
    let (_, forward) = forward.unwrap_or_else(|| unreachable!("the last is for any number"));
    let (warps, grid, shared_bytes) = match forward.program {
        Program::ForwardWarp { rows: each, .. } => {
            let blocks = rows.div_ceil(u64::from(each * forward.warps));
            (forward.warps, blocks, 0)
        }
        Program::ForwardBlock { vectors, .. } => {
            (hidden.div_ceil(TILE * vectors), rows, SCRATCH_BYTES)
        }
        _ => {
            let warps = hidden.div_ceil(TILE).min(forward.warps);
            let blocks = u64::from((forward.resident_threads / (32 * warps)).max(1));
            (warps, rows.min(multiprocessors * blocks), SCRATCH_BYTES)
        }
    };
    Launch {
        kernel: entry(forward.program, Some(weight), form.residual),
        grid: grid as u32,
        block: 32 * warps,
        shared_bytes,
        dependent: false,
    }
}
