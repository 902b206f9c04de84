//! Forward: with h = x, or h = BF16(x ⊕ residual),
//!
//! ```text
//! rstd = 1 / sqrt(Σ h² / H ⊕ eps)      y = BF16((h ⊗ rstd) ⊗ w)
//! ```
//!
//! (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.) x is read once. Both
//! kernels need 16-byte aligned bases, row strides that are multiples of 8 and H a multiple of 8.
//! The grid is free: rows are dealt out in turn, and no bit depends on who takes which.

use crate::arith::{
    Lane, RowScale, add_residual, canonical, lane_dot, mean_square, narrow, normalise,
    reciprocal_root, scaled_rstd, unroll, widen,
};
use crate::device::{Words4, global, shared, thread};
use crate::params::ForwardParams;
use crate::row_sum::{BlockSum, warp_row_sum};
use crate::rows::{Columns, NO_WORDS, Weight, row_start, row_start_mut};

/// One block a row at a time: warp i holds tiles `VECTORS · i` and following.
///
/// Contract: blocks of a multiple of 32 threads with `VECTORS · 256` elements a warp covering H;
/// [`crate::row_sum::SCRATCH_BYTES`] of shared memory.
///
/// # Safety
/// - `p` describes live buffers as [`ForwardParams`] says, and outputs overlap nothing.
/// - The launch keeps the contract.
#[inline(always)]
pub unsafe fn block<W: Weight, const VECTORS: usize, const RESIDUAL: bool>(p: &ForwardParams) {
    let columns = Columns::<VECTORS>::of_warp(thread::thread_idx_x() / 32, p.hidden);
    let mut sums = BlockSum::new(shared::base());
    // SAFETY: every thread of the block makes the same number of sums: rows are the block's.
    unsafe {
        rows::<W, VECTORS, RESIDUAL>(
            p,
            columns,
            thread::block_idx_x(),
            thread::grid_dim_x(),
            thread::thread_idx_x() == 0,
            |values| sums.sum(values),
        );
    }
}

/// One warp a row at a time, for at most `VECTORS` tiles (H ≤ 256 · `VECTORS` ≤ 1024).
///
/// Contract: blocks of a multiple of 32 threads; no shared memory.
///
/// # Safety
/// - As [`block`].
#[inline(always)]
pub unsafe fn warp<W: Weight, const VECTORS: usize, const RESIDUAL: bool>(p: &ForwardParams) {
    let columns = Columns::<VECTORS>::of_warp(0, p.hidden);
    let warps = thread::block_dim_x() / 32;
    let (thread, block) = (thread::thread_idx_x(), thread::block_idx_x());
    // SAFETY: all lanes of a warp make the same number of sums: rows are the warp's.
    unsafe {
        rows::<W, VECTORS, RESIDUAL>(
            p,
            columns,
            block * warps + thread / 32,
            thread::grid_dim_x() * warps,
            thread % 32 == 0,
            |values| warp_row_sum(values),
        );
    }
}

