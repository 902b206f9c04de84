//! The forward's plan.

use super::choice::Choice;
use super::routes::{Call, Origin, Route, Routes};
use super::{
    Alignment, DeviceProperties, ForwardForm, Launch, check_rows, entry, general, keeps, routes,
};
use crate::error::Result;
use crate::op::RmsNorm;
use cake_rmsnorm_kernels::arith::TILE;
use cake_rmsnorm_kernels::contract::Program;
use cake_rmsnorm_kernels::row_sum::SCRATCH_BYTES;

/// What a forward launches.
#[derive(Clone, Copy, Debug)]
pub struct ForwardPlan {
    /// `None` when there are no rows.
    pub launch: Option<Launch>,
}

/// Plans a forward of `op` over `rows` rows by the built-in routes.
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
    forward_by(Routes::built_in(), op, rows, form, device)
}

/// As [`forward`], by other routes. They are for rows that are not in groups, and whose types,
/// width and alignment the fast kernels take.
///
/// # Errors
/// - As [`forward`].
pub fn forward_by(
    routes: &Routes,
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
    let (Ok(call), Alignment::Vector) = (op.call(rows, form.residual), form.alignment) else {
        let launch = Some(general::forward(op.hidden() as u32, rows, device)?);
        return Ok(ForwardPlan { launch });
    };
    if form.grouped {
        return any_view(&call, device);
    }
    let (plan, ..) = route(routes, &call, device)?;
    Ok(plan)
}

/// rstd of `rows` rows, and nothing else: the forward of a backward that has none.
pub(super) fn statistics(
    op: &RmsNorm,
    rows: u64,
    alignment: Alignment,
    device: &DeviceProperties,
) -> Result<Option<Launch>> {
    match (op.call(rows, false), alignment) {
        (Ok(call), Alignment::Vector) => Ok(any_view(&call, device)?.launch),
        _ => general::forward(op.hidden() as u32, rows, device).map(Some),
    }
}

/// By the programs that take rows in groups, and no y.
fn any_view(call: &Call, device: &DeviceProperties) -> Result<ForwardPlan> {
    let mut routes = routes::FORWARD_ANY_VIEW.iter();
    let route = routes.find(|route| route.window.holds_shape(call));
    let route = route.unwrap_or_else(|| unreachable!("the last is for any width"));
    chosen(&route.choice, call, device)
}

/// The plan of a call with rows, and the route that made it.
pub(super) fn route<'a>(
    routes: &'a Routes,
    call: &Call,
    device: &DeviceProperties,
) -> Result<(ForwardPlan, &'a Route, Origin<'a>)> {
    routes::first(routes.forwards(), call, device, chosen)
}

/// The plan of a choice, if call and device keep its contract.
pub(super) fn chosen(
    choice: &Choice,
    call: &Call,
    device: &DeviceProperties,
) -> Result<ForwardPlan> {
    let Call { hidden, rows, .. } = *call;
    let keeps = |condition, reason| keeps(choice, condition, reason);
    let multiprocessors = device.multiprocessors();
    let (block, grid, shared_bytes) = match choice.program {
        Program::ForwardWarp {
            lanes,
            vectors,
            rows: each,
        } => {
            keeps(
                hidden <= TILE / 32 * lanes * vectors,
                "its lanes hold no row of this width",
            )?;
            let rows_a_block = u64::from(each) * u64::from(choice.block().max(32) / lanes);
            (choice.block(), rows.div_ceil(rows_a_block), 0)
        }
        Program::ForwardBlock { vectors, .. } => {
            let block = 32 * hidden.div_ceil(TILE * vectors);
            (block, rows, SCRATCH_BYTES)
        }
        Program::ForwardWide => {
            // No more warps than the row has work for.
            let block = choice.block().min(32 * hidden.div_ceil(TILE));
            let grid = rows.min(choice.resident(block, multiprocessors));
            (block, grid, SCRATCH_BYTES)
        }
        _ => return Err(super::not_kept(choice, "it is no forward")),
    };
    let kernel = entry(choice.program, Some(call.weight), call.residual)?;
    let launch = Launch {
        kernel,
        grid: grid.max(1) as u32,
        block,
        shared_bytes,
        dependent: true,
    };
    super::check_launch(choice.program, &launch, device)?;
    Ok(ForwardPlan {
        launch: Some(launch),
    })
}
