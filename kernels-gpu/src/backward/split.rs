//! Backward in one launch: row tasks for dx beside column tasks for dw.
//!
//! dw does not need dx, so neither waits for the other: no workspace, no atomics. x and dy are
//! read twice, the second time from L2 when T is small, which is what this program is for. It is
//! also the program of rows too wide for [`super::block`].

use crate::arith::{LANE_ELEMENTS, TILE, accumulate, backward_scale, unroll, widen};
use crate::backward::reduce::{Chunk, Columns32, chunk_counter, store_dw};
use crate::backward::row::{RowWords, dx_start};
use crate::device::{global, shared, thread};
use crate::params::BackwardParams;
use crate::row_sum::{BlockSum, Group, TileSums};
use crate::rows::{Columns, NO_WORDS, Weight, row_start, weights};
use crate::tree::{WIDTH, empty, fold_narrow};

/// Rows that a column task loads at once.
const BATCH: usize = 2;

/// Column tasks of a row of `hidden` elements: 32 columns each.
#[must_use]
#[inline(always)]
pub const fn column_tasks(hidden: u32) -> u32 {
    hidden.div_ceil(WIDTH * LANE_ELEMENTS as u32)
}

/// The column tasks of a launch: none where dw is not wanted.
#[inline(always)]
fn dw_tasks(p: &BackwardParams) -> u32 {
    if p.dw.wanted() {
        column_tasks(p.hidden)
    } else {
        0
    }
}

/// Blocks 0 … [`column_tasks`] − 1 sum dw of 32 columns each; the others take a row of dx. There are no
/// column tasks where dw is not wanted; without further blocks there is no dx. Rows may come in
/// groups.
///
/// Contract: as many blocks as column tasks, and T more or none; blocks of whole warps, at most 16,
/// with `VECTORS · 256` elements a warp covering H, and threads / 4 ≥ leaves; shared memory of
/// [`super::reduce::shared_bytes`] and of [`crate::row_sum::SCRATCH_BYTES`], whichever is larger;
/// 16-byte aligned bases, row strides and H multiples of 8.
///
/// # Safety
/// - `p` describes live buffers as [`BackwardParams`] says, and outputs overlap nothing.
/// - The launch keeps the contract.
#[inline(always)]
pub unsafe fn split<W: Weight, const VECTORS: usize, const RESIDUAL: bool>(p: &BackwardParams) {
    let tasks = dw_tasks(p);
    let task = thread::block_idx_x();
    // SAFETY: the branch is the block's, so its threads meet at the same barriers.
    unsafe {
        if task < tasks {
            columns_of_dw::<false>(p);
            return;
        }
        let columns = Columns::<VECTORS>::of_warp(thread::thread_idx_x() / 32, p.hidden);
        let mut sums = BlockSum::new(shared::base(), Group::block());
        let row = task - tasks;
        // First: what follows waits for the row's rstd.
        let kept = columns.load_weight::<W>(p.w);
        let words = RowWords::<VECTORS>::load::<RESIDUAL>(p, columns, u64::from(row));
        let kept = weights::<W, VECTORS>(kept, p.weight_offset);
        let w = |v: usize| kept[v];
        let dot = sums.sum(words.dots(w));
        let out = dx_start::<true>(p, row);
        words.forget().store_dx::<RESIDUAL>(p, columns, out, w, dot);
    }
}

/// As [`split`], for rows of any width up to 65,536: a row task goes over its row twice.
///
/// Contract: as [`split`], without the condition on `VECTORS`; at least as many blocks as column
/// tasks, and (threads / 4) · 2^run_log2 ≥ leaves.
///
/// # Safety
/// - As [`split`].
#[inline(always)]
pub unsafe fn split_wide<W: Weight, const RESIDUAL: bool>(p: &BackwardParams) {
    let tasks = dw_tasks(p);
    // SAFETY: the branch is the block's, so its threads meet at the same barriers.
    unsafe {
        if thread::block_idx_x() < tasks {
            columns_of_dw::<true>(p);
            return;
        }
        let mut row = thread::block_idx_x() - tasks;
        while row < p.rows {
            wide_row::<W, RESIDUAL>(p, row);
            let next = u64::from(row) + u64::from(thread::grid_dim_x() - tasks);
            row = next.min(u64::from(u32::MAX)) as u32;
        }
    }
}

