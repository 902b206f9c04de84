//! Forward: with h = x, or h = BF16(x ⊕ residual),
//!
//! ```text
//! rstd = 1 / sqrt(Σ h² / H ⊕ eps)      y = BF16((h ⊗ rstd) ⊗ w)
//! ```
//!
//! (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.) x is read from memory once.
//! All kernels need 16-byte aligned bases, row strides that are multiples of 8 and H a multiple
//! of 8. A block (or warp) does its row and ends: many small blocks that start one after the other
//! keep memory busier than a few that stay, since their loads and stores spread over time. Without
//! columns of y there is rstd alone. Rows may come in groups unless a program says otherwise.

use crate::arith::{
    Lane, RowScale, TILE, Width, add_residual, canonical, lane_dot, mean_square, narrow, normalise,
    reciprocal_root, rescued_rstd, unroll, widen,
};
use crate::device::{Words4, global, hint, shared, thread};
use crate::params::ForwardParams;
use crate::row_sum::{BlockSum, Group, TileSums, lane_row, leads_row, of_row, warp_row_sums};
use crate::rows::{Columns, NO_WORDS, Weight, forget, row_start, row_start_mut, weights};

/// One block a row: warp i holds tiles `VECTORS · i` and following. Where `REREAD` is set, the plain
/// form drops x after the sum and reads it again from L1: without the registers for it more rows are
/// under way on a multiprocessor. Without it the weight is loaded along with x: best for few rows.
///
/// Contract: a block for each row, of a multiple of 32 threads with `VECTORS · 256` elements a warp
/// covering H; [`crate::row_sum::SCRATCH_BYTES`] of shared memory.
///
/// # Safety
/// - `p` describes live buffers as [`ForwardParams`] says, and outputs overlap nothing.
/// - The launch keeps the contract.
#[inline(always)]
pub unsafe fn block<W: Weight, const VECTORS: usize, const REREAD: bool, const RESIDUAL: bool>(
    p: &ForwardParams,
) {
    let columns = Columns::<VECTORS>::of_warp(thread::thread_idx_x() / 32, p.hidden);
    let mut sums = BlockSum::new(shared::base(), Group::block());
    let row = thread::block_idx_x();
    let x = row_start::<true>(p.x, row, p.x_stride, p.groups);
    let reread = REREAD && !RESIDUAL;
    // SAFETY: the row is the block's, so every thread makes the same sums; it is inside the
    // buffers, and each thread alone touches its columns of h and y.
    unsafe {
        let mut h = if reread {
            columns.load_keep(x)
        } else {
            load_h::<VECTORS, RESIDUAL, true>(p, columns, row)
        };
        let mut w = [W::ZEROS; VECTORS];
        if !REREAD {
            w = columns.load_weight::<W>(p.w);
        }
        let (mean, rescue) = mean_square(sums.sum(squares(&h)), Width::new(p.hidden), p.eps);
        let rstd = match rescue {
            None => reciprocal_root(mean),
            Some(scale) => {
                if reread {
                    h = columns.load_keep(x);
                }
                let sum = sums.sum(scaled_squares(&forget(h), scale));
                rescued_rstd(sum, Width::new(p.hidden), p.eps, scale)
            }
        };
        if REREAD {
            w = columns.load_weight::<W>(p.w);
        }
        h = if reread {
            columns.load_last(x)
        } else {
            forget(h)
        };
        let out = row_start_mut::<true>(p.y, row, p.y_stride, p.groups);
        let w = weights::<W, VECTORS>(w, p.weight_offset);
        store_row(columns.below(p.y_columns), out, &h, rstd, &w);
        if thread::thread_idx_x() == 0 && !p.rstd.is_null() {
            global::store_f32(p.rstd.add(row as usize), canonical(rstd));
        }
    }
}

