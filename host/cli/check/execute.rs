//! A forward and backwards on a device, between inputs and outputs in host memory.

use crate::cli::device::{Buffer, Device};
use crate::cli::error::{CliError, Result};
use bytemuck::Pod;
use cake_rmsnorm::golden::{Backward, Forward};
use cake_rmsnorm::inputs::Inputs;
use cake_rmsnorm::plan::Views;
use cake_rmsnorm::{BackwardArgs, Element, ForwardArgs, RmsNorm, RowsView, VectorView, Workspace};
use half::bf16;
use std::marker::PhantomData;

/// An operator with its arguments in the memory of a device.
pub struct Execution<'a, E = bf16> {
    elements: PhantomData<E>,
    device: &'a dyn Device,
    op: RmsNorm,
    rows: u64,
    x: Box<dyn Buffer>,
    residual: Option<Box<dyn Buffer>>,
    dy: Box<dyn Buffer>,
    dh: Option<Box<dyn Buffer>>,
    w: Box<dyn Buffer>,
    h: Option<Written>,
    y: Written,
    rstd: Written,
    dx: Written,
    dw: Written,
    workspace: Written,
}

impl<'a, E: Element> Execution<'a, E> {
    /// Prepares the operator, copies the inputs to the device and allocates the outputs.
    pub fn new(device: &'a dyn Device, op: RmsNorm, inputs: &Inputs<E>) -> Result<Self> {
        for residual in [inputs.residual.is_some(), inputs.dh.is_some()] {
            device.backend().prepare(&op, residual, Views::Any)?;
        }
        let rows = inputs.rows as u64;
        let properties = device.backend().properties();
        let routes = device.backend().routes();
        let bytes = op.workspace_bytes_by(routes, rows, inputs.dh.is_some(), properties)?;
        let workspace = usize::try_from(bytes).map_err(|_| CliError::Memory {
            purpose: "workspace",
            bytes,
        })?;

        let upload = |name, bytes: &[u8]| -> Result<Box<dyn Buffer>> {
            let mut buffer = device.alloc(name, bytes.len())?;
            buffer.write(bytes)?;
            Ok(buffer)
        };
        let matrix = |name, values: &[E]| upload(name, bytemuck::cast_slice(values));
        let optional = |name, values: &Option<Vec<E>>| {
            values
                .as_deref()
                .map(|values| matrix(name, values))
                .transpose()
        };
        let written = |name, bytes| Written::new(device, name, bytes);
        let matrix_bytes = inputs.x.len() * size_of::<E>();
        Ok(Self {
            elements: PhantomData,
            device,
            op,
            rows,
            x: matrix("x", &inputs.x)?,
            residual: optional("residual", &inputs.residual)?,
            dy: matrix("dy", &inputs.dy)?,
            dh: optional("dh", &inputs.dh)?,
            w: upload("w", inputs.w.as_bytes())?,
            h: inputs
                .residual
                .as_ref()
                .map(|_| written("h", matrix_bytes))
                .transpose()?,
            y: written("y", matrix_bytes)?,
            rstd: written("rstd", inputs.rows * size_of::<f32>())?,
            dx: written("dx", matrix_bytes)?,
            dw: written("dw", inputs.hidden * size_of::<f32>())?,
            workspace: written("workspace", workspace)?,
        })
    }

    /// Replaces the inputs by others of the same shapes, in the same memory, while nothing runs.
    pub fn replace_inputs(&mut self, inputs: &Inputs<E>) -> Result<()> {
        self.x.write(bytemuck::cast_slice(&inputs.x))?;
        self.dy.write(bytemuck::cast_slice(&inputs.dy))?;
        self.w.write(inputs.w.as_bytes())?;
        let optional = [
            (&mut self.residual, &inputs.residual),
            (&mut self.dh, &inputs.dh),
        ];
        for (buffer, values) in optional {
            if let (Some(buffer), Some(values)) = (buffer, values) {
                buffer.write(bytemuck::cast_slice(values))?;
            }
        }
        Ok(())
    }

    /// Makes every byte of outputs and workspace `poison`, while nothing runs.
    pub fn poison(&mut self, poison: u8) -> Result<()> {
        let outputs = [&mut self.y, &mut self.rstd, &mut self.dx, &mut self.dw];
        let outputs = outputs.into_iter().chain([&mut self.workspace]);
        outputs
            .chain(self.h.as_mut())
            .try_for_each(|output| output.poison(poison))
    }

    /// Makes the workspace hold `pattern` over and over, while nothing runs.
    pub fn fill_workspace(&mut self, pattern: &[u8]) -> Result<()> {
        let bytes = pattern.iter().copied().cycle().take(self.workspace.bytes);
        self.workspace.buffer.write(&bytes.collect::<Vec<u8>>())
    }

    /// Runs the forward over outputs that hold `poison` in every byte.
    pub fn forward(&mut self, poison: u8) -> Result<Forward<E>> {
        let outputs = [Some(&mut self.y), Some(&mut self.rstd), self.h.as_mut()];
        for output in outputs.into_iter().flatten() {
            output.poison(poison)?;
        }
        let args = self.forward_args();
        // SAFETY: every address is that of a live buffer of this device that holds the view; the
        // buffers are borrowed for writing until the work has completed.
        unsafe { self.device.backend().forward(&self.op, &args)? };
        self.device.synchronize()?;
        self.forward_outputs()
    }

