//! The global memory that kernels may touch.

use bytemuck::Pod;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};

/// Bytes before and after an owned buffer that belong to nobody.
const GUARD: usize = 256;

/// An owned allocation of a [`Memory`]: its address and size. Freed with the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    address: usize,
    bytes: usize,
}

impl Buffer {
    /// The buffer's start.
    pub fn ptr<T>(self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.address)
    }

    /// Size in bytes.
    pub fn bytes(self) -> usize {
        self.bytes
    }
}

/// The memory of a simulated device.
#[derive(Debug, Default)]
pub struct Memory {
    owned: Vec<Owned>,
}

#[derive(Debug)]
struct Owned {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: the pointers are owned allocations; the threads of a launch access them by relaxed
// atomics only.
unsafe impl Send for Memory {}
// SAFETY: as above; everything else goes through `&mut self` or reads.
unsafe impl Sync for Memory {}

impl Memory {
    /// No memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// A buffer of `bytes` bytes, 256-byte aligned, that reads as NaN until it is written.
    pub fn alloc(&mut self, _name: &str, bytes: usize) -> Buffer {
        let size = bytes.next_multiple_of(GUARD) + 2 * GUARD;
        let layout = Layout::from_size_align(size, GUARD).expect("a valid size");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: the allocation has `size` bytes.
        unsafe { start.write_bytes(0xff, size) };
        self.owned.push(Owned { start, layout });
        let address = start.wrapping_add(GUARD).expose_provenance();
        Buffer { address, bytes }
    }

    /// A buffer that holds a copy of `values`.
    pub fn alloc_from<T: Pod>(&mut self, name: &str, values: &[T]) -> Buffer {
        let buffer = self.alloc(name, size_of_val(values));
        self.write(buffer, values);
        buffer
    }

    /// Overwrites the start of a buffer.
    pub fn write<T: Pod>(&mut self, buffer: Buffer, values: &[T]) {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        assert!(
            bytes.len() <= buffer.bytes,
            "the values do not fit the buffer"
        );
        // SAFETY: the buffer is ours and long enough, and nobody else runs.
        unsafe {
            buffer
                .ptr::<u8>()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
    }

    /// The contents of a buffer.
    pub fn read<T: Pod>(&self, buffer: Buffer) -> Vec<T> {
        let mut values = vec![T::zeroed(); buffer.bytes / size_of::<T>()];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        // SAFETY: the buffer is ours and as long, and nobody writes while we are borrowed.
        unsafe {
            bytes
                .as_mut_ptr()
                .copy_from_nonoverlapping(buffer.ptr(), bytes.len())
        };
        values
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for Owned { start, layout } in self.owned.drain(..) {
            // SAFETY: allocated with this layout.
            unsafe { dealloc(start, layout) };
        }
    }
}