/// dx of one row of any width.
///
/// # Safety
/// - As [`split`]; every thread of the block is here with the same row.
#[inline(always)]
unsafe fn wide_row<W: Weight, const RESIDUAL: bool>(p: &BackwardParams, row: u32) {
    let thread = thread::thread_idx_x();
    let (warp, warps) = (thread / 32, thread::block_dim_x() / 32);
    let tiles = p.hidden.div_ceil(TILE);
    let sums = TileSums::new(shared::base());
    // SAFETY: tiles are the warp's; the row is inside the buffers and the weight, and each
    // thread alone writes its columns of dx.
    unsafe {
        let load = |tile: u32| {
            let columns = Columns::<1>::of_warp(tile, p.hidden);
            let words = RowWords::<1>::load::<RESIDUAL>(p, columns, u64::from(row));
            (
                columns,
                words,
                weights::<W, 1>(columns.load_weight::<W>(p.w), p.weight_offset)[0],
            )
        };
        let mut tile = warp;
        while tile < tiles {
            let (_, words, w) = load(tile);
            sums.publish(tile, words.dots(|_| w)[0]);
            tile += warps;
        }
        let dot = sums.finish(tiles);
        let mut tile = warp;
        while tile < tiles {
            let (columns, words, w) = load(tile);
            let out = dx_start::<true>(p, row);
            words.store_dx::<RESIDUAL>(p, columns, out, |_| w, dot);
            tile += warps;
        }
        // The tile sums are read until here; the next row writes them.
        thread::sync_threads();
    }
}

/// dw of 32 columns: position i ([`WIDTH`] threads) sums leaf i, or where `MANY` is set leaves
/// i·2^run_log2 and following.
///
/// # Safety
/// - As [`split`]; every thread of the block is here.
#[inline(always)]
unsafe fn columns_of_dw<const MANY: bool>(p: &BackwardParams) {
    let position = thread::thread_idx_x() / WIDTH;
    let column = Columns32::of_block(thread::block_idx_x(), p.hidden);
    let leaf_mask = (1u32 << p.leaf_log2) - 1;
    let leaves = (p.rows + leaf_mask) >> p.leaf_log2;
    let run_log2 = if MANY { p.run_log2 } else { 0 };
    let chunk = Chunk::of_position(position, leaves, run_log2);
    let counter = chunk_counter(run_log2);
    let end = p.rows.min((chunk.first + chunk.count) << p.leaf_log2);

    let mut node = empty::<1>();
    let mut row = chunk.first << p.leaf_log2;
    while row < end {
        // A batch of rows in flight, then their additions.
        let mut words = [(NO_WORDS, NO_WORDS, 0.0); BATCH];
        unroll!(BATCH, |i| {
            let row = row + i as u32;
            if row < end && column.inside {
                let first = column.first as usize;
                // SAFETY: the row and the columns are inside the buffers.
                words[i] = unsafe {
                    (
                        global::load_stream_words4(
                            row_start::<true>(p.dy, row, p.dy_stride, p.groups)
                                .add(first)
                                .cast(),
                        ),
                        global::load_stream_words4(
                            row_start::<true>(p.x, row, p.x_stride, p.groups)
                                .add(first)
                                .cast(),
                        ),
                        global::load_f32(p.rstd.add(row as usize)),
                    )
                };
            }
        });
        unroll!(BATCH, |i| {
            let row = row + i as u32;
            if row < end {
                let (dy, mut x, mut rstd) = words[i];
                if let Some(scale) = backward_scale(rstd) {
                    x = scale.apply_words(x);
                    rstd *= scale.inverse;
                }
                accumulate(&mut node[0], &widen(dy), &widen(x), rstd);
                let last = row + 1 == end;
                if MANY && ((row + 1) & leaf_mask == 0 || last) {
                    // SAFETY: this position's leaves come in order.
                    let complete = unsafe { counter.push(row >> p.leaf_log2, last, &mut node) };
                    if !complete {
                        node = empty();
                    }
                }
            }
        });
        row += BATCH as u32;
    }

    // SAFETY: every thread of the block is here; dw has H elements.
    unsafe {
        let root = fold_narrow(shared::base(), &node[0], chunk.positions);
        store_dw(&p.dw, p.hidden, root);
    }
}
