//! Forward: with h = x, or h = BF16(x ⊕ residual),
//!
//! ```text
//! rstd = 1 / sqrt(Σ h² / H ⊕ eps)      y = BF16((h ⊗ rstd) ⊗ w)
//! ```
//!
//! (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.) x is read once. Both
//! kernels need 16-byte aligned bases, strides that are multiples of 8 and H a multiple of 8.
//! The grid is free: rows are dealt out in turn, and no bit depends on
//! who takes which.

use crate::arith::{
    Lane, RowScale, TILE, add_residual, canonical, lane_dot, mean_square, narrow, normalise,
    reciprocal_root, rescued_rstd, unroll, widen,
};
use crate::device::{Words4, global, hint, shared, thread};
use crate::params::ForwardParams;
use crate::ring::{Ring, Source, ring_bytes};
use crate::row_sum::{BlockSum, Group, SCRATCH_BYTES, TileSums, warp_row_sum};
use crate::rows::{Columns, NO_WORDS, Weight, forget, row_start, row_start_mut, weight_lane};

/// One block a row at a time: warp i holds tiles `VECTORS · i` and following. The next row is loaded
/// to registers while one is worked on: best where a block has one or two rows.
///
/// Contract: blocks of a multiple of 32 threads with `VECTORS · 256` elements a warp covering H;
/// [`SCRATCH_BYTES`] of shared memory.
///
/// # Safety
/// - `p` describes live buffers as [`ForwardParams`] says, and outputs overlap nothing.
/// - The launch keeps the contract.
#[inline(always)]
pub unsafe fn block<W: Weight, const VECTORS: usize, const RESIDUAL: bool>(p: &ForwardParams) {
    let columns = Columns::<VECTORS>::of_warp(thread::thread_idx_x() / 32, p.hidden);
    let mut sums = BlockSum::new(shared::base(), Group::block());
    let turn = Turn::of_block();
    // SAFETY: every thread of the block makes the same number of sums: rows are the block's.
    unsafe {
        let fetch = prefetched::<VECTORS, RESIDUAL, false>(p, columns, turn);
        rows::<W, VECTORS, RESIDUAL, false>(p, columns, columns, turn, fetch, |values| {
            sums.sum(values)
        });
    }
}

/// As [`block`], with rows that travel through a [`Ring`] of `STAGES`: best for many rows a block.
/// `TENSORS` is 1, or 2 in the residual form.
///
/// Contract: as [`block`], with shared memory as [`ring_shared_bytes`] says.
///
/// # Safety
/// - As [`block`].
#[inline(always)]
pub unsafe fn ring<W: Weight, const VECTORS: usize, const STAGES: usize, const TENSORS: usize>(
    p: &ForwardParams,
) {
    let columns = Columns::<VECTORS>::of_warp(thread::thread_idx_x() / 32, p.hidden);
    let mut sums = BlockSum::new(shared::base(), Group::block());
    let mut ring = Ring::<VECTORS, 1, STAGES, TENSORS, false>::new(shared::base() + SCRATCH_BYTES);
    let turn = Turn::of_block();
    let sources = {
        let all = [
            Source {
                base: p.x,
                stride: p.x_stride,
            },
            Source {
                base: p.residual,
                stride: p.residual_stride,
            },
        ];
        let mut sources = [all[0]; TENSORS];
        unroll!(TENSORS, |tensor| sources[tensor] = all[tensor]);
        sources
    };
    let mut coming = u64::from(turn.first);
    // SAFETY: rows below p.rows are inside the buffers; a stage is filled again only after it
    // was read.
    let mut fill = |ring: &mut Ring<VECTORS, 1, STAGES, TENSORS, false>| unsafe {
        let count = u32::from(coming < u64::from(p.rows));
        let row = coming as u32;
        ring.fill::<false>(columns, sources, p.groups, core::ptr::null(), row, count);
        coming += u64::from(turn.step);
    };
    unroll!(STAGES, |_| fill(&mut ring));
    let fetch = |_row: u64| {
        ring.wait();
        let mut words = RowWords {
            x: [NO_WORDS; VECTORS],
            residual: [NO_WORDS; VECTORS],
        };
        // SAFETY: the stage has the row.
        unsafe {
            words.x = ring.vectors(columns, 0, 0);
            if TENSORS > 1 {
                words.residual = ring.vectors(columns, 0, 1);
            }
        }
        fill(&mut ring);
        words
    };
    // SAFETY: every thread of the block makes the same number of sums: rows are the block's.
    unsafe {
        if TENSORS > 1 {
            rows::<W, VECTORS, true, false>(p, columns, columns, turn, fetch, |values| {
                sums.sum(values)
            });
        } else {
            rows::<W, VECTORS, false, false>(p, columns, columns, turn, fetch, |values| {
                sums.sum(values)
            });
        }
    }
}

