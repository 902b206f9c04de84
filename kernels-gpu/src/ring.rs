//! Rows on their way: a ring of stages in shared memory, filled by asynchronous copies.
//!
//! Every thread copies the columns that it works on to places of its own, so neither filling nor
//! reading needs a barrier, and a stage is free as soon as its thread has read it.

use crate::arith::unroll;
use crate::device::global::CachePolicy;
use crate::device::{Words4, async_copy, shared, thread};
use crate::rows::{Columns, NO_WORDS};

/// A ring of `STAGES` stages; a stage has `ROWS` neighbouring rows of `TENSORS` BF16 matrices, and an
/// FP32 scalar for each row.
#[derive(Clone, Copy, Debug)]
pub struct Ring<const VECTORS: usize, const ROWS: usize, const STAGES: usize, const TENSORS: usize>
{
    /// The thread's first place in stage 0.
    place: u32,
    /// Offset of the stage that is read next, and filled next.
    stage: u32,
    /// What L2 is told of the rows.
    policy: CachePolicy,
}

/// Where a row and its scalar lie in global memory.
#[derive(Clone, Copy, Debug)]
pub struct RowStarts<const TENSORS: usize> {
    /// The row of each matrix, 16-byte aligned.
    pub rows: [*const u16; TENSORS],
    /// The scalar.
    pub scalar: *const f32,
}

/// Bytes of shared memory for a ring of `threads` threads.
#[must_use]
#[inline(always)]
pub const fn ring_bytes(vectors: u32, rows: u32, stages: u32, tensors: u32, threads: u32) -> u32 {
    stages * rows * row_bytes(vectors, tensors) * (threads / 32)
}

/// Bytes of a row in one warp's places.
#[inline(always)]
const fn row_bytes(vectors: u32, tensors: u32) -> u32 {
    32 * (16 * tensors * vectors + 4)
}

impl<const VECTORS: usize, const ROWS: usize, const STAGES: usize, const TENSORS: usize>
    Ring<VECTORS, ROWS, STAGES, TENSORS>
{
    /// A warp's stage: its vectors one after the other, a lane's 16 bytes beside its neighbour's,
    /// then its scalars. So every place is a constant from the thread's first.
    const STAGE_BYTES: u32 = ROWS as u32 * row_bytes(VECTORS as u32, TENSORS as u32);

    /// A ring at shared address `base`, which has [`ring_bytes`], for rows that are read under
    /// `policy`. What the thread has of vectors outside of the row is zero from here on.
    ///
    /// # Safety
    /// - Shared memory holds the ring, and nobody else accesses it.
    #[inline(always)]
    pub unsafe fn new(base: u32, columns: Columns<VECTORS>, policy: CachePolicy) -> Self {
        let (warp, lane) = (thread::thread_idx_x() / 32, thread::thread_idx_x() % 32);
        let mut ring = Self {
            place: base + warp * STAGES as u32 * Self::STAGE_BYTES + 16 * lane,
            stage: 0,
            policy,
        };
        unroll!(VECTORS, |v| {
            if !columns.holds(v) {
                unroll!(STAGES, |_| {
                    unroll!(ROWS, |r| unroll!(TENSORS, |tensor| {
                        // SAFETY: the thread's own place, to which nothing is copied.
                        unsafe { shared::store_words4(ring.vector_place(r, tensor, v), NO_WORDS) };
                    }));
                    ring.advance();
                });
            }
        });
        ring
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

    #[inline(always)]
    fn advance(&mut self) {
        let next = self.stage + Self::STAGE_BYTES;
        self.stage = if next == STAGES as u32 * Self::STAGE_BYTES {
            0
        } else {
            next
        };
    }

    /// Starts to copy `count` rows to the current stage, row r from `starts(r)`, and moves on. With
    /// no rows, an empty copy keeps the count of stages.
    ///
    /// # Safety
    /// - `starts` are of rows as wide as `columns` says, for r < `count` ≤ `ROWS`; nobody writes them
    ///   during the launch.
    /// - The stage was read, or never filled.
    #[inline(always)]
    pub unsafe fn fill(
        &mut self,
        columns: Columns<VECTORS>,
        starts: impl Fn(usize) -> RowStarts<TENSORS>,
        count: u32,
    ) {
        // The threads' own offsets are added for each row: what all share costs no registers.
        let columns = columns.forget();
        unroll!(ROWS, |r| {
            if (r as u32) < count {
                let row = starts(r);
                let first = |tensor: usize| columns.of_row(row.rows[tensor]);
                unroll!(VECTORS, |v| {
                    if columns.holds(v) {
                        unroll!(TENSORS, |tensor| {
                            let place = self.vector_place(r, tensor, v);
                            // SAFETY: inside the row; the place is the thread's own.
                            unsafe {
                                let source = Columns::<VECTORS>::vector(first(tensor), v);
                                async_copy::copy_words4(self.policy, place, source.cast());
                            }
                        });
                    }
                });
                // SAFETY: the row's scalar; the place is the thread's own.
                unsafe { async_copy::copy_f32(self.scalar_place(r), row.scalar) };
            }
        });
        async_copy::commit_group();
        self.advance();
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
    pub unsafe fn vectors(&self, row: usize, tensor: usize) -> [Words4; VECTORS] {
        let mut words = [NO_WORDS; VECTORS];
        unroll!(VECTORS, |v| {
            // SAFETY: the thread's own place, whose copy has arrived, or which was set to zero.
            words[v] = unsafe { shared::load_words4(self.vector_place(row, tensor, v)) };
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
