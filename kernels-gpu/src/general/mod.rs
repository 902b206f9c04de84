//! Kernels for everything that the fast ones do not take: FP16 and FP32 matrices, FP16 weights,
//! addresses and strides that rule out 16-byte access, and hidden sizes that are no multiple of 8.
//!
//! One forward and one backward serve all of it: types and alignment are parameters, the same for
//! the whole grid, so no warp diverges over them. The order of additions is the canonical one: lane
//! l of a tile holds its elements 8l … 8l + 7, and elements beyond the row are +0.

pub mod backward;
pub mod forward;
pub mod params;
mod row;
mod sums;

pub use sums::SCRATCH_BYTES;
