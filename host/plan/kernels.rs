//! What an operator needs to have loaded: the kernels that its plans choose from.

use super::{Alignment, BackwardForm, DeviceProperties, ForwardForm, Launch, Routes, Spacing};
use crate::error::Result;
use crate::gated::GatedRmsNorm;
use crate::op::{MAX_ROWS, RmsNorm};
use crate::plan;
use cake_rmsnorm_kernels::contract::Kernel;
use std::collections::BTreeSet;

/// How the arguments of an operator's calls lie in memory, as far as its kernels depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Views {
    /// Rows at one distance from each other, 16-byte aligned: what most calls bring.
    #[default]
    Ordinary,
    /// Also rows in groups, any alignment, outputs in the place of inputs.
    Any,
}

impl Views {
    fn hold(self, alignment: Alignment, grouped: bool, in_place: bool) -> bool {
        self == Views::Any || alignment == Alignment::Vector && !grouped && !in_place
    }
}

/// Every kernel that a forward or a backward of `op` launches on `device` by the built-in routes,
/// whatever T is and whatever arguments are there, as long as they lie as `views` says. A handful:
/// they depend on H and the element types.
///
/// # Errors
/// - As the plans, when no T has one.
pub fn kernels(
    op: &RmsNorm,
    residual: bool,
    views: Views,
    device: &DeviceProperties,
) -> Result<Vec<&'static Kernel>> {
    kernels_by(Routes::built_in(), op, residual, views, device)
}

/// As [`kernels`], by other routes.
///
/// # Errors
/// - As the plans, when no T has one.
pub fn kernels_by(
    routes: &Routes,
    op: &RmsNorm,
    residual: bool,
    views: Views,
    device: &DeviceProperties,
) -> Result<Vec<&'static Kernel>> {
    let limits = op.route_limits(routes, residual, device);
    let beside = limits.into_iter().flat_map(|rows| [rows, rows + 1]);
    let heights: BTreeSet<u64> = heights().chain(beside).collect();
    let heights = heights.into_iter().filter(|rows| *rows <= MAX_ROWS);
    collect(heights.flat_map(|rows| {
        let forward = ForwardForm::every(residual);
        let forward = forward.filter(move |form| views.hold(form.alignment, form.grouped, false));
        let forward = forward.map(move |form| {
            let forward = plan::forward_by(routes, op, rows, form, device);
            forward.map(|plan| [plan.launch, None, None])
        });
        let backward = BackwardForm::every(residual);
        let backward = backward.filter(move |it| views.hold(it.alignment, it.grouped, it.in_place));
        let backward = backward.map(move |form| {
            let backward = plan::backward_by(routes, op, rows, form, device);
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
        let forward = [Spacing::Even, Spacing::Any].map(|spacing| {
            let forward = op.forward_plan(rows, spacing, device);
            forward.map(|plan| [plan.launch, None, None])
        });
        let backward = op.backward_plan(rows, true, device);
        let backward = backward.map(|plan| [plan.main, plan.reduce, None]);
        forward.into_iter().chain([backward])
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

/// Heights of which every window of T with plans of its own holds one, but for the routes' limits:
/// eight an octave.
fn heights() -> impl Iterator<Item = u64> {
    let octave = |log2: u32| (8..16).map(move |eighths| (eighths << log2) / 8);
    (0..31).flat_map(octave).chain([0, MAX_ROWS])
}
