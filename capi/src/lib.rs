//! C interface. `include/cake_rmsnorm.h` is its header; docs/embedding-c.md tells how to use it.
//!
//! Beside it the plug-in interface by which a benchmark times RMSNorm libraries beside each other
//! ([`mod@bench`]), which is no part of the header.

mod bench;
mod device;
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
