//! Raw memory of an operator's arguments, shared between threads.

use crate::view::{RowsView, VectorView};
use std::slice;

/// A matrix to read.
#[derive(Clone, Copy)]
pub(super) struct Rows<E> {
    base: *const E,
    stride: isize,
    /// Rows of a group, and elements between groups.
    groups: Option<(usize, isize)>,
    hidden: usize,
}

// SAFETY: a plain address; whoever reads through it vouches for the memory.
unsafe impl<E> Send for Rows<E> {}
// SAFETY: as above.
unsafe impl<E> Sync for Rows<E> {}

impl<E> Rows<E> {
    pub(super) fn new(view: &RowsView) -> Self {
        Self {
            base: view.address as usize as *const E,
            stride: view.stride as isize,
            groups: view
                .groups
                .map(|groups| (groups.rows as usize, groups.stride as isize)),
            hidden: view.hidden as usize,
        }
    }

    fn start(&self, row: usize) -> *const E {
        let offset = match self.groups {
            None => row as isize * self.stride,
            Some((rows, stride)) => {
                (row / rows) as isize * stride + (row % rows) as isize * self.stride
            }
        };
        self.base.wrapping_offset(offset)
    }

    /// # Safety
    /// - The row is inside live memory that nobody writes while the slice lives.
    pub(super) unsafe fn row<'a>(&self, row: usize) -> &'a [E]
    where
        E: 'a,
    {
        // SAFETY: the caller's obligation.
        unsafe { slice::from_raw_parts(self.start(row), self.hidden) }
    }
}

/// A matrix to write.
#[derive(Clone, Copy)]
pub(super) struct RowsMut<E>(Rows<E>);

impl<E> RowsMut<E> {
    pub(super) fn new(view: &RowsView) -> Self {
        Self(Rows::new(view))
    }

    /// # Safety
    /// - The row is inside live memory that nobody else accesses while the slice lives.
    pub(super) unsafe fn row<'a>(&self, row: usize) -> &'a mut [E]
    where
        E: 'a,
    {
        let start = self.0.start(row).cast_mut();
        // SAFETY: the caller's obligation.
        unsafe { slice::from_raw_parts_mut(start, self.0.hidden) }
    }
}

/// An FP32 vector to read.
#[derive(Clone, Copy)]
pub(super) struct Elements(*const f32);

// SAFETY: a plain address; whoever reads through it vouches for the memory.
unsafe impl Send for Elements {}
// SAFETY: as above.
unsafe impl Sync for Elements {}

impl Elements {
    pub(super) fn new(view: &VectorView) -> Self {
        Self(view.address as usize as *const f32)
    }

    /// # Safety
    /// - The element is inside live memory that nobody writes meanwhile.
    pub(super) unsafe fn read(&self, index: usize) -> f32 {
        // SAFETY: the caller's obligation.
        unsafe { self.0.add(index).read() }
    }
}

/// An FP32 vector to write.
#[derive(Clone, Copy)]
pub(super) struct ElementsMut(*mut f32);

// SAFETY: a plain address; whoever writes through it vouches for the memory.
unsafe impl Send for ElementsMut {}
// SAFETY: as above.
unsafe impl Sync for ElementsMut {}

impl ElementsMut {
    pub(super) fn new(view: &VectorView) -> Self {
        Self(view.address as usize as *mut f32)
    }

    /// # Safety
    /// - The element is inside live memory that nobody else accesses meanwhile.
    pub(super) unsafe fn write(&self, index: usize, value: f32) {
        // SAFETY: the caller's obligation.
        unsafe { self.0.add(index).write(value) }
    }
}
