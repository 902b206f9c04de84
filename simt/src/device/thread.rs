//! Indices and the block barrier.

use crate::engine::current;
use std::panic::Location;

/// The thread's index in its block.
pub fn thread_idx_x() -> u32 {
    current().thread.get()
}

/// Threads in a block.
pub fn block_dim_x() -> u32 {
    current().block_dim
}

/// The block's index in the grid.
pub fn block_idx_x() -> u32 {
    current().block
}

/// Blocks in the grid.
pub fn grid_dim_x() -> u32 {
    current().grid
}

/// Waits until every thread of the block has come here.
#[track_caller]
pub fn sync_threads() {
    current().sync_threads(Location::caller());
}
