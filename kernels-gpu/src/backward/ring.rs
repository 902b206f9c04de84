//! Rows on their way: a ring of stages in shared memory, filled by asynchronous copies.
//!
//! Every thread copies the columns that it works on to places of its own, so neither filling nor
//! reading needs a barrier, and a stage is free as soon as its thread has read it.

use crate::backward::row::RowWords;
use crate::device::{async_copy, shared, thread};
use crate::params::BackwardParams;
use crate::rows::{Columns, row_start};
use crate::arith::unroll;

/// A ring of `STAGES` rows.
#[derive(Clone, Copy, Debug)]
pub struct Ring<const VECTORS: usize, const STAGES: usize, const RESIDUAL: bool> {
    /// The thread's first place.
    place: u32,
    threads: u32,
    /// The stage of the next row that is read.
    stage: u32,
}

/// Bytes of shared memory for a ring of `threads` threads.
#[must_use]
#[inline(always)]
pub const fn ring_bytes(vectors: u32, stages: u32, residual: bool, threads: u32) -> u32 {
    stages * stage_bytes(vectors, residual, threads)
}

/// dy, x and dh if there is one, then rstd.
#[inline(always)]
const fn stage_bytes(vectors: u32, residual: bool, threads: u32) -> u32 {
    let tensors = if residual { 3 } else { 2 };
    (tensors * vectors * 16 + 4) * threads
}

impl<const VECTORS: usize, const STAGES: usize, const RESIDUAL: bool>
    Ring<VECTORS, STAGES, RESIDUAL>
{
    /// A ring at shared address `base`, which has [`ring_bytes`].
    #[inline(always)]
    pub fn new(base: u32) -> Self {
        let threads = thread::block_dim_x();
        Self { place: base + 16 * thread::thread_idx_x(), threads, stage: 0 }
    }

    #[inline(always)]
    fn vector(self, tensor: u32, v: usize) -> u32 {
        let stage = self.stage * stage_bytes(VECTORS as u32, RESIDUAL, self.threads);
        self.place + stage + (tensor * VECTORS as u32 + v as u32) * 16 * self.threads
    }

    #[inline(always)]
    fn rstd(self) -> u32 {
        let tensors = if RESIDUAL { 3 } else { 2 };
        self.vector(tensors, 0) - 12 * thread::thread_idx_x()
    }

    /// Starts to copy row `row`, if there is one, to the current stage, and moves on.
    ///
    /// # Safety
    /// - `p` describes live buffers of p.rows rows, as [`Columns::load`] wants them; shared
    ///   memory holds the ring.
    /// - The stage was read, or never filled.
    #[inline(always)]
    pub unsafe fn fill(&mut self, p: &BackwardParams, columns: Columns<VECTORS>, row: u32) {
        if row < p.rows {
            unroll::<VECTORS>(|v| {
                if columns.holds(v) {
                    let column = columns.column(v) as usize;
                    let copy = |tensor: u32, base: *const u16, stride: i64| {
                        // SAFETY: inside the row; the places are the thread's own.
                        unsafe {
                            let source = row_start(base, row, stride).add(column);
                            async_copy::copy_words4(self.vector(tensor, v), source.cast());
                        }
                    };
                    copy(0, p.dy, p.dy_stride);
                    copy(1, p.x, p.x_stride);
                    if RESIDUAL {
                        copy(2, p.dh, p.dh_stride);
                    }
                }
            });
            // SAFETY: rstd has an element a row.
            unsafe { async_copy::copy_f32(self.rstd(), p.rstd.add(row as usize)) };
        }
        async_copy::commit_group();
        self.stage = if self.stage + 1 == STAGES as u32 { 0 } else { self.stage + 1 };
    }

    /// Waits for the row of the current stage, `STAGES` fills after the first.
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

    /// The row of the current stage, without its residual gradient. Reading it twice is cheaper
    /// than to hold it in registers while dw is summed.
    ///
    /// # Safety
    /// - The stage was filled with a row, and waited for.
    #[inline(always)]
    pub unsafe fn read(&self, columns: Columns<VECTORS>) -> RowWords<VECTORS> {
        let mut words = RowWords::default();
        // SAFETY: the thread's own places, whose copies have arrived.
        unsafe {
            unroll::<VECTORS>(|v| {
                if columns.holds(v) {
                    words.dy[v] = shared::load_words4(self.vector(0, v));
                    words.x[v] = shared::load_words4(self.vector(1, v));
                }
            });
            words.rstd = shared::load_f32(self.rstd());
        }
        words
    }

    /// As [`Ring::read`], with the residual gradient.
    ///
    /// # Safety
    /// - As [`Ring::read`].
    #[inline(always)]
    pub unsafe fn read_all(&self, columns: Columns<VECTORS>) -> RowWords<VECTORS> {
        // SAFETY: the caller's obligation.
        let mut words = unsafe { self.read(columns) };
        unroll::<VECTORS>(|v| {
            if RESIDUAL && columns.holds(v) {
                // SAFETY: the thread's own place, whose copy has arrived.
                words.dh[v] = unsafe { shared::load_words4(self.vector(2, v)) };
            }
        });
        words
    }
}
