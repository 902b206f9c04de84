//! Every choice that a call and a device keep the contract of: what tuning measures, and what a
//! sweep compares.

use super::routes::{Call, Origin, Route, Routes};
use super::{
    BackwardPlan, Choice, DeviceProperties, ForwardPlan, Launch, backward, check_rows, forward,
};
use crate::error::Error;
use crate::op::{MAX_ROWS, RmsNorm};
use cake_rmsnorm_kernels::KERNELS;
use cake_rmsnorm_kernels::contract::Program;

/// What is tried where a program leaves it open.
const WARPS: [u32; 5] = [2, 4, 8, 16, 32];
const RESIDENT_THREADS: [u32; 6] = [0, 512, 768, 1024, 1536, 4096];
const RUNS: [Option<u32>; 7] = [None, Some(0), Some(1), Some(2), Some(3), Some(4), Some(6)];

impl RmsNorm {
    /// The plan of a forward over `rows` rows by one choice.
    ///
    /// # Errors
    /// - [`crate::Error::Route`] when the call does not keep the program's contract;
    ///   [`crate::Error::SharedMemory`]; [`crate::Error::UnsupportedDevice`].
    pub fn forward_plan_of(
        &self,
        choice: &Choice,
        rows: u64,
        residual: bool,
        device: &DeviceProperties,
    ) -> crate::Result<ForwardPlan> {
        check_rows(rows)?;
        device.check()?;
        if rows == 0 {
            return Ok(ForwardPlan { launch: None });
        }
        forward::chosen(choice, &self.call(rows, residual)?, device)
    }

    /// The plan of a backward over `rows` rows by one choice.
    ///
    /// # Errors
    /// - As [`RmsNorm::forward_plan_of`].
    pub fn backward_plan_of(
        &self,
        choice: &Choice,
        rows: u64,
        residual: bool,
        device: &DeviceProperties,
    ) -> crate::Result<BackwardPlan> {
        check_rows(rows)?;
        device.check()?;
        if rows == 0 {
            return Ok(BackwardPlan::EMPTY);
        }
        backward::chosen(choice, &self.call(rows, residual)?, device)
    }

    /// Every choice for a forward over `rows` rows, one for each different launch.
    #[must_use]
    pub fn forward_candidates(
        &self,
        rows: u64,
        residual: bool,
        device: &DeviceProperties,
    ) -> Vec<Choice> {
        distinct(|choice| {
            let plan = self.forward_plan_of(choice, rows, residual, device).ok()?;
            plan.launch.map(|launch| key(&launch, 0))
        })
    }

    /// Every choice for a backward over `rows` rows, one for each different launch.
    #[must_use]
    pub fn backward_candidates(
        &self,
        rows: u64,
        residual: bool,
        device: &DeviceProperties,
    ) -> Vec<Choice> {
        distinct(|choice| {
            let plan = self.backward_plan_of(choice, rows, residual, device).ok()?;
            plan.main.map(|launch| key(&launch, plan.leaf.run_log2))
        })
    }

    /// The route that serves a forward over `rows` rows (one or more), and where it came from.
    ///
    /// # Errors
    /// - As [`RmsNorm::forward_plan`].
    pub fn forward_route<'a>(
        &self,
        routes: &'a Routes,
        rows: u64,
        residual: bool,
        device: &DeviceProperties,
    ) -> crate::Result<(&'a Route, Origin<'a>)> {
        check_rows(rows)?;
        device.check()?;
        let (_, route, origin) = forward::route(routes, &self.call(rows, residual)?, device)?;
        Ok((route, origin))
    }

    /// The route that serves a backward over `rows` rows (one or more), and where it came from.
    ///
    /// # Errors
    /// - As [`RmsNorm::backward_plan`].
    pub fn backward_route<'a>(
        &self,
        routes: &'a Routes,
        rows: u64,
        residual: bool,
        device: &DeviceProperties,
    ) -> crate::Result<(&'a Route, Origin<'a>)> {
        check_rows(rows)?;
        device.check()?;
        let (_, route, origin) = backward::route(routes, &self.call(rows, residual)?, device)?;
        Ok((route, origin))
    }

    /// T at which a route of `routes` ends, in order: its window holds T, and not T + 1.
    #[must_use]
    pub fn route_limits(
        &self,
        routes: &Routes,
        residual: bool,
        device: &DeviceProperties,
    ) -> Vec<u64> {
        let Ok(call) = self.call(1, residual) else {
            return Vec::new();
        };
        let mut limits: Vec<u64> = routes.limits(&call, device).collect();
        limits.retain(|&rows| rows <= MAX_ROWS);
        limits.sort_unstable();
        limits.dedup();
        limits
    }

    /// The call, where the fast kernels have the operator's types and width.
    pub(super) fn call(&self, rows: u64, residual: bool) -> crate::Result<Call> {
        let weight = self.fast_weight().ok_or(Error::Route {
            program: Program::GeneralForward,
            reason: "it alone has these types or this width",
        })?;
        Ok(Call {
            hidden: self.hidden() as u32,
            rows,
            weight,
            residual,
        })
    }
}

/// What tells launches apart: name, grid, block and run.
type Key = (&'static str, u32, u32, u32);

fn key(launch: &Launch, run_log2: u32) -> Key {
    (launch.kernel.name, launch.grid, launch.block, run_log2)
}

/// The choices with a launch, the first of each.
fn distinct(launched: impl Fn(&Choice) -> Option<Key>) -> Vec<Choice> {
    let mut programs: Vec<Program> = Vec::new();
    for kernel in KERNELS {
        if !programs.contains(&kernel.program) {
            programs.push(kernel.program);
        }
    }
    let (mut choices, mut keys) = (Vec::new(), Vec::new());
    for program in programs {
        for warps in WARPS {
            for resident_threads in RESIDENT_THREADS {
                for run_log2 in RUNS {
                    let choice = Choice {
                        program,
                        warps,
                        resident_threads,
                        run_log2,
                    };
                    if let Some(key) = launched(&choice).filter(|key| !keys.contains(key)) {
                        keys.push(key);
                        choices.push(choice);
                    }
                }
            }
        }
    }
    choices
}
