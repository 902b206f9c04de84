//! C interface. `include/cake_rmsnorm.h` is its header; docs/embedding-c.md tells how to use it.
//!
//! Beside it the plug-in interface by which a benchmark times RMSNorm libraries beside each other
//! (`src/bench/`), which is no part of the header.

mod bench;
mod device;
#[cfg(all(
    feature = "cuda",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod driver;
#[cfg(all(
    feature = "cuda",
    not(all(
        target_os = "linux",
        any(target_arch = "x86_64", target_arch = "aarch64")
    ))
))]
mod driver {
    //! Elsewhere the driver is linked.
    pub(crate) fn load() -> Result<(), crate::failure::Failure> {
        Ok(())
    }
}
mod failure;
mod gated;
mod plain;
mod plan;
mod types;

pub use failure::*;
pub use gated::*;
pub use plain::*;
pub use plan::*;
pub use types::*;
