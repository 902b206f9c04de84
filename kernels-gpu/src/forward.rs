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
//!
//! Where a call reads more than L2 holds, L2 is told to keep what is read: memory is faster so.

use crate::arith::{
    Lane, RowScale, TILE, Width, add_residual, canonical, lane_dot, mean_square, narrow, normalise,
    reciprocal_root, rescued_rstd, scaled_square, unroll, widen,
};
use crate::device::global::{self, CachePolicy};
use crate::device::{Words4, hint, shared, thread, warp};
use crate::lane_sum::LaneSums;
use crate::params::{ForwardParams, Stride};
use crate::row_sum::{SCRATCH_BYTES, TileSums};
use crate::rows::{Columns, NO_WORDS, Weight, forget, row_start, row_start_mut, weights};

/// One block a row: warp i holds tiles `VECTORS · i` and following. Rows may come in groups with
/// `GROUPED` alone, which a block pays for before its first load.
///
/// Contract: a block for each row, of a multiple of 32 threads with `VECTORS · 256` elements a warp
/// covering H, for at most 64 tiles; [`crate::row_sum::SCRATCH_BYTES`] of shared memory.
///
/// # Safety
/// - `p` describes live buffers as [`ForwardParams`] says, and outputs overlap nothing.
/// - The launch keeps the contract.
#[inline(always)]
pub unsafe fn block<W: Weight, const VECTORS: usize, const GROUPED: bool, const RESIDUAL: bool>(
    p: &ForwardParams,
) {
    let warps = thread::block_dim_x() / 32;
    let first_tile = thread::thread_idx_x() / 32 * VECTORS as u32;
    let columns = Columns::<VECTORS>::of_warp(thread::thread_idx_x() / 32, p.hidden);
    let row = thread::block_idx_x();
    // SAFETY: the row is the block's, so every thread makes the same sums; it is inside the
    // buffers, and each thread alone touches its columns of h and y. The second sum has a scratch of
    // its own, since some threads may still read the first.
    unsafe {
        let sum = |values: [f32; VECTORS], scratch: u32| {
            let sums = TileSums::new(scratch);
            sums.publish_several(first_tile, values);
            sums.finish_few(warps * VECTORS as u32)
        };
        let start = |base: *const u16, stride: Stride| {
            columns.of_row(row_start::<GROUPED>(base, row, stride, p.groups))
        };
        let policy = CachePolicy::new(p.keep);
        let mut h = columns.load_by(policy, start(p.x, p.x_stride));
        if RESIDUAL {
            let residual = columns.load_by(policy, start(p.residual, p.residual_stride));
            unroll!(VECTORS, |v| h[v] = add_residual(h[v], residual[v]));
        }
        // The program for few rows has more warps share one. In the residual form it gains nothing.
        let w = if VECTORS == 2 && !RESIDUAL {
            StoredWeights::<W, VECTORS>::load_straight(p, columns)
        } else {
            StoredWeights::<W, VECTORS>::load(p, columns)
        };
        let values = squares(&h);
        // Unpacked values would take twice the registers until they are needed again.
        h = forget(h);
        let width = Width::new(p.hidden);
        let (mean, rescue) = mean_square(sum(values, shared::base()), width, p.eps);
        let mut rstd = reciprocal_root(mean);
        if let Some(scale) = rescue {
            let sum = sum(
                scaled_squares(&h, scale.scale),
                shared::base() + SCRATCH_BYTES / 2,
            );
            rstd = rescued_rstd(sum, width, p.eps, scale);
            h = forget(h);
        }
        // Columns are worked out again: what they are compared with is not kept either.
        let columns = columns.forget();
        if RESIDUAL {
            let to = start(p.h, p.h_stride).cast_mut();
            unroll!(VECTORS, |v| columns.store_from(to, v, h[v]));
        }
        let y = start(p.y, p.y_stride).cast_mut();
        store_row(columns.below(p.y_columns), y, &h, rstd, &w);
        if thread::thread_idx_x() == 0 && !p.rstd.is_null() {
            global::store_f32(p.rstd.add(row as usize), canonical(rstd));
        }
    }
}

