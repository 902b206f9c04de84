//! A CPU simulator for SIMT kernels written in Rust.
//!
//! A kernel is an ordinary function that calls the functions of [`device`]. Each simulated
//! thread runs it as a coroutine; threads interleave at barriers, shuffles, waits and atomics in
//! an order that a seed decides ([`Schedule`]). What a GPU would leave undefined is a [`Fault`]
//! that names kernel, block, thread, source line, address and, for a race, the other party:
//!
//! - accesses out of bounds, misaligned, of uninitialised or read-only memory;
//! - data races in shared and global memory, by happens-before: barriers, mbarriers, atomics with
//!   fences, and the order of launches pass knowledge on; a lucky schedule hides nothing;
//! - writes to memory that somebody reads as constant during the launch;
//! - barriers and exchanges that some threads do not reach;
//! - misused mbarriers and asynchronous copies, and missing proxy fences;
//! - deadlocks, and blocks that wait for blocks that need not be resident.
//!
//! Results do not depend on the number of OS threads: blocks run side by side until they reach
//! an atomic, and atomics are served one at a time.
//!
//! ```
//! use cake_rmsnorm_simt::{Launch, Memory, Simulator, device::{global, thread}};
//!
//! let mut memory = Memory::new();
//! let x = memory.alloc_from("x", &[1.0f32; 64]);
//! let kernel = || unsafe {
//!     let index = thread::block_idx_x() * thread::block_dim_x() + thread::thread_idx_x();
//!     let address = x.ptr::<f32>().wrapping_add(index as usize);
//!     global::store(address, global::load(address) + index as f32);
//! };
//! Simulator::new().run(&mut memory, &[Launch::new("add_index", 2, 32, &kernel)])?;
//! assert_eq!(memory.read::<f32>(x)?[63], 64.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod check;
pub mod device;
mod engine;
mod fault;
mod launch;
mod memory;
mod mutation;
mod schedule;

pub use fault::{Absent, Action, Fault, FaultKind, MbarrierProblem, Party, Place, Space};
pub use launch::{Checks, Launch, Progress, Report, Simulator};
pub use memory::{Buffer, Contents, Memory, MemoryError, Rights};
pub use mutation::{Mutation, Synchronisation};
pub use schedule::{BlockOrder, CopyTiming, Order, Schedule};

/// The example of README.md, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
