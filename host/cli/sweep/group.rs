//! One operator and form at many T: rows of one tensor, whose golden rows are worked out once.

use crate::cli::device::{Buffer, Device};
use crate::cli::error::{CliError, Result};
use crate::cli::operands::Operands;
use crate::cli::{dtype_name, weight_type};
use cake_rmsnorm::RmsNorm;
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::golden::{self, Forward};
use cake_rmsnorm::inputs::{Inputs, Spec};
use cake_rmsnorm::plan::{Choice, DeviceProperties, Launch, Routes};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What outputs and workspace hold before each run, and what lies behind the outputs after it.
const POISON: u8 = 0xff;
/// Rows behind the last.
const GUARD_ROWS: u64 = 64;
/// Failures that are told.
const TOLD: usize = 12;

/// What was found so far.
#[derive(Default)]
pub struct Found {
    /// Runs whose every bit was compared.
    pub runs: u64,
    /// Kernels that ran.
    pub kernels: BTreeSet<&'static str>,
    /// Runs with other bits.
    pub differing: u64,
    /// The first of them.
    pub failures: Vec<String>,
}

/// An operator and a form, with inputs, and what they must give.
pub struct Group<'a> {
    device: &'a dyn Device,
    op: RmsNorm,
    inputs: Inputs,
    golden: Forward,
    operands: Operands,
    /// Golden outputs on the device: y, h, dx share two of them.
    expected: Expected,
    workspace_bytes: usize,
}

struct Expected {
    first: Box<dyn Buffer>,
    second: Box<dyn Buffer>,
    rstd: Box<dyn Buffer>,
    dw: Box<dyn Buffer>,
}

impl<'a> Group<'a> {
    /// For T up to `rows`.
    pub fn new(device: &'a dyn Device, op: RmsNorm, residual: bool, rows: u64) -> Result<Self> {
        let hidden = op.hidden();
        let bytes = rows.saturating_mul(hidden * 2);
        let none = || CliError::Memory {
            purpose: "a tensor of a sweep",
            bytes,
        };
        let spec = Spec {
            rows: usize::try_from(rows).map_err(|_| none())?,
            hidden: hidden as usize,
            weight: weight_type(&op),
            residual,
            seed: rows,
        };
        let inputs = spec.generate().map_err(|_| none())?;
        let w = inputs.w.as_golden();
        let golden = golden::forward_slices(&op, &inputs.x, inputs.residual.as_deref(), w)?;
        // A node for every leaf, of which there are at most 4096 whatever T is.
        let workspace_bytes = 4096.min(rows) * 8 * hidden;
        let room = rows + GUARD_ROWS;
        let mut operands = Operands::new(device, op, room, residual, workspace_bytes)?;
        operands.x.write(bytemuck::cast_slice(&inputs.x))?;
        operands.dy.write(bytemuck::cast_slice(&inputs.dy))?;
        operands.w.write(inputs.w.as_bytes())?;
        if let (Some(buffer), Some(values)) = (&mut operands.residual, &inputs.residual) {
            buffer.write(bytemuck::cast_slice(values))?;
        }
        if let (Some(buffer), Some(values)) = (&mut operands.dh, &inputs.dh) {
            buffer.write(bytemuck::cast_slice(values))?;
        }
        let matrix = |name| device.alloc(name, (room * hidden * 2) as usize);
        let expected = Expected {
            first: matrix("expected y or dx")?,
            second: matrix("expected h")?,
            rstd: device.alloc("expected rstd", (room * 4) as usize)?,
            dw: device.alloc("expected dw", (hidden * 4) as usize)?,
        };
        Ok(Self {
            device,
            op,
            inputs,
            golden,
            operands,
            expected,
            workspace_bytes: workspace_bytes as usize,
        })
    }

    /// Runs every program on the first `rows` rows, planned for `sm_count` multiprocessors.
    pub fn compare(&mut self, rows: u64, sm_count: u32, found: &mut Found) -> Result<()> {
        let properties = self.device.backend().properties().with_sm_count(sm_count);
        self.forwards(rows, &properties, found)?;
        self.backwards(rows, &properties, found)
    }

    fn residual(&self) -> bool {
        self.inputs.residual.is_some()
    }

    fn forwards(
        &mut self,
        rows: u64,
        properties: &DeviceProperties,
        found: &mut Found,
    ) -> Result<()> {
        let residual = self.residual();
        let elements = (rows * self.op.hidden()) as usize;
        expect(&mut *self.expected.first, &self.golden.y[..elements])?;
        expect(&mut *self.expected.rstd, &self.golden.rstd[..rows as usize])?;
        if let Some(h) = &self.golden.h {
            expect(&mut *self.expected.second, &h[..elements])?;
        }
        for choice in self.op.forward_candidates(rows, residual, properties) {
            let plan = self
                .op
                .forward_plan_of(&choice, rows, residual, properties)?;
            found.kernels.extend(plan.launch.iter().map(name));
            let routes = Arc::new(Routes::only(Some(choice), None));
            let device = self.device;
            let backend = backend_by(device, routes, properties.sm_count)?;
            self.operands.y.poison(POISON)?;
            self.operands.rstd.poison(POISON)?;
            if let Some(h) = &mut self.operands.h {
                h.poison(POISON)?;
            }
            self.operands.forward(&*backend, rows)?;
            device.synchronize()?;
            let matrix = self.matrix_bytes(rows);
            let y = device.equal(&*self.operands.y, &*self.expected.first, matrix)?;
            let bytes = self.vector_bytes(rows);
            let rstd = device.equal(&*self.operands.rstd, &*self.expected.rstd, bytes)?;
            let h = match &self.operands.h {
                Some(h) => device.equal(&**h, &*self.expected.second, matrix)?,
                None => true,
            };
            let outputs = [("y", y), ("rstd", rstd), ("h", h)];
            self.judge(&choice, rows, properties, &outputs, found);
        }
        Ok(())
    }

