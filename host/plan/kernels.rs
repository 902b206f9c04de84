//! What an operator needs to have loaded: the kernels that its plans choose from.

use super::{Alignment, DeviceProperties, Launch};
use crate::error::Result;
use crate::op::{MAX_ROWS, RmsNorm};
use crate::plan;
use cake_rmsnorm_kernels::contract::Kernel;

/// Every kernel that a forward or a backward of `op` launches on `device`, whatever T and its arguments' alignment are. A
/// handful: they depend on H, the element types and the form.
///
/// # Errors
/// - As the plans, when no T has one.
pub fn kernels(
    op: &RmsNorm,
    residual: bool,
    device: &DeviceProperties,
) -> Result<Vec<&'static Kernel>> {
    let mut kernels: Vec<&'static Kernel> = Vec::new();
    let mut refused = None;
    let mut add = |launches: Result<[Option<Launch>; 2]>| match launches {
        Ok(launches) => {
            for Launch { kernel, .. } in launches.into_iter().flatten() {
                if !kernels.iter().any(|known| std::ptr::eq(*known, kernel)) {
                    kernels.push(kernel);
                }
            }
        }
        Err(error) => refused = Some(error),
    };
    for rows in heights() {
        for alignment in [Alignment::Vector, Alignment::Element] {
            let forward = plan::forward(op, rows, residual, alignment, device);
            add(forward.map(|plan| [plan.launch, None]));
            let backward = plan::backward(op, rows, residual, alignment, device);
            add(backward.map(|plan| [plan.main, plan.reduce]));
        }
    }
    match refused {
        Some(error) if kernels.is_empty() => Err(error),
        _ => Ok(kernels),
    }
}

/// Heights of which every window of T with plans of its own holds one: eight an octave.
fn heights() -> impl Iterator<Item = u64> {
    let octave = |log2: u32| (8..16).map(move |eighths| (eighths << log2) / 8);
    (0..31).flat_map(octave).chain([MAX_ROWS])
}
