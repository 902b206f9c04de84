//! Operator arguments in the memory of a device, for as many rows as any case has.

use super::case::Op;
use crate::cli::device::{Buffer, Device};
use crate::cli::error::{CliError, Result};
use cake_rmsnorm::inputs::{Inputs, Spec};
use cake_rmsnorm::{BackwardArgs, ForwardArgs, RmsNorm, RowsView, VectorView, Workspace};
use half::bf16;

/// Rows that are made; more are copies of them. No kernel's time depends on the values.
const MADE_ROWS: u64 = 4096;

/// An operator with its arguments.
pub struct Tensors<'a> {
    device: &'a dyn Device,
    op: RmsNorm,
    x: Box<dyn Buffer>,
    residual: Option<Box<dyn Buffer>>,
    dy: Box<dyn Buffer>,
    dh: Option<Box<dyn Buffer>>,
    w: Box<dyn Buffer>,
    h: Option<Box<dyn Buffer>>,
    y: Box<dyn Buffer>,
    rstd: Box<dyn Buffer>,
    dx: Box<dyn Buffer>,
    dw: Box<dyn Buffer>,
    workspace: Box<dyn Buffer>,
    workspace_bytes: u64,
}

impl<'a> Tensors<'a> {
    /// Memory for `rows` rows, filled; the forward has run, so that backwards find its outputs.
    /// The workspace serves `workspace_bytes`.
    pub fn new(
        device: &'a dyn Device,
        op: RmsNorm,
        rows: u64,
        residual: bool,
        workspace_bytes: u64,
    ) -> Result<Self> {
        device.backend().prepare(&op, residual)?;
        let bytes = |purpose, bytes: u64| {
            usize::try_from(bytes).map_err(|_| CliError::Memory { purpose, bytes })
        };
        let matrix_bytes = bytes("one tensor", rows.saturating_mul(op.hidden() * 2))?;
        let alloc = |name| device.alloc(name, matrix_bytes);
        let inputs = inputs(&op, rows, residual)?;
        let filled = |name, values: &[bf16]| -> Result<Box<dyn Buffer>> {
            let mut buffer = alloc(name)?;
            buffer.fill(bytemuck::cast_slice(values))?;
            Ok(buffer)
        };
        let optional = |name, values: &Option<Vec<bf16>>| {
            let values = values.as_deref();
            values.map(|values| filled(name, values)).transpose()
        };
        let mut w = device.alloc("w", inputs.w.as_bytes().len())?;
        w.write(inputs.w.as_bytes())?;
        let tensors = Self {
            device,
            op,
            x: filled("x", &inputs.x)?,
            residual: optional("residual", &inputs.residual)?,
            dy: filled("dy", &inputs.dy)?,
            dh: optional("dh", &inputs.dh)?,
            w,
            h: residual.then(|| alloc("h")).transpose()?,
            y: alloc("y")?,
            rstd: device.alloc("rstd", bytes("rstd", 4 * rows)?)?,
            dx: alloc("dx")?,
            dw: device.alloc("dw", 4 * op.hidden() as usize)?,
            workspace: device.alloc("workspace", bytes("workspace", workspace_bytes)?)?,
            workspace_bytes,
        };
        tensors.forward(rows)?;
        device.synchronize()?;
        Ok(tensors)
    }

    /// Enqueues an operation on the first `rows` rows.
    pub fn enqueue(&self, op: Op, rows: u64) -> cake_rmsnorm::Result<()> {
        match op {
            Op::Fwd => self.forward(rows),
            Op::Bwd => self.backward(rows),
            Op::Step => {
                self.forward(rows)?;
                self.forward(rows)?;
                self.backward(rows)
            }
        }
    }

    fn forward(&self, rows: u64) -> cake_rmsnorm::Result<()> {
        let matrix = |buffer: &dyn Buffer| self.matrix(buffer, rows);
        let args = ForwardArgs {
            x: matrix(&*self.x),
            residual: self.residual.as_deref().map(matrix),
            w: self.weight(),
            h: self.h.as_deref().map(matrix),
            y: matrix(&*self.y),
            rstd: VectorView::f32(self.rstd.address(), rows),
        };
        // SAFETY: every address is that of a live buffer of this device that holds the view;
        // whoever enqueues waits before the buffers go, and nobody else uses them.
        unsafe { self.device.backend().forward(&self.op, &args) }
    }

    fn backward(&self, rows: u64) -> cake_rmsnorm::Result<()> {
        let matrix = |buffer: &dyn Buffer| self.matrix(buffer, rows);
        let args = BackwardArgs {
            dy: matrix(&*self.dy),
            x: matrix(self.h.as_deref().unwrap_or(&*self.x)),
            dh: self.dh.as_deref().map(matrix),
            w: self.weight(),
            rstd: VectorView::f32(self.rstd.address(), rows),
            dx: matrix(&*self.dx),
            dw: VectorView::f32(self.dw.address(), self.op.hidden()),
            workspace: Workspace {
                address: self.workspace.address(),
                bytes: self.workspace_bytes,
            },
        };
        // SAFETY: as in `forward`.
        unsafe { self.device.backend().backward(&self.op, &args) }
    }

    fn matrix(&self, buffer: &dyn Buffer, rows: u64) -> RowsView {
        RowsView::packed(buffer.address(), rows, self.op.hidden())
    }

    fn weight(&self) -> VectorView {
        VectorView {
            address: self.w.address(),
            dtype: self.op.weight(),
            len: self.op.hidden(),
        }
    }
}

fn inputs(op: &RmsNorm, rows: u64, residual: bool) -> Result<Inputs> {
    let rows = rows.min(MADE_ROWS);
    let spec = Spec {
        rows: rows as usize,
        hidden: op.hidden() as usize,
        weight: op.weight(),
        residual,
        seed: 0,
    };
    spec.generate().map_err(|_| CliError::Memory {
        purpose: "inputs",
        bytes: rows * op.hidden() * 2,
    })
}
