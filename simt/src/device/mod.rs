//! What a kernel may call: the vocabulary of CUDA, by the names of rust-cuda's `cuda_std` where
//! it has the function. Every function panics outside a launch.
//!
//! | module | concept |
//! |---|---|
//! | [`thread`] | indices, block barrier, named barriers |
//! | [`warp`] | shuffles, votes, the warp barrier |
//! | [`shared`] | dynamic shared memory, addressed by 32-bit byte offsets |
//! | [`global`] | loads, stores, atomics and fences of global memory |
//! | [`mbarrier`], [`bulk`] | bulk asynchronous copies (sm_90 and newer) |
//! | [`small_copy`] | `cp.async`: asynchronous copies of a few bytes (sm_80 and newer) |
//! | [`dependent`] | dependent launch (sm_90 and newer) |

pub mod bulk;
pub mod dependent;
pub mod global;
pub mod mbarrier;
pub mod shared;
pub mod small_copy;
pub mod thread;
pub mod warp;
