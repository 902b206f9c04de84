//! Rows on their way: a ring of stages in shared memory, filled by asynchronous copies.
//!
//! Every thread copies the columns that it works on to places of its own, so neither filling nor
//! reading needs a barrier, and a stage is free as soon as its thread has read it.

use crate::arith::unroll;
use crate::device::{Words4, async_copy, shared, thread};
use crate::params::{Groups, Stride};
use crate::rows::{Columns, NO_WORDS, row_start};

/// A BF16 matrix that a ring copies from.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Row 0, 16-byte aligned.
    pub base: *const u16,
    /// Elements between rows, multiples of 8.
    pub stride: Stride,
}

/// A ring of `STAGES` stages; a stage has `ROWS` neighbouring rows of `TENSORS` matrices, and a
/// scalar for each row where `SCALARS` is set.
#[derive(Clone, Copy, Debug)]
pub struct Ring<
    const VECTORS: usize,
    const ROWS: usize,
    const STAGES: usize,
    const TENSORS: usize,
    const SCALARS: bool,
> {
    /// The thread's first place in stage 0.
    place: u32,
    /// Offset of the stage that is read next, and filled next.
    stage: u32,
}

/// Bytes of shared memory for a ring of `threads` threads.
#[must_use]
#[inline(always)]
pub const fn ring_bytes(
    vectors: u32,
    rows: u32,
    stages: u32,
    tensors: u32,
    scalars: bool,
    threads: u32,
) -> u32 {
    stages * rows * row_bytes(vectors, tensors, scalars) * (threads / 32)
}

/// Bytes of a row in one warp's places.
#[inline(always)]
const fn row_bytes(vectors: u32, tensors: u32, scalars: bool) -> u32 {
    32 * (16 * tensors * vectors + if scalars { 4 } else { 0 })
}

impl<
    const VECTORS: usize,
    const ROWS: usize,
    const STAGES: usize,
    const TENSORS: usize,
    const SCALARS: bool,
> Ring<VECTORS, ROWS, STAGES, TENSORS, SCALARS>
{
    /// A warp's stage: its vectors one after the other, a lane's 16 bytes beside its neighbour's,
    /// then its scalars. So every place is a constant from the thread's first.
    const STAGE_BYTES: u32 = ROWS as u32 * row_bytes(VECTORS as u32, TENSORS as u32, SCALARS);

    /// A ring at shared address `base`, which has [`ring_bytes`].
    #[inline(always)]
    pub fn new(base: u32) -> Self {
        let (warp, lane) = (thread::thread_idx_x() / 32, thread::thread_idx_x() % 32);
        Self {
            place: base + warp * STAGES as u32 * Self::STAGE_BYTES + 16 * lane,
            stage: 0,
        }
    }

    #[inline(always)]
    fn vector_place(self, row: usize, tensor: usize, v: usize) -> u32 {
        let index = ((row * TENSORS + tensor) * VECTORS + v) as u32;
        self.place + self.stage + 512 * index
    }

    #[inline(always)]
    fn scalar_place(self, row: usize) -> u32 {
        let lane = thread::thread_idx_x() % 32;
        self.vector_place(ROWS, 0, 0) - 12 * lane + 128 * row as u32
    }

    /// Starts to copy rows `row` … `row + count − 1` to the current stage, and moves on. With
    /// no rows, an empty copy keeps the count of stages.
    ///
    /// # Safety
    /// - The rows are inside the sources, `count ≤ ROWS`, H is a multiple of 8, and `scalars` has
    ///   an element a row; nobody writes them during the launch.
    /// - Shared memory holds the ring; the stage was read, or never filled.
    #[inline(always)]
    pub unsafe fn fill<const GROUPED: bool>(
        &mut self,
        columns: Columns<VECTORS>,
        sources: [Source; TENSORS],
        groups: Groups,
        scalars: *const f32,
        row: u32,
        count: u32,
    ) {
        let columns = columns.forget();
        unroll!(ROWS, |r| {
            if (r as u32) < count {
                let row = row + r as u32;
                unroll!(TENSORS, |tensor| {
                    let Source { base, stride } = sources[tensor];
                    let source = row_start::<GROUPED>(base, row, stride, groups);
                    unroll!(VECTORS, |v| {
                        if columns.holds(v) {
                            let place = self.vector_place(r, tensor, v);
                            // SAFETY: inside the row; the place is the thread's own.
                            unsafe {
                                let source = source.add(columns.column(v) as usize);
                                async_copy::copy_words4(place, source.cast());
                            }
                        }
                    });
                });
                if SCALARS {
                    // SAFETY: an element a row; the place is the thread's own.
                    unsafe {
                        async_copy::copy_f32(self.scalar_place(r), scalars.add(row as usize))
                    };
                }
            }
        });
        async_copy::commit_group();
        let next = self.stage + Self::STAGE_BYTES;
        self.stage = if next == STAGES as u32 * Self::STAGE_BYTES {
            0
        } else {
            next
        };
    }

    /// Waits for the rows of the current stage, `STAGES` fills after the first.
    #[inline(always)]
    pub fn wait(&self) {
        const { assert!(STAGES >= 1 && STAGES <= 4) };
        match STAGES {
            1 => async_copy::wait_group::<0>(),
            2 => async_copy::wait_group::<1>(),
            3 => async_copy::wait_group::<2>(),
            _ => async_copy::wait_group::<3>(),
        }
    }

    /// The thread's vectors of row `row` of the stage; zeros outside of the matrix.
    ///
    /// # Safety
    /// - The stage was filled with the row, and waited for.
    #[inline(always)]
    pub unsafe fn vectors(
        &self,
        columns: Columns<VECTORS>,
        row: usize,
        tensor: usize,
    ) -> [Words4; VECTORS] {
        let mut words = [NO_WORDS; VECTORS];
        unroll!(VECTORS, |v| {
            if columns.holds(v) {
                // SAFETY: the thread's own place, whose copy has arrived.
                words[v] = unsafe { shared::load_words4(self.vector_place(row, tensor, v)) };
            }
        });
        words
    }

    /// The scalar of row `row` of the stage.
    ///
    /// # Safety
    /// - As [`Ring::vectors`].
    #[inline(always)]
    pub unsafe fn scalar(&self, row: usize) -> f32 {
        // SAFETY: the thread's own place, whose copy has arrived.
        unsafe { shared::load_f32(self.scalar_place(row)) }
    }
}
