//! A training step with activation checkpointing.

use crate::backend::Backend;
use crate::error::Result;
use crate::op::{BackwardArgs, ForwardArgs, RmsNorm};
use crate::plan::Views;

/// The calls of one norm in a step that keeps no activations: a forward, the same forward again
/// when the backward pass arrives, the backward.
///
/// On a GPU, `backend::cuda::Graph::of_step` makes them one CUDA graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The forward pass.
    pub forward: ForwardArgs,
    /// The forward again: it may write where the first did, or elsewhere.
    pub recomputed: ForwardArgs,
    /// The backward of what was recomputed.
    pub backward: BackwardArgs,
}

impl Step {
    /// Enqueues the three calls.
    ///
    /// # Errors
    /// - As the calls. Those before the one that is refused have been enqueued.
    ///
    /// # Safety
    /// - As [`Backend::forward`] and [`Backend::backward`], for each call.
    pub unsafe fn enqueue<B: Backend + ?Sized>(&self, op: &RmsNorm, backend: &B) -> Result<()> {
        // SAFETY: the caller's obligations.
        unsafe {
            backend.forward(op, &self.forward)?;
            backend.forward(op, &self.recomputed)?;
            backend.backward(op, &self.backward)
        }
    }

    /// Prepares `backend` for the three calls, however their arguments lie.
    ///
    /// # Errors
    /// - As [`Backend::prepare`].
    pub fn prepare<B: Backend + ?Sized>(&self, op: &RmsNorm, backend: &B) -> Result<()> {
        let forms = [
            self.forward.residual.is_some(),
            self.recomputed.residual.is_some(),
            self.backward.dh.is_some(),
        ];
        for residual in [false, true] {
            if forms.contains(&residual) {
                backend.prepare(op, residual, Views::Any)?;
            }
        }
        Ok(())
    }
}
