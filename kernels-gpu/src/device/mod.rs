//! The SIMT vocabulary: what a kernel may ask of the machine it runs on.
//!
//! Two implementations share these signatures: `nvptx` (intrinsics and inline PTX) and `sim`
//! (the CPU simulator of `cake-rmsnorm-simt`). Kernel files use this module alone and hold no
//! `cfg`. Names follow rust-cuda's `cuda_std` where it has the function.
//!
//! | module | concept |
//! |---|---|
//! | [`thread`] | indices and the block barrier |
//! | [`warp`] | shuffles |
//! | [`shared`] | dynamic shared memory, addressed by 32-bit byte offsets |
//! | [`global`] | loads and stores of global memory, with cache hints |
//! | [`math`] | correctly rounded operations that `core` does not offer on stable |
//! | [`hint`] | advice to the compiler |
//! | [`async_copy`] | asynchronous copies of single words (sm_80 and newer) |
//! | [`mbarrier`], [`bulk`] | bulk asynchronous copies (sm_90 and newer) |
//! | [`dependent`] | dependent launch (sm_90 and newer) |

#[cfg(target_arch = "nvptx64")]
mod nvptx;
#[cfg(target_arch = "nvptx64")]
pub use nvptx::{async_copy, bulk, dependent, global, hint, math, mbarrier, shared, thread, warp};

#[cfg(not(target_arch = "nvptx64"))]
mod sim;
#[cfg(not(target_arch = "nvptx64"))]
pub use sim::{async_copy, bulk, dependent, global, hint, math, mbarrier, shared, thread, warp};

/// Four 32-bit words that travel in one 16-byte access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Words4(pub u32, pub u32, pub u32, pub u32);