/// One warp for `ROWS` neighbouring rows, for at most `VECTORS` tiles (H ≤ 256 · `VECTORS` ≤ 1024).
///
/// Rows may come in groups where `ROWS` is 1 alone.
///
/// The rows' sums share their exchange steps, and their reciprocal roots are worked out side by
/// side, each in its own lanes.
///
/// Contract: enough blocks of a multiple of 32 threads for all rows; no shared memory.
///
/// # Safety
/// - As [`block`].
#[inline(always)]
pub unsafe fn warp<W: Weight, const VECTORS: usize, const ROWS: usize, const RESIDUAL: bool>(
    p: &ForwardParams,
) {
    let columns = Columns::<VECTORS>::of_warp(0, p.hidden);
    let (thread, block) = (thread::thread_idx_x(), thread::block_idx_x());
    let warps = u64::from(thread::block_dim_x() / 32);
    let first = (u64::from(block) * warps + u64::from(thread / 32)) * ROWS as u64;
    if first >= u64::from(p.rows) {
        return;
    }
    let first = first as u32;
    let count = p.rows - first;
    // SAFETY: rows are the warp's, so its lanes make the same sums; those below `count` are inside
    // the buffers, and each thread alone touches its columns of h and y.
    unsafe {
        let mut h = [[NO_WORDS; VECTORS]; ROWS];
        unroll!(ROWS, |r| {
            if (r as u32) < count {
                h[r] = if ROWS == 1 {
                    load_h::<VECTORS, RESIDUAL, true>(p, columns, first)
                } else {
                    load_h::<VECTORS, RESIDUAL, false>(p, columns, first + r as u32)
                };
            }
        });
        let mut w = [W::ZEROS; VECTORS];
        if ROWS == 1 {
            w = columns.load_weight::<W>(p.w);
        }
        let mut values = [[0.0; VECTORS]; ROWS];
        unroll!(ROWS, |r| values[r] = squares(&h[r]));
        let (mean, rescue) = mean_square(warp_row_sums(values), Width::new(p.hidden), p.eps);
        let mut own = match rescue {
            None => reciprocal_root(mean),
            Some(scale) => -scale.scale,
        };
        let mut rstd = [0.0; ROWS];
        unroll!(ROWS, |r| rstd[r] = of_row::<ROWS, VECTORS>(own, r));
        let mut rescues = false;
        unroll!(ROWS, |r| rescues |= rstd[r] < 0.0);
        // The same for all lanes. Other rows are worked out along, and keep what they have.
        if rescues {
            unroll!(ROWS, |r| {
                let scale = if rstd[r] == -RowScale::UP.scale {
                    RowScale::UP
                } else {
                    RowScale::DOWN
                };
                values[r] = scaled_squares(&h[r], scale);
            });
            let sum = warp_row_sums(values);
            if let Some(scale) = rescue {
                own = rescued_rstd(sum, Width::new(p.hidden), p.eps, scale);
            }
            unroll!(ROWS, |r| rstd[r] = of_row::<ROWS, VECTORS>(own, r));
        }
        if ROWS > 1 {
            w = columns.load_weight::<W>(p.w);
        }
        let w = weights::<W, VECTORS>(w, p.weight_offset);
        unroll!(ROWS, |r| {
            if (r as u32) < count {
                let row = first + r as u32;
                let out = if ROWS == 1 {
                    row_start_mut::<true>(p.y, row, p.y_stride, p.groups)
                } else {
                    row_start_mut::<false>(p.y, row, p.y_stride, p.groups)
                };
                store_row(columns.below(p.y_columns), out, &forget(h[r]), rstd[r], &w);
            }
        });
        let row = lane_row::<ROWS, VECTORS>();
        if leads_row::<ROWS, VECTORS>() && row < count && !p.rstd.is_null() {
            global::store_f32(p.rstd.add((first + row) as usize), canonical(own));
        }
    }
}

/// One block a row at a time, for rows of any width up to 65,536: goes over the row twice, the
/// second time from L1 or L2.
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
    let hidden = Width::new(p.hidden);
    let sums = TileSums::new(shared::base());
    let columns_of = |tile: u32| Columns::<1>::of_warp(tile, p.hidden);
    // SAFETY: the row is inside the buffers; rows are the block's, tiles the warp's, and each
    // thread alone touches its columns of h and y.
    unsafe {
        let load = |tile: u32| {
            let columns = columns_of(tile);
            let x = columns.load(row_start::<true>(p.x, row, p.x_stride, p.groups))[0];
            if RESIDUAL {
                let residual = columns.load(row_start::<true>(
                    p.residual,
                    row,
                    p.residual_stride,
                    p.groups,
                ));
                add_residual(x, residual[0])
            } else {
                x
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
                    columns.store(row_start_mut::<true>(p.h, row, p.h_stride, p.groups), 0, h);
                }
                let w = weights::<W, 1>(columns.load_weight::<W>(p.w), p.weight_offset);
                let y = normalise(&widen(h), rstd, &w[0]);
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

/// The thread's lane values of the sum of squares.
#[inline(always)]
fn squares<const VECTORS: usize>(h: &[Words4; VECTORS]) -> [f32; VECTORS] {
    let mut squares = [0.0; VECTORS];
    unroll!(VECTORS, |v| squares[v] =
        lane_dot(&widen(h[v]), &widen(h[v])));
    squares
}

/// The same of the scaled row.
#[inline(always)]
fn scaled_squares<const VECTORS: usize>(h: &[Words4; VECTORS], scale: RowScale) -> [f32; VECTORS] {
    let mut squares = [0.0; VECTORS];
    unroll!(VECTORS, |v| {
        let scaled = scale.apply(&widen(h[v]));
        squares[v] = lane_dot(&scaled, &scaled);
    });
    squares
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
    w: &[Lane; VECTORS],
) {
    unroll!(VECTORS, |v| {
        let y = normalise(&widen(h[v]), rstd, &w[v]);
        // SAFETY: the caller's obligation.
        unsafe { columns.store(out, v, narrow(&y)) };
    });
}

/// Loads a thread's part of row `row` of h; in the residual form works it out and stores it.
///
/// # Safety
/// - The row is inside the buffers, and this thread alone touches its columns of h.
#[inline(always)]
unsafe fn load_h<const VECTORS: usize, const RESIDUAL: bool, const GROUPED: bool>(
    p: &ForwardParams,
    columns: Columns<VECTORS>,
    row: u32,
) -> [Words4; VECTORS] {
    // SAFETY: the caller's obligations.
    unsafe {
        let mut h = columns.load(row_start::<GROUPED>(p.x, row, p.x_stride, p.groups));
        if RESIDUAL {
            let residual = columns.load(row_start::<true>(
                p.residual,
                row,
                p.residual_stride,
                p.groups,
            ));
            let out = row_start_mut::<GROUPED>(p.h, row, p.h_stride, p.groups);
            unroll!(VECTORS, |v| {
                h[v] = add_residual(h[v], residual[v]);
                columns.store(out, v, h[v]);
            });
        }
        h
    }
}
