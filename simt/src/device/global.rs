//! Global memory: plain accesses, atomics and fences.

pub use crate::engine::Ordering;
use crate::engine::{Operation, raw, with_current};
use crate::fault::Action;
use bytemuck::Pod;
use std::panic::Location;

/// Checks an access and returns where it goes: mutations may displace it.
#[inline]
fn check<T>(site: &'static Location<'static>, pointer: *mut T, action: Action) -> *mut T {
    let bytes = size_of::<T>() as u32;
    let by = with_current(|block| block.global(site, pointer as usize, bytes, action));
    pointer.wrapping_byte_offset(by)
}

/// Loads a value of 2, 4, 8 or 16 bytes.
///
/// # Safety
/// Where checks are off:
/// - The pointer is readable memory, and a multiple of the size.
/// - No other thread writes it without an ordering in between.
#[inline]
#[track_caller]
pub unsafe fn load<T: Pod>(pointer: *const T) -> T {
    let pointer = check(Location::caller(), pointer.cast_mut(), Action::Read);
    // SAFETY: checked, or the caller's obligation.
    unsafe { raw::load(pointer) }
}

/// Loads a value of 2, 4, 8 or 16 bytes that nobody writes during the launch (`ld.global.nc`).
///
/// # Safety
/// Where checks are off:
/// - The pointer is readable memory, and a multiple of the size.
/// - No thread writes it during the launch.
#[inline]
#[track_caller]
pub unsafe fn load_constant<T: Pod>(pointer: *const T) -> T {
    let pointer = check(Location::caller(), pointer.cast_mut(), Action::ConstantRead);
    // SAFETY: checked, or the caller's obligation.
    unsafe { raw::load(pointer) }
}

/// Stores a value of 2, 4, 8 or 16 bytes.
///
/// # Safety
/// Where checks are off:
/// - The pointer is writable memory, and a multiple of the size.
/// - No other thread accesses it without an ordering in between.
#[inline]
#[track_caller]
pub unsafe fn store<T: Pod>(pointer: *mut T, value: T) {
    let pointer = check(Location::caller(), pointer, Action::Write);
    // SAFETY: checked, or the caller's obligation.
    unsafe { raw::store(pointer, value) }
}

/// A type that atomics work on.
pub trait AtomicWord: Pod + sealed::Word {}

mod sealed {
    /// Conversion to and from the simulator's word.
    pub trait Word {
        /// The word that holds the value.
        fn widen(self) -> u64;
        /// The value in the word.
        fn narrow(word: u64) -> Self;
    }
}

impl sealed::Word for u32 {
    fn widen(self) -> u64 {
        u64::from(self)
    }

    fn narrow(word: u64) -> Self {
        word as u32
    }
}

impl sealed::Word for u64 {
    fn widen(self) -> u64 {
        self
    }

    fn narrow(word: u64) -> Self {
        word
    }
}

impl AtomicWord for u32 {}
impl AtomicWord for u64 {}

#[track_caller]
fn atomic<T: AtomicWord>(pointer: *mut T, operation: Operation, ordering: Ordering) -> T {
    let (site, bytes) = (Location::caller(), size_of::<T>() as u32);
    let old =
        with_current(|block| block.atomic(site, pointer as usize, bytes, operation, ordering));
    T::narrow(old)
}

/// Atomic load. A loop that polls is one of these.
///
/// # Safety
/// Where checks are off: the pointer is readable memory, and a multiple of the size.
#[track_caller]
pub unsafe fn atomic_load<T: AtomicWord>(pointer: *const T, ordering: Ordering) -> T {
    atomic(pointer.cast_mut(), Operation::Load, ordering)
}

/// Atomic store.
///
/// # Safety
/// Where checks are off: the pointer is writable memory, and a multiple of the size.
#[track_caller]
pub unsafe fn atomic_store<T: AtomicWord>(pointer: *mut T, value: T, ordering: Ordering) {
    atomic(pointer, Operation::Store(value.widen()), ordering);
}

/// Adds `value`, wrapping; returns the old value.
///
/// # Safety
/// Where checks are off: the pointer is writable memory, and a multiple of the size.
#[track_caller]
pub unsafe fn atomic_add<T: AtomicWord>(pointer: *mut T, value: T, ordering: Ordering) -> T {
    atomic(pointer, Operation::Add(value.widen()), ordering)
}

/// Replaces the value; returns the old one.
///
/// # Safety
/// Where checks are off: the pointer is writable memory, and a multiple of the size.
#[track_caller]
pub unsafe fn atomic_exchange<T: AtomicWord>(pointer: *mut T, value: T, ordering: Ordering) -> T {
    atomic(pointer, Operation::Exchange(value.widen()), ordering)
}

/// Replaces the value by `new` if it is `expected`; returns the old one.
///
/// # Safety
/// Where checks are off: the pointer is writable memory, and a multiple of the size.
#[track_caller]
pub unsafe fn atomic_compare_exchange<T: AtomicWord>(
    pointer: *mut T,
    expected: T,
    new: T,
    ordering: Ordering,
) -> T {
    let (expected, new) = (expected.widen(), new.widen());
    atomic(
        pointer,
        Operation::CompareExchange { expected, new },
        ordering,
    )
}

/// `fence.acq_rel.gpu` (`__threadfence`): relaxed atomics before it acquire, relaxed atomics
/// after it release.
#[track_caller]
pub fn fence() {
    let site = Location::caller();
    with_current(|block| block.fence(site));
}
