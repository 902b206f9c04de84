//! Bulk asynchronous copies between global and shared memory (sm_90 and newer).

use crate::check::Fence;
use crate::engine::{Kind, with_current};
use std::panic::Location;

/// Starts a copy of `bytes` bytes from global `source` to shared `destination`; its bytes count
/// towards the current phase of `mbarrier`.
///
/// # Safety
/// Where checks are off: both addresses are multiples of 16, the source is readable, and nobody
/// writes it or accesses the destination until the phase completes.
#[track_caller]
pub unsafe fn load(destination: u32, source: *const u8, bytes: u32, mbarrier: u32) {
    let site = Location::caller();
    with_current(|block| block.bulk_load(site, destination, source as usize, bytes, mbarrier));
}

/// Starts a copy of `bytes` bytes from shared `source` to global `destination`, in the thread's
/// open group.
///
/// # Safety
/// Where checks are off: both addresses are multiples of 16, the destination is writable, and
/// nobody writes the source or accesses the destination until the group is waited for.
#[track_caller]
pub unsafe fn store(destination: *mut u8, source: u32, bytes: u32) {
    let site = Location::caller();
    with_current(|block| block.bulk_store(site, source, destination as usize, bytes));
}

/// Closes the thread's open group.
#[track_caller]
pub fn commit_group() {
    let site = Location::caller();
    with_current(|block| block.close_group(site, Kind::Bulk));
}

/// Waits until at most `PENDING` of the thread's groups still read shared memory.
#[track_caller]
pub fn wait_read<const PENDING: u32>() {
    let site = Location::caller();
    with_current(|block| block.wait_groups(site, Kind::Bulk, PENDING, false));
}

/// Waits until at most `PENDING` of the thread's groups are not complete.
#[track_caller]
pub fn wait<const PENDING: u32>() {
    let site = Location::caller();
    with_current(|block| block.wait_groups(site, Kind::Bulk, PENDING, true));
}

/// Orders generic accesses of shared memory that the thread knows of before later accesses of
/// the asynchronous proxy.
#[track_caller]
pub fn fence_shared() {
    let site = Location::caller();
    with_current(|block| block.fence_proxy(site, Fence::Shared));
}

/// The same for global memory.
#[track_caller]
pub fn fence_global() {
    let site = Location::caller();
    with_current(|block| block.fence_proxy(site, Fence::Global));
}