/// Rows `first`, `first + step`, …: the body of both kernels. `sum` adds over the threads that
/// share a row, `leader` is true in one of them.
///
/// # Safety
/// - As [`block`]; `sum` may be called by all threads that share the rows.
#[inline(always)]
unsafe fn rows<W: Weight, const VECTORS: usize, const RESIDUAL: bool>(
    p: &ForwardParams,
    columns: Columns<VECTORS>,
    first: u32,
    step: u32,
    leader: bool,
    mut sum: impl FnMut([f32; VECTORS]) -> f32,
) {
    // Wide rows have no registers left for the weight, and the widest none for the next row.
    let keep_weight = VECTORS <= 2;
    let prefetch = VECTORS <= 4;
    let hidden = p.hidden as f32;

    // SAFETY: rows below p.rows are inside the buffers, as the caller promises.
    let load = |row: u64| unsafe { load_row::<VECTORS, RESIDUAL>(p, columns, row) };
    let mut row = u64::from(first);
    let mut next = load(row);
    // SAFETY: the weight has H elements.
    let kept = if keep_weight { unsafe { columns.load_weight::<W>(p.w) } } else { [[0.0; 8]; VECTORS] };

    while row < u64::from(p.rows) {
        let current = if prefetch || row == u64::from(first) { next } else { load(row) };
        if prefetch {
            next = load(row + u64::from(step));
        }
        let row_index = row as u32;
        let mut h = current.x;
        if RESIDUAL {
            let out = row_start_mut(p.h, row_index, p.h_stride);
            unroll::<VECTORS>(|v| {
                h[v] = add_residual(h[v], current.residual[v]);
                // SAFETY: the row is inside h, and this thread alone writes its columns.
                unsafe { columns.store(out, v, h[v]) };
            });
        }

        let mut squares = [0.0; VECTORS];
        unroll::<VECTORS>(|v| squares[v] = lane_dot(&widen(h[v]), &widen(h[v])));
        let (mean, rescue) = mean_square(sum(squares), hidden, p.eps);
        let out = row_start_mut(p.y, row_index, p.y_stride);
        let weight = |v: usize| {
            // SAFETY: asked only for vectors inside the row, hence inside the weight.
            if keep_weight { kept[v] } else { unsafe { W::load(p.w, columns.column(v)) } }
        };
        let rstd = match rescue {
            None => {
                let rstd = reciprocal_root(mean);
                // SAFETY: the row is inside y, and this thread alone writes its columns.
                unsafe { store_row(columns, out, &h, rstd, weight, |h| h) };
                rstd
            }
            Some(scale) => {
                let rstd = redo_sum(&h, scale, &mut sum, hidden, p.eps);
                // SAFETY: the row is inside y, and this thread alone writes its columns.
                unsafe { store_row(columns, out, &h, rstd, weight, |h| scale.apply(&h)) };
                rstd * scale.scale
            }
        };
        if leader {
            // SAFETY: rstd has an element a row, and the leader alone writes it.
            unsafe { global::store_f32(p.rstd.add(row_index as usize), canonical(rstd)) };
        }
        row += u64::from(step);
    }
}

/// rstd of the row times 1 / scale, from the sum over the scaled row.
#[inline(always)]
fn redo_sum<const VECTORS: usize>(
    h: &[Words4; VECTORS],
    scale: RowScale,
    sum: &mut impl FnMut([f32; VECTORS]) -> f32,
    hidden: f32,
    eps: f32,
) -> f32 {
    let mut squares = [0.0; VECTORS];
    unroll::<VECTORS>(|v| {
        let scaled = scale.apply(&widen(h[v]));
        squares[v] = lane_dot(&scaled, &scaled);
    });
    scaled_rstd(sum(squares), hidden, eps, scale)
}

/// y = BF16((scaled(h) ⊗ rstd) ⊗ w) for a thread's part of a row.
///
/// # Safety
/// - `out` points to a row as [`Columns::store`] wants it.
#[inline(always)]
unsafe fn store_row<const VECTORS: usize>(
    columns: Columns<VECTORS>,
    out: *mut u16,
    h: &[Words4; VECTORS],
    rstd: f32,
    weight: impl Fn(usize) -> Lane,
    scaled: impl Fn(Lane) -> Lane,
) {
    unroll::<VECTORS>(|v| {
        if columns.holds(v) {
            let y = normalise(&scaled(widen(h[v])), rstd, &weight(v));
            // SAFETY: the caller's obligation.
            unsafe { columns.store(out, v, narrow(&y)) };
        }
    });
}

/// A thread's part of a row.
#[derive(Clone, Copy)]
struct RowWords<const VECTORS: usize> {
    x: [Words4; VECTORS],
    residual: [Words4; VECTORS],
}

/// Loads a thread's part of a row; zeros past the last row.
///
/// # Safety
/// - The buffers hold p.rows rows.
#[inline(always)]
unsafe fn load_row<const VECTORS: usize, const RESIDUAL: bool>(
    p: &ForwardParams,
    columns: Columns<VECTORS>,
    row: u64,
) -> RowWords<VECTORS> {
    let mut words = RowWords { x: [NO_WORDS; VECTORS], residual: [NO_WORDS; VECTORS] };
    if row < u64::from(p.rows) {
        let row = row as u32;
        // SAFETY: the row is inside both buffers.
        unsafe {
            words.x = columns.load(row_start(p.x, row, p.x_stride));
            if RESIDUAL {
                words.residual = columns.load(row_start(p.residual, row, p.residual_stride));
            }
        }
    }
    words
}
