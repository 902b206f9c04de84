//! Inputs, and the outputs that a checkpointed step must give for them.

use crate::cli::check::execute::Execution;
use crate::cli::error::{CliError, Result};
use cake_rmsnorm::golden::{Backward, Forward, backward_slices, forward_slices};
use cake_rmsnorm::inputs::{Inputs, Spec};
use cake_rmsnorm::{Dtype, RmsNorm, Step};
use half::bf16;

/// Different inputs that are taken in turns.
pub const SETS: u64 = 4;
/// What outputs hold before: NaN, as BF16 and as FP32.
pub const POISON: u8 = 0xff;

/// Inputs of a shape.
pub fn inputs(hidden: u64, rows: u64, residual: bool, seed: u64) -> Result<Inputs> {
    let spec = Spec {
        rows: rows as usize,
        hidden: hidden as usize,
        weight: Dtype::F32,
        residual,
        seed,
    };
    spec.generate().map_err(|_| CliError::Memory {
        purpose: "inputs",
        bytes: 10 * rows * hidden,
    })
}

/// The right outputs of inputs.
pub struct Golden {
    forward: Forward,
    backward: Backward,
}

impl Golden {
    /// Of the golden implementation.
    pub fn of(op: &RmsNorm, inputs: &Inputs) -> Result<Self> {
        let w = inputs.w.as_golden();
        let forward = forward_slices(op, &inputs.x, inputs.residual.as_deref(), w)?;
        let x = forward.h.as_deref().unwrap_or(&inputs.x);
        let dh = inputs.dh.as_deref();
        let backward = backward_slices(op, &inputs.dy, x, dh, w, &forward.rstd)?;
        Ok(Self { forward, backward })
    }

    /// Whether the outputs of the last step have these bits, and nothing was written behind them.
    pub fn is(&self, execution: &mut Execution<'_>) -> Result<bool> {
        let forward = execution.forward_outputs()?;
        let backward = execution.backward_outputs()?;
        let bits = |values: &[bf16]| bytemuck::cast_slice::<_, u8>(values).to_vec();
        let (golden_forward, golden_backward) = (&self.forward, &self.backward);
        Ok(
            forward.h.as_deref().map(bits) == golden_forward.h.as_deref().map(bits)
                && bits(&forward.y) == bits(&golden_forward.y)
                && bytemuck::cast_slice::<_, u8>(&forward.rstd)
                    == bytemuck::cast_slice::<_, u8>(&golden_forward.rstd)
                && bits(&backward.dx) == bits(&golden_backward.dx)
                && bytemuck::cast_slice::<_, u8>(&backward.dw)
                    == bytemuck::cast_slice::<_, u8>(&golden_backward.dw)
                && execution.overrun().is_empty(),
        )
    }
}

/// Inputs of a shape with their right outputs.
pub fn sets(op: &RmsNorm, rows: u64, residual: bool, seed: u64) -> Result<Vec<(Inputs, Golden)>> {
    (seed..seed + SETS)
        .map(|seed| {
            let inputs = inputs(op.hidden(), rows, residual, seed)?;
            let golden = Golden::of(op, &inputs)?;
            Ok((inputs, golden))
        })
        .collect()
}

/// The checkpointed step of an execution.
pub fn step(execution: &Execution<'_>) -> Step {
    Step {
        forward: execution.forward_args(),
        recomputed: execution.forward_args(),
        backward: execution.backward_args(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::device::Device;
    use crate::cli::device::host::HostDevice;

    #[test]
    fn a_step_over_replaced_inputs_has_the_golden_bits_and_no_others() {
        for residual in [false, true] {
            let op = RmsNorm::new(64, Dtype::F32, 1e-6).expect("a supported width");
            let sets = sets(&op, 33, residual, 0).expect("little memory");
            let mut execution = Execution::new(&HostDevice, op, &sets[0].0).expect("memory");
            for (i, (inputs, golden)) in sets.iter().enumerate() {
                execution.replace_inputs(inputs).expect("host memory");
                execution.poison(POISON).expect("host memory");
                assert!(!golden.is(&mut execution).expect("host memory"), "poison");
                let step = step(&execution);
                // SAFETY: the buffers live, and nobody else uses them.
                unsafe { step.enqueue(&op, HostDevice.backend()) }.expect("a step");
                for (j, (_, other)) in sets.iter().enumerate() {
                    let is = other.is(&mut execution).expect("host memory");
                    assert_eq!(is, i == j, "inputs {i}, outputs {j}");
                }
            }
            execution.write_behind_y();
            let step = step(&execution);
            // SAFETY: as above.
            unsafe { step.enqueue(&op, HostDevice.backend()) }.expect("a step");
            let (_, last) = &sets[sets.len() - 1];
            assert!(!last.is(&mut execution).expect("host memory"), "overrun");
        }
    }
}
