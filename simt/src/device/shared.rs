//! Dynamic shared memory: 32-bit addresses in the shared window.

use crate::engine::{SHARED_BASE, current};
use bytemuck::Pod;

/// The address of the block's dynamic shared memory (128-byte aligned).
pub fn base() -> u32 {
    SHARED_BASE
}

/// Loads a value.
///
/// # Safety
/// - The address is inside the launch's shared memory and aligned.
#[track_caller]
pub unsafe fn load<T: Pod>(address: u32) -> T {
    let pointer = current().shared(address, size_of::<T>() as u32);
    // SAFETY: in bounds; only this OS thread touches the block's shared memory.
    unsafe { pointer.cast::<T>().read_unaligned() }
}

/// Stores a value.
///
/// # Safety
/// - The address is inside the launch's shared memory and aligned.
#[track_caller]
pub unsafe fn store<T: Pod>(address: u32, value: T) {
    let pointer = current().shared(address, size_of::<T>() as u32);
    // SAFETY: in bounds; only this OS thread touches the block's shared memory.
    unsafe { pointer.cast::<T>().write_unaligned(value) }
}
