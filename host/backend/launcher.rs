//! From arguments to kernel launches: what every backend that runs kernels shares.

use super::{Backend, bind, last};
use crate::error::Result;
use crate::gated::{GatedBackwardArgs, GatedForwardArgs, GatedRmsNorm};
use crate::op::{BackwardArgs, ForwardArgs, RmsNorm};
use crate::plan::{self, BackwardForm, DeviceProperties, ForwardForm, Launch, Routes, Views};
use crate::validate;
use cake_rmsnorm_kernels::contract::Kernel;

/// A launch with its parameters.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// The launch.
    pub launch: Launch,
    /// The kernel's parameter struct.
    pub params: *const u8,
}

/// Launches kernels on a device.
pub trait Launcher {
    /// The device that plans are made for.
    fn properties(&self) -> &DeviceProperties;

    /// The routes that plans are made by.
    fn routes(&self) -> &Routes {
        Routes::built_in()
    }

    /// Loads kernels, where launching asks for it.
    ///
    /// # Errors
    /// - What the device reports.
    fn load(&self, _: &[&'static Kernel]) -> Result<()> {
        Ok(())
    }

    /// Enqueues kernels, one after the other. Part of every call: it should not allocate.
    ///
    /// # Errors
    /// - [`crate::Error::NotPrepared`], before anything is enqueued.
    /// - What the device reports. Kernels before the one that failed may have been enqueued.
    ///
    /// # Safety
    /// - Each [`Bound::params`] points to the kernel's parameter struct.
    /// - The launches keep their kernels' contracts, with buffers that stay valid until they
    ///   completed.
    unsafe fn launch(&self, launches: &[Bound]) -> Result<()>;
}

impl<L: Launcher> Backend for L {
    fn properties(&self) -> &DeviceProperties {
        Launcher::properties(self)
    }

    fn routes(&self) -> &Routes {
        Launcher::routes(self)
    }

    fn prepare(&self, op: &RmsNorm, residual: bool, views: Views) -> Result<()> {
        let (routes, device) = (Launcher::routes(self), Launcher::properties(self));
        self.load(&plan::kernels_by(routes, op, residual, views, device)?)
    }

    unsafe fn forward(&self, op: &RmsNorm, args: &ForwardArgs) -> Result<()> {
        let rows = validate::forward(op, args)?;
        let (routes, device) = (Launcher::routes(self), Launcher::properties(self));
        let plan = last::forward(routes, op, rows, ForwardForm::of(args), device)?;
        let Some(launch) = plan.launch else {
            return Ok(());
        };
        let params = bind::forward(op, args, rows, &launch);
        // SAFETY: the arguments were checked, and the plan keeps the kernel's contract for them;
        // the caller vouches for the memory.
        unsafe {
            self.launch(&[Bound {
                launch,
                params: params.pointer(),
            }])
        }
    }

    unsafe fn backward(&self, op: &RmsNorm, args: &BackwardArgs) -> Result<()> {
        let rows = validate::backward(op, args)?;
        let (routes, device) = (Launcher::routes(self), Launcher::properties(self));
        let plan = last::backward(routes, op, rows, BackwardForm::of(args), device)?;
        validate::workspace(args.workspace, plan.workspace_bytes)?;
        let (statistics, main, reduce) = (plan.statistics, plan.main, plan.reduce);
        let statistics =
            statistics.map(|launch| (launch, bind::statistics(op, args, rows, &plan, &launch)));
        let main = main.map(|launch| (launch, bind::backward(op, args, rows, &plan, &launch)));
        let reduce = reduce.map(|launch| (launch, bind::reduce(op, args, &plan)));
        let bound = |launch, params| Bound { launch, params };
        let statistics = statistics
            .as_ref()
            .map(|(l, params)| bound(*l, params.pointer()));
        let main = main.as_ref().map(|(l, params)| bound(*l, params.pointer()));
        let reduce = reduce
            .as_ref()
            .map(|(l, params)| bound(*l, (&raw const *params).cast()));
        let mut launches = [statistics, main, reduce].into_iter().flatten();
        // SAFETY: the arguments were checked, and the plan keeps the kernels' contracts for them;
        // a launch reads of the workspace what one before it stores; the caller vouches for the
        // memory.
        unsafe {
            match [launches.next(), launches.next(), launches.next()] {
                [Some(a), Some(b), Some(c)] => self.launch(&[a, b, c]),
                [Some(a), Some(b), None] => self.launch(&[a, b]),
                [Some(a), ..] => self.launch(&[a]),
                [None, ..] => Ok(()),
            }
        }
    }

    fn prepare_gated(&self, op: &GatedRmsNorm) -> Result<()> {
        self.load(&plan::gated_kernels(op, Launcher::properties(self))?)
    }

    unsafe fn gated_forward(&self, op: &GatedRmsNorm, args: &GatedForwardArgs) -> Result<()> {
        // SAFETY: the caller's obligations.
        unsafe { super::gated::forward(self, op, args) }
    }

    unsafe fn gated_backward(&self, op: &GatedRmsNorm, args: &GatedBackwardArgs) -> Result<()> {
        // SAFETY: the caller's obligations.
        unsafe { super::gated::backward(self, op, args) }
    }
}