    /// Runs the backward after [`Execution::forward`], over outputs and a workspace that hold
    /// `poison` in every byte.
    pub fn backward(&mut self, poison: u8) -> Result<Backward<E>> {
        for output in [&mut self.dx, &mut self.dw, &mut self.workspace] {
            output.poison(poison)?;
        }
        let args = self.backward_args();
        // SAFETY: as in `forward`.
        unsafe { self.device.backend().backward(&self.op, &args)? };
        self.device.synchronize()?;
        self.backward_outputs()
    }

    /// What the last forward wrote, all of whose work has completed.
    pub fn forward_outputs(&mut self) -> Result<Forward<E>> {
        Ok(Forward {
            h: self.h.as_mut().map(Written::download).transpose()?,
            y: self.y.download()?,
            rstd: self.rstd.download()?,
        })
    }

    /// What the last backward wrote, all of whose work has completed.
    pub fn backward_outputs(&mut self) -> Result<Backward<E>> {
        self.workspace.look_behind()?;
        Ok(Backward {
            dx: self.dx.download()?,
            dw: self.dw.download()?,
        })
    }

    /// The forward's arguments.
    pub fn forward_args(&self) -> ForwardArgs {
        ForwardArgs {
            x: self.matrix(&*self.x),
            residual: self
                .residual
                .as_ref()
                .map(|residual| self.matrix(&**residual)),
            w: self.weight(),
            h: self.h.as_ref().map(|h| self.matrix(&*h.buffer)),
            y: self.matrix(&*self.y.buffer),
            rstd: Some(VectorView::f32(self.rstd.buffer.address(), self.rows)),
        }
    }

    /// The backward's arguments.
    pub fn backward_args(&self) -> BackwardArgs {
        let x = self.h.as_ref().map_or(&*self.x, |h| &*h.buffer);
        BackwardArgs {
            dy: self.matrix(&*self.dy),
            x: self.matrix(x),
            dh: self.dh.as_ref().map(|dh| self.matrix(&**dh)),
            w: self.weight(),
            rstd: Some(VectorView::f32(self.rstd.buffer.address(), self.rows)),
            dx: Some(self.matrix(&*self.dx.buffer)),
            dw: Some(VectorView::f32(self.dw.buffer.address(), self.op.hidden()).into()),
            workspace: Workspace {
                address: self.workspace.buffer.address(),
                bytes: self.workspace.bytes as u64,
            },
        }
    }

    /// The outputs behind whose end something was written in a run so far.
    pub fn overrun(&self) -> Vec<&'static str> {
        let outputs = [&self.y, &self.rstd, &self.dx, &self.dw, &self.workspace];
        let outputs = outputs.into_iter().chain(&self.h);
        outputs
            .filter(|output| output.overrun)
            .map(|output| output.name)
            .collect()
    }

    /// Does to y what a kernel that runs over its end would do.
    #[cfg(test)]
    pub fn write_behind_y(&mut self) {
        let behind = vec![0u8; self.y.bytes + 1];
        self.y.buffer.write(&behind).expect("host memory");
        self.y.download::<E>().expect("host memory");
    }

    fn matrix(&self, buffer: &dyn Buffer) -> RowsView {
        RowsView::packed(buffer.address(), self.rows, self.op.hidden()).with_dtype(E::DTYPE)
    }

    fn weight(&self) -> Option<VectorView> {
        self.op.weight().map(|dtype| VectorView {
            address: self.w.address(),
            dtype,
            len: self.op.hidden(),
        })
    }
}

/// Memory that kernels write, with a guard behind it that they must not write.
pub(super) struct Written {
    pub(super) name: &'static str,
    pub(super) buffer: Box<dyn Buffer>,
    bytes: usize,
    guard: usize,
    poison: u8,
    /// Whether the guard was written.
    pub(super) overrun: bool,
}

impl Written {
    pub(super) fn new(device: &dyn Device, name: &'static str, bytes: usize) -> Result<Self> {
        let guard = device.guard_bytes();
        let buffer = device.alloc(name, bytes + guard)?;
        Ok(Written {
            name,
            buffer,
            bytes,
            guard,
            poison: 0,
            overrun: false,
        })
    }

    pub(super) fn poison(&mut self, poison: u8) -> Result<()> {
        self.poison = poison;
        self.buffer.poison(poison)
    }

    /// The contents; looks at the guard too. Both are whole elements.
    pub(super) fn download<T: Pod>(&mut self) -> Result<Vec<T>> {
        let total = self.bytes + self.guard;
        let none = |_| CliError::Memory {
            purpose: self.name,
            bytes: total as u64,
        };
        let mut values = Vec::new();
        values
            .try_reserve_exact(total / size_of::<T>())
            .map_err(none)?;
        values.resize(total / size_of::<T>(), T::zeroed());
        self.buffer.read(bytemuck::cast_slice_mut(&mut values))?;
        let guard: &[u8] = bytemuck::cast_slice(&values[self.bytes / size_of::<T>()..]);
        self.overrun |= guard.iter().any(|&byte| byte != self.poison);
        values.truncate(self.bytes / size_of::<T>());
        Ok(values)
    }

    /// Looks at the guard alone.
    pub(super) fn look_behind(&mut self) -> Result<()> {
        if self.guard > 0 {
            self.download::<u8>().map(drop)
        } else {
            Ok(())
        }
    }
}
