//! Exchange between the 32 lanes of a warp.

use crate::engine::current;
use std::panic::Location;

/// The value that lane `lane ^ lane_mask` passes.
#[track_caller]
pub fn shuffle_xor(value: u32, lane_mask: u32) -> u32 {
    current().shuffle(Location::caller(), value, |lane| lane ^ lane_mask)
}

/// The value that lane `lane` passes.
#[track_caller]
pub fn shuffle_idx(value: u32, lane: u32) -> u32 {
    current().shuffle(Location::caller(), value, |_| lane)
}