/// `LANES` lanes of a warp (16 or 32) for `ROWS` neighbouring rows, of at most `VECTORS` tiles
/// (H ≤ 256 · `VECTORS` ≤ 1024), or of half a tile for 16 lanes (H ≤ 128).
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
pub unsafe fn warp<
    W: Weight,
    const LANES: u32,
    const VECTORS: usize,
    const ROWS: usize,
    const RESIDUAL: bool,
>(
    p: &ForwardParams,
) {
    let thread = thread::thread_idx_x();
    let position = thread::block_idx_x() * (thread::block_dim_x() / LANES) + thread / LANES;
    let first = position * ROWS as u32;
    // The lanes of a warp stay together.
    let before = thread % 32 / LANES * ROWS as u32;
    if first - before >= p.rows {
        return;
    }
    let count = p.rows.saturating_sub(first);
    let columns = Columns::<VECTORS> {
        first: thread % LANES * 8,
        hidden: p.hidden,
    };
    // The columns of row `r`: none where there is no such row.
    let inside = |r: usize, limit: u32| columns.below(if (r as u32) < count { limit } else { 0 });
    // The thread's first vector of the first row, and of the row `r` behind it.
    let start = |base: *const u16, stride: Stride| {
        columns.of_row(if ROWS == 1 {
            row_start::<true>(base, first, stride, p.groups)
        } else {
            row_start::<false>(base, first, stride, p.groups)
        })
    };
    let behind = |start: *const u16, stride: Stride, r: usize| {
        start.wrapping_offset(stride.row.wrapping_mul(r as i64) as isize)
    };
    // SAFETY: rows are the lanes', which make the same sums; those below `count` are inside the
    // buffers, and each thread alone touches its columns of h and y.
    unsafe {
        let policy = CachePolicy::new(p.keep);
        let mut h = [[NO_WORDS; VECTORS]; ROWS];
        let x = start(p.x, p.x_stride);
        unroll!(ROWS, |r| h[r] =
            inside(r, p.hidden).load_by(policy, behind(x, p.x_stride, r)));
        if RESIDUAL {
            let from = start(p.residual, p.residual_stride);
            let mut residual = [[NO_WORDS; VECTORS]; ROWS];
            unroll!(ROWS, |r| residual[r] = inside(r, p.hidden)
                .load_by(policy, behind(from, p.residual_stride, r)));
            let to = start(p.h, p.h_stride);
            unroll!(ROWS, |r| {
                let to = behind(to, p.h_stride, r).cast_mut();
                unroll!(VECTORS, |v| {
                    h[r][v] = add_residual(h[r][v], residual[r][v]);
                    inside(r, p.hidden).store_from(to, v, h[r][v]);
                });
            });
        }
        // Programs for many rows have lanes work on several.
        let w = if ROWS == 1 && !RESIDUAL {
            StoredWeights::<W, VECTORS>::load_straight(p, columns)
        } else {
            StoredWeights::<W, VECTORS>::load(p, columns)
        };
        let mut values = [[0.0; VECTORS]; ROWS];
        unroll!(ROWS, |r| {
            values[r] = squares(&h[r]);
            // Unpacked values would take twice the registers until they are needed again.
            h[r] = forget(h[r]);
        });
        let width = Width::new(p.hidden);
        let sum = LaneSums::<LANES, ROWS, VECTORS>::of(values);
        let (mean, rescue) = mean_square(sum, width, p.eps);
        let mut own = reciprocal_root(mean);
        if warp::any(rescue.is_some()) {
            // Other rows of the warp are worked out along, and keep what they have.
            let scale = rescue.map_or(1.0, |scale| scale.scale);
            unroll!(ROWS, |r| {
                let scale = LaneSums::<LANES, ROWS, VECTORS>::spread(scale, r);
                values[r] = scaled_squares(&h[r], scale);
                h[r] = forget(h[r]);
            });
            let sum = LaneSums::<LANES, ROWS, VECTORS>::of(values);
            if let Some(scale) = rescue {
                own = rescued_rstd(sum, width, p.eps, scale);
            }
        }
        let y = start(p.y, p.y_stride);
        unroll!(ROWS, |r| {
            let rstd = LaneSums::<LANES, ROWS, VECTORS>::spread(own, r);
            let out = behind(y, p.y_stride, r).cast_mut();
            store_row(inside(r, p.y_columns), out, &h[r], rstd, &w);
        });
        let row = LaneSums::<LANES, ROWS, VECTORS>::row();
        if LaneSums::<LANES, ROWS, VECTORS>::leads() && row < count && !p.rstd.is_null() {
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
        let policy = CachePolicy::new(p.keep);
        let load = |tile: u32| {
            let columns = columns_of(tile);
            let load = |base: *const u16, stride: Stride| {
                let row = row_start::<true>(base, row, stride, p.groups);
                columns.load_by(policy, columns.of_row(row))[0]
            };
            let x = load(p.x, p.x_stride);
            if RESIDUAL {
                add_residual(x, load(p.residual, p.residual_stride))
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
fn scaled_squares<const VECTORS: usize>(h: &[Words4; VECTORS], scale: f32) -> [f32; VECTORS] {
    let mut squares = [0.0; VECTORS];
    unroll!(VECTORS, |v| squares[v] = scaled_square(&widen(h[v]), scale));
    squares
}

/// The weights of a thread's columns as they are stored, and what is added to each: zeros and 1 more
/// where there is no weight.
struct StoredWeights<W: Weight, const VECTORS: usize> {
    words: [W::Words; VECTORS],
    offset: f32,
}

impl<W: Weight, const VECTORS: usize> StoredWeights<W, VECTORS> {
    const NONE: [W::Words; VECTORS] = [W::ZEROS; VECTORS];

    /// For many rows: behind a jump. ptxas moves no load from one side of it to the other, so that
    /// the weights are asked for before anything waits for the row.
    ///
    /// # Safety
    /// - As [`Columns::load_weight`].
    #[inline(always)]
    unsafe fn load(p: &ForwardParams, columns: Columns<VECTORS>) -> Self {
        let mut it = Self {
            words: Self::NONE,
            offset: p.weight_offset,
        };
        if p.w.is_null() {
            it.offset += 1.0;
        } else {
            unroll!(VECTORS, |v| {
                if columns.holds(v) {
                    // SAFETY: inside the weight.
                    it.words[v] = unsafe { W::load(p.w, columns.column(v)) };
                }
            });
        }
        it
    }

    /// For few rows: without a jump between the loads and the first sums, which calls with one or two
    /// rows a multiprocessor pay 0.1 to 0.35 µs for. ptxas may have the weights wait for the row.
    ///
    /// # Safety
    /// - As [`Columns::load_weight`].
    #[inline(always)]
    unsafe fn load_straight(p: &ForwardParams, columns: Columns<VECTORS>) -> Self {
        let there = !p.w.is_null();
        let mut words = Self::NONE;
        unroll!(VECTORS, |v| {
            let holds = there & columns.holds(v);
            // SAFETY: inside the weight where it is loaded.
            words[v] = unsafe { W::load_if(holds, p.w, columns.column(v)) };
        });
        // Not 0 more where there is one: an offset of −0 keeps the sign of zeros.
        let ones = p.weight_offset + 1.0;
        Self {
            words,
            offset: if there { p.weight_offset } else { ones },
        }
    }

    /// The weights of vector `v` as the norm multiplies by them.
    #[inline(always)]
    fn lane(&self, v: usize) -> Lane {
        weights::<W, 1>([self.words[v]], self.offset)[0]
    }
}

/// y = BF16((h ⊗ rstd) ⊗ w) for a thread's part of a row.
///
/// # Safety
/// - `out` points to the thread's first vector of a row, as [`Columns::store_from`] wants it.
#[inline(always)]
unsafe fn store_row<W: Weight, const VECTORS: usize>(
    columns: Columns<VECTORS>,
    out: *mut u16,
    h: &[Words4; VECTORS],
    rstd: f32,
    w: &StoredWeights<W, VECTORS>,
) {
    unroll!(VECTORS, |v| {
        if columns.holds(v) {
            let y = normalise(&widen(h[v]), rstd, &w.lane(v));
            // SAFETY: the caller's obligation.
            unsafe { columns.store_from(out, v, narrow(&y)) };
        }
    });
}
