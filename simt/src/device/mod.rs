//! What a kernel may call. Every function panics outside a launch.

pub mod global;
pub mod shared;
pub mod thread;
pub mod warp;
