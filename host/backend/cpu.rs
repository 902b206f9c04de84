//! The CPU backend: the golden implementation behind the operators' interface.

use super::Backend;
use crate::error::Result;
use crate::gated::{self, GatedBackwardArgs, GatedForwardArgs, GatedRmsNorm};
use crate::op::{BackwardArgs, ForwardArgs, RmsNorm};
use crate::plan::{DeviceProperties, Views};
use crate::{golden, validate};

/// Runs operators on the CPU, with all of rayon's threads; calls return when the work is done.
/// Addresses are host addresses. Needs no workspace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu;

impl Backend for Cpu {
    /// Plans are not used here; one multiprocessor of an H200 stands in.
    fn properties(&self) -> &DeviceProperties {
        const PROPERTIES: DeviceProperties = DeviceProperties::H200.with_sm_count(1);
        &PROPERTIES
    }

    fn prepare(&self, _: &RmsNorm, _: bool, _: Views) -> Result<()> {
        Ok(())
    }

    unsafe fn forward(&self, op: &RmsNorm, args: &ForwardArgs) -> Result<()> {
        validate::forward(op, args)?;
        // SAFETY: the arguments were checked; the caller vouches for the memory.
        unsafe { golden::forward(op, args) };
        Ok(())
    }

    unsafe fn backward(&self, op: &RmsNorm, args: &BackwardArgs) -> Result<()> {
        validate::backward(op, args)?;
        // SAFETY: the arguments were checked; the caller vouches for the memory.
        unsafe { golden::backward(op, args) };
        Ok(())
    }

    fn prepare_gated(&self, _: &GatedRmsNorm) -> Result<()> {
        Ok(())
    }

    unsafe fn gated_forward(&self, op: &GatedRmsNorm, args: &GatedForwardArgs) -> Result<()> {
        gated::validate::forward(op, args)?;
        // SAFETY: the arguments were checked; the caller vouches for the memory.
        unsafe { golden::gated::forward(op, args) };
        Ok(())
    }

    unsafe fn gated_backward(&self, op: &GatedRmsNorm, args: &GatedBackwardArgs) -> Result<()> {
        gated::validate::backward(op, args)?;
        // SAFETY: the arguments were checked; the caller vouches for the memory.
        unsafe { golden::gated::backward(op, args) };
        Ok(())
    }
}
