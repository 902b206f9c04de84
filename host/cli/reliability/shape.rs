//! Shapes of calls in every form, and steps of them over inputs that are taken in turns.

use crate::cli::bench_host::expected::{self, Golden, POISON, SETS, step};
use crate::cli::check::{execute, gated};
use crate::cli::device::Device;
use crate::cli::error::{CliError, Result};
use cake_rmsnorm::backend::Backend;
#[cfg(feature = "cuda")]
use cake_rmsnorm::backend::cuda::{Cuda, Graph};
use cake_rmsnorm::gated::{
    GateOrder, GatedBackward, GatedForward, GatedRmsNorm, backward_slices, forward_slices,
};
use cake_rmsnorm::inputs::{Inputs, Spec};
use cake_rmsnorm::{Dtype, RmsNorm};
use half::bf16;
use std::fmt;

/// A form with its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub hidden: u64,
    /// T; of the gated form, tokens of one head.
    pub rows: u64,
    pub form: Form,
}

/// A form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Plain,
    Residual,
    /// With rows in so many groups.
    Gated {
        order: GateOrder,
        groups: u64,
        weight: Dtype,
    },
}

/// A shape of the plain form.
pub const fn plain(hidden: u64, rows: u64) -> Shape {
    let form = Form::Plain;
    Shape { hidden, rows, form }
}

/// A shape of the residual form.
pub const fn residual(hidden: u64, rows: u64) -> Shape {
    let form = Form::Residual;
    Shape { hidden, rows, form }
}

/// A shape of the gated form, norm before gate, with an FP32 weight.
pub const fn norm_first(hidden: u64, groups: u64, rows: u64) -> Shape {
    let form = Form::Gated {
        order: GateOrder::NormFirst,
        groups,
        weight: Dtype::F32,
    };
    Shape { hidden, rows, form }
}

/// A shape of the gated form, gate before norm, with a BF16 weight.
pub const fn gate_first(hidden: u64, groups: u64, rows: u64) -> Shape {
    let form = Form::Gated {
        order: GateOrder::GateFirst,
        groups,
        weight: Dtype::Bf16,
    };
    Shape { hidden, rows, form }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "H {}, T {}, ", self.hidden, self.rows)?;
        match self.form {
            Form::Plain => f.write_str("plain"),
            Form::Residual => f.write_str("residual"),
            Form::Gated { order, groups, .. } => {
                let order = match order {
                    GateOrder::NormFirst => "norm before gate",
                    GateOrder::GateFirst => "gate before norm",
                };
                write!(f, "{order} in {groups} group(s)")
            }
        }
    }
}

/// Inputs of the gated form, and its right outputs.
pub struct GatedSet {
    pub inputs: Inputs,
    pub z: Vec<bf16>,
    pub forward: GatedForward,
    pub backward: GatedBackward,
}

impl GatedSet {
    /// Of inputs that a seed names.
    pub fn new(op: &GatedRmsNorm, rows: u64, seed: u64) -> Result<Self> {
        let spec = Spec {
            rows: rows as usize,
            hidden: op.hidden() as usize,
            weight: op.weight(),
            residual: false,
            seed,
        };
        let none = |_| CliError::Memory {
            purpose: "inputs",
            bytes: 10 * rows * op.hidden(),
        };
        let inputs = spec.generate().map_err(none)?;
        let z = spec.generate_gate().map_err(none)?;
        let w = inputs.w.as_golden();
        let forward = forward_slices(op, &inputs.x, &z, w)?;
        let backward = backward_slices(op, &inputs.dy, &inputs.x, &z, w, Some(&forward.rstd))?;
        Ok(Self {
            inputs,
            z,
            forward,
            backward,
        })
    }

    /// Whether the outputs of the last step have these bits, and nothing was written behind them.
    fn is(&self, execution: &mut gated::Execution<'_>) -> Result<bool> {
        let forward = execution.forward_outputs()?;
        let backward = execution.backward_outputs()?;
        let bits = bytemuck::cast_slice::<bf16, u8>;
        let words = bytemuck::cast_slice::<f32, u8>;
        Ok(bits(&forward.y) == bits(&self.forward.y)
            && words(&forward.rstd) == words(&self.forward.rstd)
            && bits(&backward.dx) == bits(&self.backward.dx)
            && bits(&backward.dz) == bits(&self.backward.dz)
            && words(&backward.dw) == words(&self.backward.dw)
            && execution.overrun().is_empty())
    }
}

/// An operator, inputs of it, and their right outputs.
pub enum Sets {
    Step {
        op: RmsNorm,
        sets: Vec<(Inputs, Golden)>,
    },
    Gated {
        op: GatedRmsNorm,
        rows: u64,
        sets: Vec<GatedSet>,
    },
}

