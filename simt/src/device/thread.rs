//! Indices, and barriers of the block.

use crate::engine::{current, with_current};
use std::panic::Location;

/// The thread's index in its block.
#[inline]
pub fn thread_idx_x() -> u32 {
    with_current(|block| block.thread.get())
}

/// Threads in a block.
#[inline]
pub fn block_dim_x() -> u32 {
    with_current(|block| block.planned.launch.block)
}

/// The block's index in the grid.
#[inline]
pub fn block_idx_x() -> u32 {
    with_current(|block| block.block)
}

/// Blocks in the grid.
#[inline]
pub fn grid_dim_x() -> u32 {
    with_current(|block| block.planned.launch.grid)
}

/// Waits until every thread of the block has come here; orders memory among them.
#[inline(always)]
#[track_caller]
pub fn sync_threads() {
    // SAFETY: not kept.
    let block = unsafe { current() };
    block.barrier(Location::caller(), 0, block.planned.launch.block, true);
}

/// Waits at named barrier `barrier` (1 to 15) until `threads` threads, a multiple of 32, have
/// come or arrived; orders memory among them.
#[inline(always)]
#[track_caller]
pub fn sync_named(barrier: u32, threads: u32) {
    // SAFETY: not kept.
    let block = unsafe { current() };
    block.named_barrier(Location::caller(), barrier, threads, true);
}

/// Arrives at named barrier `barrier` (1 to 15) of `threads` threads without waiting.
#[inline(always)]
#[track_caller]
pub fn arrive_named(barrier: u32, threads: u32) {
    // SAFETY: not kept.
    let block = unsafe { current() };
    block.named_barrier(Location::caller(), barrier, threads, false);
}
