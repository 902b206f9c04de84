//! Global memory as racing threads may access it: by relaxed atomics of at most 8 bytes.

use bytemuck::Pod;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// Calls `f` with each part of `bytes` bytes at `address` that one atomic access covers: its
/// offset and size.
fn each_part(address: usize, bytes: usize, mut f: impl FnMut(usize, usize)) {
    let size = match address | bytes {
        bits if bits.is_multiple_of(8) => 8,
        bits if bits.is_multiple_of(4) => 4,
        bits if bits.is_multiple_of(2) => 2,
        _ => 1,
    };
    (0..bytes).step_by(size).for_each(|offset| f(offset, size));
}

/// Copies from global memory.
///
/// # Safety
/// - Both ranges are valid, and nobody else accesses the destination.
pub(crate) unsafe fn copy_in(destination: *mut u8, source: *const u8, bytes: usize) {
    each_part(source as usize, bytes, |offset, size| {
        // SAFETY: both within the ranges; the source is aligned to the part's size.
        unsafe {
            let (to, from) = (destination.add(offset), source.add(offset).cast_mut());
            match size {
                8 => to
                    .cast::<u64>()
                    .write_unaligned(AtomicU64::from_ptr(from.cast()).load(Relaxed)),
                4 => to
                    .cast::<u32>()
                    .write_unaligned(AtomicU32::from_ptr(from.cast()).load(Relaxed)),
                2 => to
                    .cast::<u16>()
                    .write_unaligned(AtomicU16::from_ptr(from.cast()).load(Relaxed)),
                _ => to.write(AtomicU8::from_ptr(from).load(Relaxed)),
            }
        }
    });
}

/// Copies to global memory.
///
/// # Safety
/// - Both ranges are valid, and nobody else writes the source.
pub(crate) unsafe fn copy_out(destination: *mut u8, source: *const u8, bytes: usize) {
    each_part(destination as usize, bytes, |offset, size| {
        // SAFETY: both within the ranges; the destination is aligned to the part's size.
        unsafe {
            let (to, from) = (destination.add(offset), source.add(offset));
            match size {
                8 => AtomicU64::from_ptr(to.cast())
                    .store(from.cast::<u64>().read_unaligned(), Relaxed),
                4 => AtomicU32::from_ptr(to.cast())
                    .store(from.cast::<u32>().read_unaligned(), Relaxed),
                2 => AtomicU16::from_ptr(to.cast())
                    .store(from.cast::<u16>().read_unaligned(), Relaxed),
                _ => AtomicU8::from_ptr(to).store(from.read(), Relaxed),
            }
        }
    });
}

/// Loads a value of 2, 4, 8 or 16 bytes from global memory.
///
/// # Safety
/// - The pointer is valid for reads, and a multiple of the size.
#[inline(always)]
pub(crate) unsafe fn load<T: Pod>(pointer: *const T) -> T {
    let mut value = T::zeroed();
    let to: *mut T = &mut value;
    let from = pointer.cast_mut();
    // SAFETY: the caller's obligation; the value is ours.
    unsafe {
        match size_of::<T>() {
            2 => to
                .cast::<u16>()
                .write_unaligned(AtomicU16::from_ptr(from.cast()).load(Relaxed)),
            4 => to
                .cast::<u32>()
                .write_unaligned(AtomicU32::from_ptr(from.cast()).load(Relaxed)),
            8 => to
                .cast::<u64>()
                .write_unaligned(AtomicU64::from_ptr(from.cast()).load(Relaxed)),
            16 => {
                let (to, from) = (to.cast::<u64>(), from.cast::<u64>());
                to.write_unaligned(AtomicU64::from_ptr(from).load(Relaxed));
                to.add(1)
                    .write_unaligned(AtomicU64::from_ptr(from.add(1)).load(Relaxed));
            }
            bytes => copy_in(to.cast(), pointer.cast(), bytes),
        }
    }
    value
}

/// Stores a value of 2, 4, 8 or 16 bytes to global memory.
///
/// # Safety
/// - The pointer is valid for writes, and a multiple of the size.
#[inline(always)]
pub(crate) unsafe fn store<T: Pod>(pointer: *mut T, value: T) {
    let from: *const T = &value;
    // SAFETY: the caller's obligation; the value is ours.
    unsafe {
        match size_of::<T>() {
            2 => AtomicU16::from_ptr(pointer.cast())
                .store(from.cast::<u16>().read_unaligned(), Relaxed),
            4 => AtomicU32::from_ptr(pointer.cast())
                .store(from.cast::<u32>().read_unaligned(), Relaxed),
            8 => AtomicU64::from_ptr(pointer.cast())
                .store(from.cast::<u64>().read_unaligned(), Relaxed),
            16 => {
                let (to, from) = (pointer.cast::<u64>(), from.cast::<u64>());
                AtomicU64::from_ptr(to).store(from.read_unaligned(), Relaxed);
                AtomicU64::from_ptr(to.add(1)).store(from.add(1).read_unaligned(), Relaxed);
            }
            bytes => copy_out(pointer.cast(), from.cast(), bytes),
        }
    }
}
