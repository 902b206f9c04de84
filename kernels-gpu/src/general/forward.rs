//! Forward of any types, with h = x, or h = x ⊕ residual rounded to its type:
//!
//! ```text
//! rstd = 1 / sqrt(Σ h² / H ⊕ eps)      y = round((h ⊗ rstd) ⊗ w)
//! ```

use super::params::GeneralForwardParams;
use super::row::Row;
use super::sums::RowSums;
use crate::arith::{
    LANE_ELEMENTS, Lane, RowScale, TILE, Width, canonical, lane_dot, mean_square, normalise,
    reciprocal_root, rescued_rstd, unroll,
};
use crate::device::{global, hint, thread};

/// One block a row at a time: goes over the row twice, the second time from L1 or L2.
///
/// Contract: any grid, blocks of a multiple of 32 threads; [`super::SCRATCH_BYTES`] of shared
/// memory; H at most 65,536.
///
/// # Safety
/// - `p` describes live buffers as [`GeneralForwardParams`] says; an output shares no memory with
///   another argument but elements with the same ones of x or residual.
/// - The launch keeps the contract.
#[inline(always)]
pub unsafe fn forward(p: &GeneralForwardParams) {
    let mut sums = RowSums::new();
    let mut row = u64::from(thread::block_idx_x());
    while row < u64::from(p.rows) {
        // SAFETY: the row is the block's.
        unsafe { one_row(p, row as u32, &mut sums) };
        row += u64::from(thread::grid_dim_x());
    }
}

/// # Safety
/// - As [`forward`]; every thread of the block is here, with the same row.
#[inline(always)]
unsafe fn one_row(p: &GeneralForwardParams, row: u32, sums: &mut RowSums) {
    let (warp, warps) = (thread::thread_idx_x() / 32, thread::block_dim_x() / 32);
    let first = thread::thread_idx_x() % 32 * LANE_ELEMENTS as u32;
    let tiles = p.hidden.div_ceil(TILE);
    let hidden = Width::new(p.hidden);
    let x = Row::new(&p.x, row, p.groups, p.hidden);
    let residual = Row::new(&p.residual, row, p.groups, p.hidden);
    let has_residual = !p.residual.base.is_null();
    // SAFETY: the row is inside the buffers, and this thread alone touches its columns of them.
    let load = |column: u32| unsafe {
        let mut h = x.load(column);
        if has_residual {
            let residual = residual.load(column);
            unroll!(LANE_ELEMENTS, |i| h[i] += residual[i]);
            h = p.h.format.round(&h);
        }
        h
    };
    // SAFETY: all threads of the block make the same sums, tiles are the warp's.
    let mut sum = |scale: Option<RowScale>| unsafe {
        let mut tile = warp;
        while tile < tiles {
            let h = scaled(load(tile * TILE + first), scale);
            sums.publish(tile, lane_dot(&h, &h));
            tile = hint::forget(tile) + warps;
        }
        sums.finish(tiles)
    };
    let (mean, rescue) = mean_square(sum(None), hidden, p.eps);
    let rstd = match rescue {
        None => reciprocal_root(mean),
        Some(scale) => rescued_rstd(sum(rescue), hidden, p.eps, scale),
    };

    let h_out = Row::new(&p.h, row, p.groups, p.hidden);
    let y = Row::new(&p.y, row, p.groups, p.hidden);
    let w = Row::vector(&p.w, p.hidden);
    let (wants_h, wants_y) = (!p.h.base.is_null(), !p.y.base.is_null());
    let mut tile = if wants_h || wants_y { warp } else { tiles };
    while tile < tiles {
        let column = tile * TILE + first;
        if column < p.hidden {
            // SAFETY: as in `load`.
            unsafe {
                let h = load(column);
                if wants_h {
                    h_out.store(column, &h);
                }
                if wants_y {
                    let w = w.load_weight(p.weight_offset, column);
                    y.store(column, &normalise(&h, rstd, &w));
                }
            }
        }
        tile = hint::forget(tile) + warps;
    }
    if thread::thread_idx_x() == 0 && !p.rstd.is_null() {
        // SAFETY: rstd has an element a row, and this thread alone writes it.
        unsafe { global::store_f32(p.rstd.add(row as usize), canonical(rstd)) };
    }
}

/// A vector's elements, scaled for a row that is redone.
#[inline(always)]
fn scaled(lane: Lane, scale: Option<RowScale>) -> Lane {
    match scale {
        None => lane,
        Some(scale) => scale.apply(&lane),
    }
}
