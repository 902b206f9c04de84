//! Dynamic shared memory: 32-bit addresses in the shared window.

use crate::engine::{SHARED_BASE, with_current};
use crate::fault::Action;
use bytemuck::Pod;
use std::panic::Location;

/// The address of the block's dynamic shared memory (128-byte aligned).
#[inline]
pub fn base() -> u32 {
    SHARED_BASE
}

/// Loads a value of 2, 4, 8 or 16 bytes.
///
/// # Safety
/// Where checks are off:
/// - The address is a multiple of the size, and the value was written.
/// - No other thread writes it without a barrier in between.
#[inline]
#[track_caller]
pub unsafe fn load<T: Pod>(address: u32) -> T {
    let (site, bytes) = (Location::caller(), size_of::<T>() as u32);
    let pointer = with_current(|block| block.shared(site, address, bytes, Action::Read));
    // SAFETY: in bounds; only this OS thread touches the block's shared memory, and nothing
    // runs between.
    unsafe { pointer.cast::<T>().read_unaligned() }
}

/// Stores a value of 2, 4, 8 or 16 bytes.
///
/// # Safety
/// Where checks are off:
/// - The address is a multiple of the size.
/// - No other thread accesses it without a barrier in between.
#[inline]
#[track_caller]
pub unsafe fn store<T: Pod>(address: u32, value: T) {
    let (site, bytes) = (Location::caller(), size_of::<T>() as u32);
    let pointer = with_current(|block| block.shared(site, address, bytes, Action::Write));
    // SAFETY: as for `load`.
    unsafe { pointer.cast::<T>().write_unaligned(value) }
}
