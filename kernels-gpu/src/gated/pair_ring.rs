//! Pairs of neighbouring rows on their way: stages in shared memory, filled by asynchronous copies.
//! As in [`crate::gated::ring`], every place is its thread's own.

use crate::arith::unroll;
use crate::device::{Words4, async_copy, shared, thread};
use crate::rows::{Columns, NO_WORDS};

/// `STAGES` pairs of rows of `TENSORS` matrices, a vector a row and thread. What no copy fills is
/// zero.
#[derive(Clone, Copy, Debug)]
pub struct PairRing<const TENSORS: usize, const STAGES: u32> {
    /// The thread's first place in stage 0.
    place: u32,
    /// Offset of the stage that is read next, and filled next.
    stage: u32,
}

/// Bytes of a thread's vectors of one row in one matrix, of all threads of a warp.
const ROW_BYTES: u32 = 512;

/// Bytes of shared memory for a ring of `threads` threads.
#[must_use]
#[inline(always)]
pub const fn pair_ring_bytes(tensors: u32, stages: u32, threads: u32) -> u32 {
    threads / 32 * stages * 2 * tensors * ROW_BYTES
}

impl<const TENSORS: usize, const STAGES: u32> PairRing<TENSORS, STAGES> {
    /// Bytes of a warp's stage.
    const STAGE_BYTES: u32 = 2 * TENSORS as u32 * ROW_BYTES;

    /// A ring at shared address `base`, a multiple of 128.
    ///
    /// # Safety
    /// - Shared memory has [`pair_ring_bytes`] there, which nothing else uses.
    #[inline(always)]
    pub unsafe fn new(base: u32, columns: Columns<1>) -> Self {
        let (warp, lane) = (thread::thread_idx_x() / 32, thread::thread_idx_x() % 32);
        let place = base + warp * STAGES * Self::STAGE_BYTES + 16 * lane;
        if !columns.holds(0) {
            let mut offset = 0;
            while offset < STAGES * Self::STAGE_BYTES {
                // SAFETY: the thread's own place.
                unsafe { shared::store_words4(place + offset, NO_WORDS) };
                offset += ROW_BYTES;
            }
        }
        Self { place, stage: 0 }
    }

    #[inline(always)]
    fn at(&self, tensor: usize, r: usize) -> u32 {
        self.place + self.stage + ROW_BYTES * (r * TENSORS + tensor) as u32
    }

    /// Starts to copy row `r` of a pair to the current stage, or makes it zero.
    ///
    /// # Safety
    /// - `row` are the starts of rows of the matrices, 16-byte aligned, that nobody writes during the
    ///   launch; the columns are inside. The stage was read, or never filled.
    #[inline(always)]
    pub unsafe fn fill(
        &self,
        columns: Columns<1>,
        r: usize,
        row: impl FnOnce() -> [*const u16; TENSORS],
        present: bool,
    ) {
        if present {
            if columns.holds(0) {
                let row = row();
                // SAFETY: inside the rows; the places are the thread's own.
                unroll!(TENSORS, |tensor| unsafe {
                    let source = row[tensor].add(columns.column(0) as usize);
                    async_copy::copy_words4(self.at(tensor, r), source.cast());
                });
            }
        } else {
            // SAFETY: the thread's own places, which no copy is under way to.
            unroll!(TENSORS, |tensor| unsafe {
                shared::store_words4(self.at(tensor, r), NO_WORDS);
            });
        }
    }

    /// Moves on after the two rows of a stage.
    #[inline(always)]
    pub fn filled(&mut self) {
        async_copy::commit_group();
        let next = self.stage + Self::STAGE_BYTES;
        self.stage = if next == STAGES * Self::STAGE_BYTES {
            0
        } else {
            next
        };
    }

    /// Waits for the pair of the current stage, `STAGES` fills after the first.
    #[inline(always)]
    pub fn wait(&self) {
        const { assert!(STAGES == 2 || STAGES == 3) };
        match STAGES {
            2 => async_copy::wait_group::<1>(),
            _ => async_copy::wait_group::<2>(),
        }
    }

    /// The thread's vector of row `r` of the current pair.
    #[inline(always)]
    pub fn get(&self, tensor: usize, r: usize) -> Words4 {
        // SAFETY: the thread's own place, which was filled and waited for.
        unsafe { shared::load_words4(self.at(tensor, r)) }
    }

    /// Replaces it.
    #[inline(always)]
    pub fn put(&self, tensor: usize, r: usize, words: Words4) {
        // SAFETY: the thread's own place.
        unsafe { shared::store_words4(self.at(tensor, r), words) }
    }
}