    fn backwards(
        &mut self,
        rows: u64,
        properties: &DeviceProperties,
        found: &mut Found,
    ) -> Result<()> {
        let residual = self.residual();
        let elements = (rows * self.op.hidden()) as usize;
        let rstd = &self.golden.rstd[..rows as usize];
        let x = &self.golden.h.as_ref().unwrap_or(&self.inputs.x)[..elements];
        let dh = self.inputs.dh.as_ref().map(|dh| &dh[..elements]);
        let dy = &self.inputs.dy[..elements];
        let w = self.inputs.w.as_golden();
        let golden = golden::backward_slices(&self.op, dy, x, dh, w, rstd)?;
        expect(&mut *self.expected.first, &golden.dx)?;
        expect(&mut *self.expected.dw, &golden.dw)?;
        // Whatever the last forward did.
        self.operands.rstd.write(bytemuck::cast_slice(rstd))?;
        if let Some(h) = &mut self.operands.h {
            h.write(bytemuck::cast_slice(x))?;
        }
        for choice in self.op.backward_candidates(rows, residual, properties) {
            let plan = self
                .op
                .backward_plan_of(&choice, rows, residual, properties)?;
            let launches = [plan.main, plan.reduce];
            found.kernels.extend(launches.iter().flatten().map(name));
            if plan.workspace_bytes > self.workspace_bytes as u64 {
                return Err(CliError::Memory {
                    purpose: "workspace of a sweep",
                    bytes: plan.workspace_bytes,
                });
            }
            let routes = Arc::new(Routes::only(None, Some(choice)));
            let device = self.device;
            let backend = backend_by(device, routes, properties.sm_count)?;
            self.operands.dx.poison(POISON)?;
            self.operands.dw.poison(POISON)?;
            self.operands.workspace.poison(POISON)?;
            self.operands.backward(&*backend, rows)?;
            device.synchronize()?;
            let matrix = self.matrix_bytes(rows);
            let dx = device.equal(&*self.operands.dx, &*self.expected.first, matrix)?;
            let bytes = 4 * self.op.hidden() as usize;
            let dw = device.equal(&*self.operands.dw, &*self.expected.dw, bytes)?;
            self.judge(&choice, rows, properties, &[("dx", dx), ("dw", dw)], found);
        }
        Ok(())
    }

    /// Bytes of `rows` rows and what lies behind them.
    fn matrix_bytes(&self, rows: u64) -> usize {
        (rows * self.op.hidden() * 2) as usize + self.device.guard_bytes()
    }

    /// Bytes of an FP32 value a row and what lies behind, in units that are quick to compare.
    fn vector_bytes(&self, rows: u64) -> usize {
        match self.device.guard_bytes() {
            0 => rows as usize * 4,
            guard => (rows as usize * 4 + guard - 16).next_multiple_of(16),
        }
    }

    fn judge(
        &self,
        choice: &Choice,
        rows: u64,
        properties: &DeviceProperties,
        outputs: &[(&str, bool)],
        found: &mut Found,
    ) {
        found.runs += 1;
        let wrong: Vec<&str> = outputs
            .iter()
            .filter(|(_, equal)| !equal)
            .map(|(name, _)| *name)
            .collect();
        if wrong.is_empty() {
            return;
        }
        found.differing += 1;
        if found.failures.len() < TOLD {
            found.failures.push(format!(
                "T {rows}, weight {}{}, {} multiprocessors: {} of {choice:?} differ",
                dtype_name(weight_type(&self.op)),
                if self.residual() { ", residual" } else { "" },
                properties.sm_count,
                wrong.join(", "),
            ));
        }
    }
}

fn name(launch: &Launch) -> &'static str {
    launch.kernel.name
}

fn backend_by<'a>(
    device: &'a dyn Device,
    routes: Arc<Routes>,
    sm_count: u32,
) -> Result<Box<dyn Backend + 'a>> {
    device
        .backend_by(routes, sm_count)
        .ok_or_else(|| CliError::NoDevice {
            device: device.kind(),
            reason: "it has one program".to_owned(),
        })
}

/// Makes a buffer hold golden values, and poison behind them.
fn expect<T: bytemuck::Pod>(buffer: &mut dyn Buffer, golden: &[T]) -> Result<()> {
    buffer.poison(POISON)?;
    buffer.write(bytemuck::cast_slice::<T, u8>(golden))
}
