//! An operator's arguments in the memory of a device, for as many rows as any call has.

use super::device::{Buffer, Device};
use super::error::{CliError, Result};
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::plan::Views;
use cake_rmsnorm::{BackwardArgs, Dtype, ForwardArgs, RmsNorm, RowsView, VectorView, Workspace};

/// An operator with its arguments. Calls work on the first rows.
pub struct Operands {
    op: RmsNorm,
    /// Inputs.
    pub x: Box<dyn Buffer>,
    /// Input of the residual form.
    pub residual: Option<Box<dyn Buffer>>,
    /// Input.
    pub dy: Box<dyn Buffer>,
    /// Input of the residual form.
    pub dh: Option<Box<dyn Buffer>>,
    /// Input.
    pub w: Box<dyn Buffer>,
    /// Output of the residual form.
    pub h: Option<Box<dyn Buffer>>,
    /// Output.
    pub y: Box<dyn Buffer>,
    /// Output of the forward, input of the backward.
    pub rstd: Box<dyn Buffer>,
    /// Output.
    pub dx: Box<dyn Buffer>,
    /// Output.
    pub dw: Box<dyn Buffer>,
    /// Scratch.
    pub workspace: Box<dyn Buffer>,
    workspace_bytes: u64,
}

impl Operands {
    /// Memory for `rows` rows, of unknown contents, and a workspace of `workspace_bytes`. The
    /// device is prepared.
    pub fn new(
        device: &dyn Device,
        op: RmsNorm,
        rows: u64,
        residual: bool,
        workspace_bytes: u64,
    ) -> Result<Self> {
        device.backend().prepare(&op, residual, Views::Ordinary)?;
        let alloc = |name, bytes: u64| -> Result<Box<dyn Buffer>> {
            let length = usize::try_from(bytes).map_err(|_| CliError::Memory {
                purpose: name,
                bytes,
            })?;
            device.alloc(name, length)
        };
        let matrix = |name| alloc(name, rows.saturating_mul(op.hidden() * op.input().bytes()));
        let optional = |name| residual.then(|| matrix(name)).transpose();
        Ok(Self {
            op,
            x: matrix("x")?,
            residual: optional("residual")?,
            dy: matrix("dy")?,
            dh: optional("dh")?,
            w: alloc("w", op.hidden() * op.weight().map_or(0, Dtype::bytes))?,
            h: optional("h")?,
            y: matrix("y")?,
            rstd: alloc("rstd", rows.saturating_mul(4))?,
            dx: matrix("dx")?,
            dw: alloc("dw", op.hidden() * 4)?,
            workspace: alloc("workspace", workspace_bytes)?,
            workspace_bytes,
        })
    }

    /// H.
    pub fn hidden(&self) -> u64 {
        self.op.hidden()
    }

    /// Enqueues a forward of the first `rows` rows.
    pub fn forward(&self, backend: &dyn Backend, rows: u64) -> cake_rmsnorm::Result<()> {
        let matrix = |buffer: &dyn Buffer| self.matrix(buffer, rows);
        let args = ForwardArgs {
            x: matrix(&*self.x),
            residual: self.residual.as_deref().map(matrix),
            w: self.weight(),
            h: self.h.as_deref().map(matrix),
            y: matrix(&*self.y),
            rstd: Some(VectorView::f32(self.rstd.address(), rows)),
        };
        // SAFETY: every address is that of a live buffer of the backend's device that holds the
        // view; whoever enqueues waits before the buffers go, and nobody else uses them.
        unsafe { backend.forward(&self.op, &args) }
    }

    /// Enqueues a backward of the first `rows` rows, after their forward.
    pub fn backward(&self, backend: &dyn Backend, rows: u64) -> cake_rmsnorm::Result<()> {
        let matrix = |buffer: &dyn Buffer| self.matrix(buffer, rows);
        let args = BackwardArgs {
            dy: matrix(&*self.dy),
            x: matrix(self.h.as_deref().unwrap_or(&*self.x)),
            dh: self.dh.as_deref().map(matrix),
            w: self.weight(),
            rstd: Some(VectorView::f32(self.rstd.address(), rows)),
            dx: Some(matrix(&*self.dx)),
            dw: Some(VectorView::f32(self.dw.address(), self.op.hidden()).into()),
            workspace: Workspace {
                address: self.workspace.address(),
                bytes: self.workspace_bytes,
            },
        };
        // SAFETY: as in `forward`.
        unsafe { backend.backward(&self.op, &args) }
    }

    fn matrix(&self, buffer: &dyn Buffer, rows: u64) -> RowsView {
        RowsView::packed(buffer.address(), rows, self.op.hidden()).with_dtype(self.op.input())
    }

    fn weight(&self) -> Option<VectorView> {
        self.op.weight().map(|dtype| VectorView {
            address: self.w.address(),
            dtype,
            len: self.op.hidden(),
        })
    }
}
