//! From arguments to kernel launches: what every backend that runs kernels shares.

use super::{Backend, bind};
use crate::error::Result;
use crate::op::{BackwardArgs, ForwardArgs, RmsNorm};
use crate::plan::{self, Alignment, DeviceProperties, Launch};
use crate::validate;
use crate::view::{RowsView, VectorView};
use cake_rmsnorm_kernels::contract::{Kernel, Program};

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

    /// Enqueues zeroing of `len` FP32 values.
    ///
    /// # Errors
    /// - What the device reports.
    ///
    /// # Safety
    /// - `address` is valid for `len` writes until the work has completed.
    unsafe fn zero_f32(&self, address: u64, len: u64) -> Result<()>;
}

impl<L: Launcher> Backend for L {
    fn properties(&self) -> &DeviceProperties {
        Launcher::properties(self)
    }

    fn prepare(&self, op: &RmsNorm, residual: bool) -> Result<()> {
        self.load(&plan::kernels(op, residual, Launcher::properties(self))?)
    }

    unsafe fn forward(&self, op: &RmsNorm, args: &ForwardArgs) -> Result<()> {
        let rows = validate::forward(op, args)?;
        let residual = args.residual.is_some();
        let views = [Some(args.x), args.residual, args.h, Some(args.y)];
        let alignment = alignment(views, args.w);
        let properties = Launcher::properties(self);
        let plan = plan::forward(op, u64::from(rows), residual, alignment, properties)?;
        let Some(launch) = plan.launch else {
            return Ok(());
        };
        let (general, fast);
        let params = if launch.kernel.program == Program::GeneralForward {
            general = bind::general_forward(op, args, rows);
            (&raw const general).cast()
        } else {
            fast = bind::forward(op, args, rows);
            (&raw const fast).cast()
        };
        // SAFETY: the arguments were checked, and the plan keeps the kernel's contract for them;
        // the caller vouches for the memory.
        unsafe { self.launch(&[Bound { launch, params }]) }
    }

    unsafe fn backward(&self, op: &RmsNorm, args: &BackwardArgs) -> Result<()> {
        let rows = validate::backward(op, args)?;
        let residual = args.dh.is_some();
        let views = [Some(args.dy), Some(args.x), args.dh, Some(args.dx)];
        let alignment = alignment(views, args.w);
        let properties = Launcher::properties(self);
        let plan = plan::backward(op, u64::from(rows), residual, alignment, properties)?;
        validate::workspace(args.workspace, plan.workspace_bytes)?;
        let Some(launch) = plan.main else {
            // SAFETY: dw was checked to have H elements.
            return unsafe { self.zero_f32(args.dw.address, op.hidden()) };
        };
        let (general, fast);
        let params = if launch.kernel.program == Program::GeneralBackward {
            general = bind::general_backward(op, args, rows, &plan);
            (&raw const general).cast()
        } else {
            fast = bind::backward(op, args, rows, &plan);
            (&raw const fast).cast()
        };
        let main = Bound { launch, params };
        let Some(launch) = plan.reduce else {
            // SAFETY: the arguments were checked, and the plan keeps the kernel's contract for
            // them; the caller vouches for the memory.
            return unsafe { self.launch(&[main]) };
        };
        let params = bind::reduce(op, args, &plan);
        let params = (&raw const params).cast();
        // SAFETY: as above; the nodes that the second launch reads are what the first stores.
        unsafe { self.launch(&[main, Bound { launch, params }]) }
    }
}

/// How the matrices and the weight of a call lie.
fn alignment(matrices: [Option<RowsView>; 4], w: VectorView) -> Alignment {
    Alignment::of(matrices.into_iter().flatten().chain([w.as_rows()]))
}
