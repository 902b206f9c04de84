//! The forward's plan.

use super::{DeviceProperties, Launch, check_rows, entry, routes};
use crate::error::Result;
use cake_rmsnorm_kernels::arith::TILE;
use cake_rmsnorm_kernels::contract::WeightType;
use cake_rmsnorm_kernels::row_sum::SCRATCH_BYTES;

/// Threads of a block that goes over its row in turns.
const WIDE_THREADS: u32 = 512;

/// What a forward launches.
#[derive(Clone, Copy, Debug)]
pub struct ForwardPlan {
    /// `None` when there are no rows.
    pub launch: Option<Launch>,
}

/// Plans a forward over `rows` rows of `hidden` elements (a multiple of 8 up to 65,536).
///
/// # Errors
/// - [`crate::Error::TooManyRows`]; [`crate::Error::UnsupportedDevice`].
pub fn forward(
    hidden: u32,
    weight: WeightType,
    rows: u64,
    residual: bool,
    device: &DeviceProperties,
) -> Result<ForwardPlan> {
    check_rows(rows)?;
    device.check()?;
    if rows == 0 {
        return Ok(ForwardPlan { launch: None });
    }
    let route = routes::FORWARD.iter().find(|route| hidden <= route.max_hidden);
    let route = route.unwrap_or_else(|| unreachable!("the operator's hidden size was checked"));
    let block = match (route.vectors, route.warp_rows) {
        (0, _) => WIDE_THREADS,
        (vectors, 0) => 32 * hidden.div_ceil(TILE * vectors),
        (_, warps) => 32 * warps,
    };
    let units = rows.div_ceil(u64::from(route.warp_rows.max(1)));
    let resident = u64::from(device.multiprocessors() * (route.resident_threads / block).max(1));
    let launch = Launch {
        kernel: entry(route.program, Some(weight), residual),
        grid: units.min(resident) as u32,
        block,
        shared_bytes: if route.warp_rows == 0 { SCRATCH_BYTES } else { 0 },
        dependent: false,
    };
    Ok(ForwardPlan { launch: Some(launch) })
}