/// Rows under way in [`ring`]: what measured best. More loads in flight than this take bandwidth
/// from the stores.
#[must_use]
#[inline(always)]
pub const fn ring_stages(vectors: usize, residual: bool) -> usize {
    match (vectors, residual) {
        (2, false) => 1,
        (2, true) => 3,
        _ => 2,
    }
}

/// Bytes of shared memory that [`ring`] needs.
#[must_use]
pub const fn ring_shared_bytes(vectors: u32, residual: bool, threads: u32) -> u32 {
    let stages = ring_stages(vectors as usize, residual) as u32;
    let tensors = if residual { 2 } else { 1 };
    SCRATCH_BYTES + ring_bytes(vectors, 1, stages, tensors, false, threads)
}

/// One warp a row at a time, for at most `VECTORS` tiles (H ≤ 256 · `VECTORS` ≤ 1024). With `GENERAL`,
/// rows may come in groups, and without columns of y there is rstd alone.
///
/// Contract: blocks of a multiple of 32 threads; no shared memory.
///
/// # Safety
/// - As [`block`].
#[inline(always)]
pub unsafe fn warp<W: Weight, const VECTORS: usize, const RESIDUAL: bool, const GENERAL: bool>(
    p: &ForwardParams,
) {
    let columns = Columns::<VECTORS>::of_warp(0, p.hidden);
    let y_columns = if GENERAL {
        columns.below(p.y_columns)
    } else {
        columns
    };
    let warps = thread::block_dim_x() / 32;
    let (thread, block) = (thread::thread_idx_x(), thread::block_idx_x());
    let turn = Turn {
        first: block * warps + thread / 32,
        step: thread::grid_dim_x() * warps,
        leader: thread.is_multiple_of(32),
    };
    // SAFETY: all lanes of a warp make the same number of sums: rows are the warp's.
    unsafe {
        let fetch = prefetched::<VECTORS, RESIDUAL, GENERAL>(p, columns, turn);
        rows::<W, VECTORS, RESIDUAL, GENERAL>(p, columns, y_columns, turn, fetch, |values| {
            warp_row_sum(values)
        });
    }
}

/// The rows that threads who share rows take: `first`, `first + step`, …
#[derive(Clone, Copy)]
struct Turn {
    first: u32,
    step: u32,
    /// True in one of the threads that share a row.
    leader: bool,
}

impl Turn {
    /// Rows of the whole block.
    #[inline(always)]
    fn of_block() -> Self {
        Self {
            first: thread::block_idx_x(),
            step: thread::grid_dim_x(),
            leader: thread::thread_idx_x() == 0,
        }
    }
}

/// Gives out the thread's part of rows in turn; each was loaded a turn before.
///
/// # Safety
/// - As [`block`].
#[inline(always)]
unsafe fn prefetched<const VECTORS: usize, const RESIDUAL: bool, const GROUPED: bool>(
    p: &ForwardParams,
    columns: Columns<VECTORS>,
    turn: Turn,
) -> impl FnMut(u64) -> RowWords<VECTORS> {
    // SAFETY: rows below p.rows are inside the buffers, as the caller promises.
    let load = move |row: u64| unsafe { load_row::<VECTORS, RESIDUAL, GROUPED>(p, columns, row) };
    let mut next = load(u64::from(turn.first));
    move |row| {
        let current = next;
        next = load(row + u64::from(turn.step));
        current
    }
}

