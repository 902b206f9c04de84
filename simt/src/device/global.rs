//! Global memory.

use bytemuck::Pod;

/// Loads a value.
///
/// # Safety
/// - The pointer is aligned and readable.
#[track_caller]
pub unsafe fn load<T: Pod>(pointer: *const T) -> T {
    // SAFETY: the caller's obligation.
    unsafe { pointer.read() }
}

/// Loads a value that nobody writes during the launch.
///
/// # Safety
/// - The pointer is aligned and readable.
/// - No thread writes the bytes during the launch.
#[track_caller]
pub unsafe fn load_constant<T: Pod>(pointer: *const T) -> T {
    // SAFETY: the caller's obligation.
    unsafe { pointer.read() }
}

/// Stores a value.
///
/// # Safety
/// - The pointer is aligned and writable.
#[track_caller]
pub unsafe fn store<T: Pod>(pointer: *mut T, value: T) {
    // SAFETY: the caller's obligation.
    unsafe { pointer.write(value) }
}
