//! Rows of dy, x and z on their way: stages in shared memory, filled by asynchronous copies.
//!
//! Every thread copies the columns that it works on to places of its own, so neither filling nor
//! reading needs a barrier, and a stage is free as soon as its thread has read it.

use crate::arith::unroll;
use crate::device::global::CachePolicy;
use crate::device::{Words4, async_copy, shared, thread};
use crate::rows::{Columns, NO_WORDS};

/// Matrices of a stage.
const TENSORS: usize = 3;
/// dy in a stage.
pub const DY: usize = 0;
/// x in a stage.
pub const X: usize = 1;
/// z in a stage.
pub const Z: usize = 2;

/// `STAGES` rows under way.
#[derive(Clone, Copy, Debug)]
pub struct Ring<const VECTORS: usize, const STAGES: usize> {
    /// The thread's first place in stage 0.
    place: u32,
    /// Offset of the stage that is read next, and filled next.
    stage: u32,
    /// What L2 is told of the rows.
    policy: CachePolicy,
}

/// Bytes of shared memory for a ring of `threads` threads.
#[must_use]
#[inline(always)]
pub const fn ring_bytes(vectors: u32, stages: u32, threads: u32) -> u32 {
    stages * stage_bytes(vectors) * (threads / 32)
}

/// Bytes of a warp's stage.
#[inline(always)]
const fn stage_bytes(vectors: u32) -> u32 {
    32 * 16 * TENSORS as u32 * vectors
}

impl<const VECTORS: usize, const STAGES: usize> Ring<VECTORS, STAGES> {
    /// A ring at shared address `base`, which has [`ring_bytes`], for rows that are read under
    /// `policy`. A warp's vectors lie one after the other, a lane's 16 bytes beside its neighbour's.
    #[inline(always)]
    pub fn new(base: u32, policy: CachePolicy) -> Self {
        let (warp, lane) = (thread::thread_idx_x() / 32, thread::thread_idx_x() % 32);
        Self {
            place: base + warp * STAGES as u32 * stage_bytes(VECTORS as u32) + 16 * lane,
            stage: 0,
            policy,
        }
    }

    #[inline(always)]
    fn vector_place(&self, tensor: usize, v: usize) -> u32 {
        self.place + self.stage + 512 * (tensor * VECTORS + v) as u32
    }

    /// Starts to copy the thread's columns of a row to the current stage, and moves on. Without a
    /// row, an empty copy keeps the count of stages.
    ///
    /// # Safety
    /// - `row` are the starts of rows of dy, x and z, 16-byte aligned, that nobody writes during the
    ///   launch; the columns are inside.
    /// - Shared memory holds the ring; the stage was read, or never filled.
    #[inline(always)]
    pub unsafe fn fill(
        &mut self,
        columns: Columns<VECTORS>,
        row: impl FnOnce() -> [*const u16; TENSORS],
        present: bool,
    ) {
        if present {
            let row = row();
            unroll!(TENSORS, |tensor| {
                unroll!(VECTORS, |v| {
                    if columns.holds(v) {
                        // SAFETY: inside the row; the place is the thread's own.
                        unsafe {
                            let source = row[tensor].add(columns.column(v) as usize);
                            let place = self.vector_place(tensor, v);
                            async_copy::copy_words4(self.policy, place, source.cast());
                        }
                    }
                });
            });
        }
        async_copy::commit_group();
        let next = self.stage + stage_bytes(VECTORS as u32);
        self.stage = if next == STAGES as u32 * stage_bytes(VECTORS as u32) {
            0
        } else {
            next
        };
    }

    /// Waits for the row of the current stage, `STAGES` fills after the first.
    #[inline(always)]
    pub fn wait(&self) {
        const { assert!(STAGES >= 1 && STAGES <= 3) };
        match STAGES {
            1 => async_copy::wait_group::<0>(),
            2 => async_copy::wait_group::<1>(),
            _ => async_copy::wait_group::<2>(),
        }
    }

    /// Vector `v` of a matrix's row; zeros outside.
    ///
    /// # Safety
    /// - The stage was filled with the row, and waited for.
    #[inline(always)]
    pub unsafe fn get(&self, columns: Columns<VECTORS>, tensor: usize, v: usize) -> Words4 {
        if columns.holds(v) {
            // SAFETY: the thread's own place, whose copy has arrived.
            unsafe { shared::load_words4(self.vector_place(tensor, v)) }
        } else {
            NO_WORDS
        }
    }

    /// Replaces vector `v` of a matrix's row.
    ///
    /// # Safety
    /// - As [`Ring::get`].
    #[inline(always)]
    pub unsafe fn put(&self, tensor: usize, v: usize, words: Words4) {
        // SAFETY: the thread's own place, whose copy has arrived.
        unsafe { shared::store_words4(self.vector_place(tensor, v), words) }
    }
}