/// One block a row at a time, for rows of any width up to 65,536: goes over the row twice, the
/// second time from L1 or L2. Rows may come in groups. Without columns of y there is rstd alone.
///
/// Contract: blocks of a multiple of 32 threads; [`crate::row_sum::SCRATCH_BYTES`] of shared memory.
///
/// # Safety
/// - As [`block`].
#[inline(always)]
pub unsafe fn wide<W: Weight, const RESIDUAL: bool>(p: &ForwardParams) {
    let mut row = u64::from(thread::block_idx_x());
    while row < u64::from(p.rows) {
        // SAFETY: the row is the block's.
        unsafe { wide_row::<W, RESIDUAL>(p, row as u32) };
        row += u64::from(thread::grid_dim_x());
    }
}

/// One row of any width.
///
/// # Safety
/// - As [`block`]; every thread of the block is here, with the same row.
#[inline(always)]
unsafe fn wide_row<W: Weight, const RESIDUAL: bool>(p: &ForwardParams, row: u32) {
    let (warp, warps) = (thread::thread_idx_x() / 32, thread::block_dim_x() / 32);
    let tiles = p.hidden.div_ceil(TILE);
    let hidden = p.hidden as f32;
    let sums = TileSums::new(shared::base());
    let columns_of = |tile: u32| Columns::<1>::of_warp(tile, p.hidden);
    // SAFETY: the row is inside the buffers; rows are the block's, tiles the warp's, and each
    // thread alone touches its columns of h and y.
    unsafe {
        let load = |tile: u32| {
            let words = load_row::<1, RESIDUAL, true>(p, columns_of(tile), u64::from(row));
            if RESIDUAL {
                add_residual(words.x[0], words.residual[0])
            } else {
                words.x[0]
            }
        };
        let sum = |scale: Option<RowScale>| {
            let mut tile = warp;
            while tile < tiles {
                let h = scaled(load(tile), scale);
                sums.publish(tile, lane_dot(&h, &h));
                tile = hint::forget(tile) + warps;
            }
            let sum = sums.finish(tiles);
            // The tile sums are read until here; the next sum writes them.
            thread::sync_threads();
            sum
        };
        let (mean, rescue) = mean_square(sum(None), hidden, p.eps);
        let rstd = match rescue {
            None => reciprocal_root(mean),
            Some(scale) => rescued_rstd(sum(rescue), hidden, p.eps, scale),
        };
        let mut tile = warp;
        while tile < tiles {
            let columns = columns_of(tile);
            if columns.holds(0) {
                let h = load(tile);
                if RESIDUAL {
                    let out = row_start_mut::<true>(p.h, row, p.h_stride, p.groups);
                    columns.store(out, 0, h);
                }
                let w = weight_lane::<W>(p.w, p.weight_offset, columns.first);
                let y = normalise(&widen(h), rstd, &w);
                let out = row_start_mut::<true>(p.y, row, p.y_stride, p.groups);
                columns.below(p.y_columns).store(out, 0, narrow(&y));
            }
            tile = hint::forget(tile) + warps;
        }
        if thread::thread_idx_x() == 0 && !p.rstd.is_null() {
            global::store_f32(p.rstd.add(row as usize), canonical(rstd));
        }
    }
}

/// A vector's elements, scaled for a row that is redone.
#[inline(always)]
fn scaled(words: Words4, scale: Option<RowScale>) -> Lane {
    let lane = widen(words);
    match scale {
        None => lane,
        Some(scale) => scale.apply(&lane),
    }
}

