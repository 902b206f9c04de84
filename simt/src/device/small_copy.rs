//! `cp.async`: asynchronous copies of 4, 8 or 16 bytes to shared memory (sm_80 and newer).

use crate::engine::{Kind, with_current};
use crate::fault::Action;
use bytemuck::Pod;
use std::panic::Location;

/// Starts a copy of a value from global `source` to shared `destination`, in the thread's open
/// group.
///
/// # Safety
/// Where checks are off: both addresses are multiples of the value's size, the source is
/// readable, and nobody writes it or accesses the destination until the group is waited for.
#[inline]
#[track_caller]
pub unsafe fn copy<T: Pod>(destination: u32, source: *const T) {
    start(Location::caller(), destination, source, Action::Read);
}

/// The same for a source that nobody writes during the launch.
///
/// # Safety
/// As [`copy`], and nobody writes the source during the launch.
#[inline]
#[track_caller]
pub unsafe fn copy_constant<T: Pod>(destination: u32, source: *const T) {
    start(
        Location::caller(),
        destination,
        source,
        Action::ConstantRead,
    );
}

#[inline]
fn start<T: Pod>(site: &'static Location<'static>, to: u32, source: *const T, action: Action) {
    with_current(|block| block.small_copy(site, to, source, action));
}

/// Closes the thread's open group.
#[track_caller]
pub fn commit_group() {
    let site = Location::caller();
    with_current(|block| block.close_group(site, Kind::Small));
}

/// Waits until at most `PENDING` of the thread's groups are not complete; the thread itself may
/// then read what they brought, others after a barrier.
#[track_caller]
pub fn wait<const PENDING: u32>() {
    let site = Location::caller();
    with_current(|block| block.wait_groups(site, Kind::Small, PENDING, true));
}
