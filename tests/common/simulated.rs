//! A device of drawn cases.

use cake_rmsnorm::Error;
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::sim::{Sim, SimBuffer};
use cake_rmsnorm::cases::Device;

/// The kernels, simulated.
pub struct Simulated(pub Sim);

impl Device for Simulated {
    type Error = Error;
    type Memory = SimBuffer;

    fn backend(&self) -> &dyn Backend {
        &self.0
    }

    fn alloc(&self, name: &'static str, bytes: usize) -> Result<SimBuffer, Error> {
        Ok(self.0.alloc(name, bytes))
    }

    fn synchronize(&self) -> Result<(), Error> {
        Ok(())
    }
}
