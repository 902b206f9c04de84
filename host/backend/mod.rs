//! Backends run what an operator asks for.

mod bind;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "cudarc")]
pub mod cudarc;
#[cfg(any(feature = "cuda", feature = "cudarc"))]
mod driver;
mod gated;
mod last;
mod launcher;
pub mod null;
pub mod sim;

pub use launcher::{Bound, Launcher};

use crate::error::Result;
use crate::gated::{GatedBackwardArgs, GatedForwardArgs, GatedRmsNorm};
use crate::op::{BackwardArgs, ForwardArgs, RmsNorm};
use crate::plan::{DeviceProperties, Routes, Views};

/// Something that runs the operators: a GPU, the simulator, or the CPU.
pub trait Backend {
    /// The device that plans are made for.
    fn properties(&self) -> &DeviceProperties;

    /// The routes that plans are made by.
    fn routes(&self) -> &Routes {
        Routes::built_in()
    }

    /// Makes ready for every later call of `op` in this form, whatever T is, with arguments that
    /// lie as `views` says. A GPU loads the kernels here, and refuses calls that were not prepared
    /// ([`crate::Error::NotPrepared`]); elsewhere nothing needs to be done. What is ready stays so.
    ///
    /// # Errors
    /// - The device cannot run the kernels, or its driver cannot load them.
    fn prepare(&self, op: &RmsNorm, residual: bool, views: Views) -> Result<()>;

    /// Enqueues a forward.
    ///
    /// # Errors
    /// - Bad arguments, before anything runs: see [`crate::Error`].
    /// - What the device reports.
    ///
    /// # Safety
    /// - Every address is valid on this backend's device for the elements of its view, until the
    ///   work has completed.
    /// - Nobody writes the inputs or accesses the outputs meanwhile.
    unsafe fn forward(&self, op: &RmsNorm, args: &ForwardArgs) -> Result<()>;

    /// Enqueues a backward.
    ///
    /// # Errors
    /// - Bad arguments, before anything runs: see [`crate::Error`].
    /// - What the device reports.
    ///
    /// # Safety
    /// - As [`Backend::forward`]; the workspace counts as an output.
    unsafe fn backward(&self, op: &RmsNorm, args: &BackwardArgs) -> Result<()>;

    /// As [`Backend::prepare`], for an operator of the gated form.
    ///
    /// # Errors
    /// - As [`Backend::prepare`].
    fn prepare_gated(&self, op: &GatedRmsNorm) -> Result<()>;

    /// Enqueues a forward of the gated form.
    ///
    /// # Errors
    /// - As [`Backend::forward`].
    ///
    /// # Safety
    /// - As [`Backend::forward`].
    unsafe fn gated_forward(&self, op: &GatedRmsNorm, args: &GatedForwardArgs) -> Result<()>;

    /// Enqueues a backward of the gated form.
    ///
    /// # Errors
    /// - As [`Backend::forward`].
    ///
    /// # Safety
    /// - As [`Backend::forward`]; the workspace counts as an output, and dw as an input too where
    ///   its values join the sum.
    unsafe fn gated_backward(&self, op: &GatedRmsNorm, args: &GatedBackwardArgs) -> Result<()>;
}
