//! Exchange between the 32 lanes of a warp. All lanes must come to the same call.

use crate::engine::current;
use std::panic::Location;

/// The value that lane `lane ^ lane_mask` passes.
#[inline(always)]
#[track_caller]
pub fn shuffle_xor(value: u32, lane_mask: u32) -> u32 {
    // SAFETY: not kept.
    let block = unsafe { current() };
    block.exchange(Location::caller(), value, false, |values, lane| {
        values[((lane ^ lane_mask) % 32) as usize].get()
    })
}

/// The value that lane `lane` passes.
#[inline(always)]
#[track_caller]
pub fn shuffle_idx(value: u32, lane: u32) -> u32 {
    // SAFETY: not kept.
    let block = unsafe { current() };
    block.exchange(Location::caller(), value, false, |values, _| {
        values[(lane % 32) as usize].get()
    })
}

/// The value that lane `own + delta` passes; the own value where there is none.
#[inline(always)]
#[track_caller]
pub fn shuffle_down(value: u32, delta: u32) -> u32 {
    // SAFETY: not kept.
    let block = unsafe { current() };
    block.exchange(Location::caller(), value, false, |values, lane| {
        let source = lane.saturating_add(delta);
        values[if source < 32 { source } else { lane } as usize].get()
    })
}

/// Bit `l` says whether lane `l` passes true.
#[inline(always)]
#[track_caller]
pub fn ballot(predicate: bool) -> u32 {
    // SAFETY: not kept.
    let block = unsafe { current() };
    block.exchange(
        Location::caller(),
        u32::from(predicate),
        false,
        |values, _| {
            values
                .iter()
                .rev()
                .fold(0, |mask, bit| mask << 1 | bit.get())
        },
    )
}

/// Whether some lane passes true.
#[track_caller]
pub fn any(predicate: bool) -> bool {
    ballot(predicate) != 0
}

/// Whether every lane passes true.
#[track_caller]
pub fn all(predicate: bool) -> bool {
    ballot(predicate) == u32::MAX
}

/// Waits for all lanes; orders memory among them, which shuffles and votes do not.
#[track_caller]
pub fn sync_warp() {
    // SAFETY: not kept.
    let block = unsafe { current() };
    block.sync_warp(Location::caller());
}