impl Sets {
    /// Of a shape, from a seed on.
    pub fn new(shape: Shape, seed: u64) -> Result<Self> {
        let Shape { hidden, rows, form } = shape;
        match form {
            Form::Plain | Form::Residual => {
                let op = RmsNorm::new(hidden, Dtype::F32, 1e-6)?;
                let sets = expected::sets(&op, rows, form == Form::Residual, seed)?;
                Ok(Sets::Step { op, sets })
            }
            Form::Gated {
                order,
                groups,
                weight,
            } => {
                let op = GatedRmsNorm::with_groups(order, hidden, groups, weight, 1e-6)?;
                let sets = (seed..seed + SETS).map(|seed| GatedSet::new(&op, rows, seed));
                let sets = sets.collect::<Result<_>>()?;
                Ok(Sets::Gated { op, rows, sets })
            }
        }
    }
}

/// Steps in the memory of a device.
pub enum Steps<'a> {
    Step {
        op: RmsNorm,
        sets: &'a [(Inputs, Golden)],
        execution: Box<execute::Execution<'a>>,
    },
    Gated {
        op: GatedRmsNorm,
        sets: &'a [GatedSet],
        execution: Box<gated::Execution<'a>>,
    },
}

impl<'a> Steps<'a> {
    /// Prepares the operator and allocates.
    pub fn new(device: &'a dyn Device, sets: &'a Sets) -> Result<Self> {
        Ok(match sets {
            Sets::Step { op, sets } => Steps::Step {
                op: *op,
                sets,
                execution: Box::new(execute::Execution::new(device, *op, &sets[0].0)?),
            },
            Sets::Gated { op, rows, sets } => {
                let GatedSet { inputs, z, .. } = &sets[0];
                let leading = [*rows, 1];
                let execution = gated::Execution::new(device, *op, inputs, z, leading)?;
                Steps::Gated {
                    op: *op,
                    sets,
                    execution: Box::new(execution),
                }
            }
        })
    }

    /// Replaces the inputs by a round's, and makes outputs and workspace NaN, while nothing runs.
    pub fn begin(&mut self, round: u64) -> Result<()> {
        let set = (round % SETS) as usize;
        match self {
            Steps::Step {
                sets, execution, ..
            } => {
                execution.replace_inputs(&sets[set].0)?;
                execution.poison(POISON)
            }
            Steps::Gated {
                sets, execution, ..
            } => {
                execution.replace_inputs(&sets[set].inputs, &sets[set].z)?;
                execution.poison(POISON)
            }
        }
    }

    /// Enqueues a step: a forward, the same again, and a backward.
    ///
    /// # Safety
    /// - `backend` reaches the device's memory, and nobody else uses the buffers of `self`, which
    ///   live until the work has completed.
    pub unsafe fn enqueue(&self, backend: &dyn Backend) -> cake_rmsnorm::Result<()> {
        match self {
            // SAFETY: the caller's obligations; the views lie in the execution's buffers.
            Steps::Step { op, execution, .. } => unsafe { step(execution).enqueue(op, backend) },
            Steps::Gated { op, execution, .. } => {
                let forward = execution.forward_args();
                // SAFETY: as above.
                unsafe {
                    backend.gated_forward(op, &forward)?;
                    backend.gated_forward(op, &forward)?;
                    backend.gated_backward(op, &execution.backward_args(true))
                }
            }
        }
    }

    /// A step as a CUDA graph; nothing runs now.
    #[cfg(feature = "cuda")]
    pub fn capture(&self, cuda: &Cuda) -> Result<Graph> {
        Ok(match self {
            Steps::Step { op, execution, .. } => Graph::of_step(cuda, op, &step(execution))?,
            // SAFETY: nothing runs now; whoever launches the graph vouches for the memory.
            Steps::Gated { .. } => Graph::capture(cuda, || unsafe { self.enqueue(cuda) })?,
        })
    }

    /// Whether the last step wrote the right outputs of a round's inputs; nothing runs now.
    pub fn is_golden(&mut self, round: u64) -> Result<bool> {
        let set = (round % SETS) as usize;
        match self {
            Steps::Step {
                sets, execution, ..
            } => sets[set].1.is(execution),
            Steps::Gated {
                sets, execution, ..
            } => sets[set].is(execution),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::device::host::HostDevice;

    #[test]
    fn steps_of_every_form_have_the_golden_bits_and_no_others() {
        let shapes = [
            plain(64, 33),
            residual(72, 9),
            norm_first(128, 2, 33),
            gate_first(64, 1, 9),
        ];
        for shape in shapes {
            let sets = Sets::new(shape, 3).expect("little memory");
            let mut steps = Steps::new(&HostDevice, &sets).expect("memory");
            for round in 0..SETS {
                steps.begin(round).expect("host memory");
                assert!(!steps.is_golden(round).expect("memory"), "{shape}: poison");
                // SAFETY: the buffers live, and nobody else uses them.
                unsafe { steps.enqueue(HostDevice.backend()) }.expect("a step");
                for other in 0..SETS {
                    let is = steps.is_golden(other).expect("host memory");
                    assert_eq!(
                        is,
                        other == round,
                        "{shape}: inputs {round}, outputs {other}"
                    );
                }
            }
        }
    }
}
