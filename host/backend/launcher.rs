//! From arguments to kernel launches: what every backend that runs kernels shares.

use super::Backend;
use crate::error::Result;
use crate::op::{BackwardArgs, ForwardArgs, RmsNorm};
use crate::plan::{self, DeviceProperties, Launch};
use crate::validate;
use crate::view::RowsView;
use cake_rmsnorm_kernels::contract::Kernel;
use cake_rmsnorm_kernels::params::{
    BackwardParams, ForwardParams, Groups, ReduceParams, Stride, WeightGradientOut,
};

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
        let plan = op.forward_plan(u64::from(rows), residual, Launcher::properties(self))?;
        let Some(launch) = plan.launch else {
            return Ok(());
        };
        let params = ForwardParams {
            x: pointer(args.x.address),
            residual: pointer(args.residual.map_or(0, |view| view.address)),
            w: pointer(args.w.address),
            h: pointer_mut(args.h.map_or(0, |view| view.address)),
            y: pointer_mut(args.y.address),
            rstd: pointer_mut(args.rstd.address),
            x_stride: stride(Some(args.x)),
            residual_stride: stride(args.residual),
            h_stride: stride(args.h),
            y_stride: stride(Some(args.y)),
            rows,
            hidden: op.hidden() as u32,
            y_columns: op.hidden() as u32,
            eps: op.eps(),
            weight_offset: -0.0,
            groups: Groups::ONE,
        };
        // SAFETY: the arguments were checked, and the plan keeps the kernel's contract for them;
        // the caller vouches for the memory.
        unsafe {
            self.launch(&[Bound {
                launch,
                params: (&raw const params).cast(),
            }])
        }
    }

    unsafe fn backward(&self, op: &RmsNorm, args: &BackwardArgs) -> Result<()> {
        let rows = validate::backward(op, args)?;
        let residual = args.dh.is_some();
        let plan = op.backward_plan(u64::from(rows), residual, Launcher::properties(self))?;
        validate::workspace(args.workspace, plan.workspace_bytes)?;
        let Some(main) = plan.main else {
            // SAFETY: dw was checked to have H elements.
            return unsafe { self.zero_f32(args.dw.address, op.hidden()) };
        };
        let dw = WeightGradientOut {
            dw: pointer_mut(args.dw.address),
            dw_bf16: pointer_mut(0),
            accumulate: 0,
        };
        let params = BackwardParams {
            dy: pointer(args.dy.address),
            x: pointer(args.x.address),
            dh: pointer(args.dh.map_or(0, |view| view.address)),
            w: pointer(args.w.address),
            rstd: pointer(args.rstd.address),
            dx: pointer_mut(args.dx.address),
            nodes: pointer_mut(args.workspace.address),
            dw,
            dy_stride: stride(Some(args.dy)),
            x_stride: stride(Some(args.x)),
            dh_stride: stride(args.dh),
            dx_stride: stride(Some(args.dx)),
            rows,
            hidden: op.hidden() as u32,
            dx_columns: op.hidden() as u32,
            weight_offset: -0.0,
            groups: Groups::ONE,
            leaf_log2: plan.leaf.leaf_log2,
            run_log2: plan.leaf.run_log2,
        };
        let main = Bound {
            launch: main,
            params: (&raw const params).cast(),
        };
        let Some(reduce) = plan.reduce else {
            // SAFETY: the arguments were checked, and the plan keeps the kernel's contract for
            // them; the caller vouches for the memory.
            return unsafe { self.launch(&[main]) };
        };
        let params = ReduceParams {
            nodes: pointer(args.workspace.address),
            dw,
            hidden: op.hidden() as u32,
            node_count: plan.leaf.runs(),
            chunk_log2: plan.chunk_log2,
        };
        let reduce = Bound {
            launch: reduce,
            params: (&raw const params).cast(),
        };
        // SAFETY: as above; the nodes that the second launch reads are what the first stores.
        unsafe { self.launch(&[main, reduce]) }
    }
}

fn pointer<T>(address: u64) -> *const T {
    address as usize as *const T
}

fn pointer_mut<T>(address: u64) -> *mut T {
    address as usize as *mut T
}

fn stride(view: Option<RowsView>) -> Stride {
    view.map_or(Stride::default(), |view| Stride {
        row: view.stride,
        group: 0,
    })
}