/// The rows of a turn: the body of all but [`wide`]. `fetch` gives out the thread's part of the
/// rows in turn, `sum` adds over the threads that share a row, `y_columns` are stored of y.
///
/// # Safety
/// - As [`block`]; `sum` may be called by all threads that share the rows.
#[inline(always)]
unsafe fn rows<W: Weight, const VECTORS: usize, const RESIDUAL: bool, const GROUPED: bool>(
    p: &ForwardParams,
    columns: Columns<VECTORS>,
    y_columns: Columns<VECTORS>,
    turn: Turn,
    mut fetch: impl FnMut(u64) -> RowWords<VECTORS>,
    mut sum: impl FnMut([f32; VECTORS]) -> f32,
) {
    // Wide rows have no registers left for the weight.
    let keep_weight = VECTORS <= 2;
    let hidden = p.hidden as f32;
    let kept = if keep_weight {
        // SAFETY: the weight has H elements.
        unsafe { columns.load_weight::<W>(p.w, p.weight_offset) }
    } else {
        [[0.0; 8]; VECTORS]
    };

    let mut row = u64::from(turn.first);
    while row < u64::from(p.rows) {
        let current = fetch(row);
        let row_index = row as u32;
        let mut h = current.x;
        if RESIDUAL {
            let out = row_start_mut::<GROUPED>(p.h, row_index, p.h_stride, p.groups);
            unroll!(VECTORS, |v| {
                h[v] = add_residual(h[v], current.residual[v]);
                // SAFETY: the row is inside h, and this thread alone writes its columns.
                unsafe { columns.store(out, v, h[v]) };
            });
        }

        let mut squares = [0.0; VECTORS];
        unroll!(VECTORS, |v| squares[v] =
            lane_dot(&widen(h[v]), &widen(h[v])));
        let (mean, rescue) = mean_square(sum(squares), hidden, p.eps);
        let h = forget(h);
        let out = row_start_mut::<GROUPED>(p.y, row_index, p.y_stride, p.groups);
        let weight = |v: usize| {
            if keep_weight {
                kept[v]
            } else {
                // SAFETY: asked only for vectors inside the row, hence inside the weight.
                unsafe { weight_lane::<W>(p.w, p.weight_offset, columns.column(v)) }
            }
        };
        let rstd = match rescue {
            None => reciprocal_root(mean),
            Some(scale) => redo_sum(&h, scale, &mut sum, hidden, p.eps),
        };
        // SAFETY: the row is inside y, and this thread alone writes its columns.
        unsafe { store_row(y_columns, out, &h, rstd, weight) };
        if turn.leader && !p.rstd.is_null() {
            // SAFETY: rstd has an element a row, and the leader alone writes it.
            unsafe { global::store_f32(p.rstd.add(row_index as usize), canonical(rstd)) };
        }
        row += u64::from(turn.step);
    }
}

/// rstd of the row, from the sum over the scaled row.
#[inline(always)]
fn redo_sum<const VECTORS: usize>(
    h: &[Words4; VECTORS],
    scale: RowScale,
    sum: &mut impl FnMut([f32; VECTORS]) -> f32,
    hidden: f32,
    eps: f32,
) -> f32 {
    let mut squares = [0.0; VECTORS];
    unroll!(VECTORS, |v| {
        let scaled = scale.apply(&widen(h[v]));
        squares[v] = lane_dot(&scaled, &scaled);
    });
    rescued_rstd(sum(squares), hidden, eps, scale)
}

/// y = BF16((h ⊗ rstd) ⊗ w) for a thread's part of a row.
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
) {
    unroll!(VECTORS, |v| {
        if columns.holds(v) {
            let y = normalise(&widen(h[v]), rstd, &weight(v));
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
unsafe fn load_row<const VECTORS: usize, const RESIDUAL: bool, const GROUPED: bool>(
    p: &ForwardParams,
    columns: Columns<VECTORS>,
    row: u64,
) -> RowWords<VECTORS> {
    let mut words = RowWords {
        x: [NO_WORDS; VECTORS],
        residual: [NO_WORDS; VECTORS],
    };
    if row < u64::from(p.rows) {
        let row = row as u32;
        // SAFETY: the row is inside both buffers.
        unsafe {
            words.x = columns.load(row_start::<GROUPED>(p.x, row, p.x_stride, p.groups));
            if RESIDUAL {
                let residual = row_start::<GROUPED>(p.residual, row, p.residual_stride, p.groups);
                words.residual = columns.load(residual);
            }
        }
    }
    words
}
