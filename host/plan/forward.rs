//! The forward's plan.

use super::{Alignment, DeviceProperties, ForwardForm, Launch, check_rows, entry, general, routes};
use crate::error::Result;
use crate::op::RmsNorm;
use cake_rmsnorm_kernels::arith::TILE;
use cake_rmsnorm_kernels::contract::{Program, WeightType};
use cake_rmsnorm_kernels::forward::ring_shared_bytes;
use cake_rmsnorm_kernels::row_sum::SCRATCH_BYTES;

/// Threads of a block that goes over its row in turns, at most.
const WIDE_THREADS: u32 = 512;

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
    let residual = form.residual;
    let (Some(weight), Alignment::Vector) = (op.fast_weight(), form.alignment) else {
        let launch = Some(general::forward(hidden, rows, device)?);
        return Ok(ForwardPlan { launch });
    };
    if form.grouped {
        let launch = Some(any_view(hidden, weight, rows, residual, device));
        return Ok(ForwardPlan { launch });
    }
    let route = routes::FORWARD
        .iter()
        .find(|route| hidden <= route.max_hidden);
    let route = route.unwrap_or_else(|| unreachable!("the operator's hidden size was checked"));
    let launch = |forward| with_program(forward, hidden, weight, rows, residual, device);
    let (few, enough) = launch(&route.few);
    let (many, _) = launch(&route.many);
    let launch = if enough || many.shared_bytes > device.shared_bytes_per_block {
        few
    } else {
        many
    };
    Ok(ForwardPlan {
        launch: Some(launch),
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
        (Some(weight), Alignment::Vector) => Ok(any_view(hidden, weight, rows, false, device)),
        _ => general::forward(hidden, rows, device),
    }
}

/// The programs that take rows in groups, and no y.
fn any_view(
    hidden: u32,
    weight: WeightType,
    rows: u64,
    residual: bool,
    device: &DeviceProperties,
) -> Launch {
    let route = if hidden <= routes::ANY_VIEW_WARP_HIDDEN {
        &routes::FORWARD_WARP_1
    } else {
        &routes::FORWARD_WIDE
    };
    with_program(route, hidden, weight, rows, residual, device).0
}

/// The launch of a program, and whether it has a block (or warp) for every row at once.
fn with_program(
    forward: &routes::Forward,
    hidden: u32,
    weight: WeightType,
    rows: u64,
    residual: bool,
    device: &DeviceProperties,
) -> (Launch, bool) {
    let block = match forward.program {
        Program::ForwardBlock { vectors } | Program::ForwardRing { vectors } => {
            32 * hidden.div_ceil(TILE * vectors)
        }
        Program::ForwardWarp { .. } => 32 * forward.warp_rows,
        _ => (32 * hidden.div_ceil(TILE)).min(WIDE_THREADS),
    };
    let units = rows.div_ceil(u64::from(forward.warp_rows.max(1)));
    let threads = if residual {
        forward.residual_threads
    } else {
        forward.resident_threads
    };
    let blocks_per_sm = (threads / block).max(1);
    let resident = u64::from(device.multiprocessors() * blocks_per_sm);
    let launch = Launch {
        kernel: entry(forward.program, Some(weight), residual),
        grid: units.min(resident) as u32,
        block,
        shared_bytes: match forward.program {
            Program::ForwardRing { vectors } => ring_shared_bytes(vectors, residual, block),
            Program::ForwardWarp { .. } => 0,
            _ => SCRATCH_BYTES,
        },
        dependent: false,
    };
    (launch, units <= resident)
}
