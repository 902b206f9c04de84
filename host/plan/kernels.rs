//! What an operator needs to have loaded: the kernels that its plans choose from.

use super::{BackwardForm, DeviceProperties, ForwardForm, Launch};
use crate::error::Result;
use crate::gated::GatedRmsNorm;
use crate::op::{MAX_ROWS, RmsNorm};
use crate::plan;
use cake_rmsnorm_kernels::contract::Kernel;

/// Every kernel that a forward or a backward of `op` launches on `device`, whatever T is, whatever
/// arguments are there and however they lie. A handful: they depend on H and the element types.
///
/// # Errors
/// - As the plans, when no T has one.
pub fn kernels(
    op: &RmsNorm,
    residual: bool,
    device: &DeviceProperties,
) -> Result<Vec<&'static Kernel>> {
    collect(heights().flat_map(|rows| {
        let forward = ForwardForm::every(residual).map(move |form| {
            let forward = plan::forward(op, rows, form, device);
            forward.map(|plan| [plan.launch, None, None])
        });
        let backward = BackwardForm::every(residual).map(move |form| {
            let backward = plan::backward(op, rows, form, device);
            backward.map(|plan| [plan.statistics, plan.main, plan.reduce])
        });
        forward.chain(backward)
    }))
}

/// The same for an operator of the gated form.
///
/// # Errors
/// - As the plans, when no T has one.
pub fn gated_kernels(op: &GatedRmsNorm, device: &DeviceProperties) -> Result<Vec<&'static Kernel>> {
    collect(heights().flat_map(|rows| {
        let forward = op.forward_plan(rows, device);
        let backward = op.backward_plan(rows, true, device);
        [
            forward.map(|plan| [plan.launch, None, None]),
            backward.map(|plan| [plan.main, plan.reduce, None]),
        ]
    }))
}

/// The kernels of plans.
fn collect(
    plans: impl Iterator<Item = Result<[Option<Launch>; 3]>>,
) -> Result<Vec<&'static Kernel>> {
    let mut kernels: Vec<&'static Kernel> = Vec::new();
    let mut refused = None;
    for launches in plans {
        match launches {
            Ok(launches) => {
                for Launch { kernel, .. } in launches.into_iter().flatten() {
                    if !kernels.iter().any(|known| std::ptr::eq(*known, kernel)) {
                        kernels.push(kernel);
                    }
                }
            }
            Err(error) => refused = Some(error),
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
    (0..31).flat_map(octave).chain([0, MAX_ROWS])
}
