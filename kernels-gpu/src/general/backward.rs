//! Backward of any types. With σ the scale of an extreme row (1 for others), x′ = x ⊗ σ,
//! r = rstd ⊗ σ⁻¹:
//!
//! ```text
//! a = dy ⊗ w      k = (((Σ a·x′ / H) ⊗ r) ⊗ r) ⊗ r
//! dx = round(fma(−k, x′, r ⊗ a) ⊗ σ [⊕ dh])      dw = Σ_t dy·x′·r
//! ```

use super::params::GeneralBackwardParams;
use super::row::Row;
use super::sums::{RowSums, SCRATCH_BYTES};
use crate::arith::{
    LANE_ELEMENTS, Lane, LanePairs, Pair, RowScale, TILE, Width, accumulate, accumulate_inexact,
    backward_scale, input_gradient, lane_dot, projection, unroll, weighted,
};
use crate::device::{global, hint, shared, thread};
use crate::format::Format;
use crate::tree::{Counter, Shelf, load_node, node_columns, shelf_bytes, store_node};

/// The empty sum of eight columns.
const EMPTY: LanePairs = [Pair::ZERO; LANE_ELEMENTS];

/// dx, and a node of dw for each run of leaves; block b takes runs b, b + grid, …
///
/// A block works on a row at a time and goes over it twice, the second time from L1 or L2. Running
/// sums of dw lie in places of the thread that owns the columns: in shared memory where they fit
/// (the nodes of a run then fold there, too), else in the run's node.
///
/// Contract: any grid, blocks of a multiple of 32 threads; shared memory as [`shared_bytes`] says,
/// of [`super::SCRATCH_BYTES`] without sums in it; H at most 65,536; `nodes` 16-byte aligned. Slots
/// of the workspace: runs in order.
///
/// # Safety
/// - `p` describes live buffers as [`GeneralBackwardParams`] says; an output shares no memory with
///   another argument but elements with the same ones of dy, x or dh.
/// - The launch keeps the contract.
#[inline(always)]
pub unsafe fn backward(p: &GeneralBackwardParams) {
    let mut sums = RowSums::new();
    let run_rows_log2 = p.leaf_log2 + p.run_log2;
    let runs = ((p.rows - 1) >> run_rows_log2) + 1;
    let mut run = thread::block_idx_x();
    while run < runs {
        let mut row = run << run_rows_log2;
        let end = row.saturating_add(1 << run_rows_log2).min(p.rows);
        while row < end {
            // SAFETY: the run is the block's, and its rows come in order.
            unsafe { one_row(p, row, &mut sums) };
            row += 1;
        }
        run += thread::grid_dim_x();
    }
}

/// # Safety
/// - As [`backward`]; every thread of the block is here, with the same row, and was with the
///   run's rows before.
#[inline(always)]
unsafe fn one_row(p: &GeneralBackwardParams, row: u32, sums: &mut RowSums) {
    let (warp, warps) = (thread::thread_idx_x() / 32, thread::block_dim_x() / 32);
    let first = thread::thread_idx_x() % 32 * LANE_ELEMENTS as u32;
    let tiles = p.hidden.div_ceil(TILE);
    // SAFETY: rstd has an element a row.
    let rstd = unsafe { global::load_f32(p.rstd.add(row as usize)) };
    let scale = backward_scale(rstd);
    let rstd = match scale {
        None => rstd,
        Some(scale) => rstd * scale.inverse,
    };
    let dy = Row::new(&p.dy, row, p.groups, p.hidden);
    let x = Row::new(&p.x, row, p.groups, p.hidden);
    let w = Row::vector(&p.w, p.hidden);
    // SAFETY: the row is inside the buffers, and this thread alone touches its columns of them.
    let load = |column: u32| unsafe {
        let x = scaled(x.load(column), scale, p.x.format);
        let w = w.load_weight(p.weight_offset, column);
        (dy.load(column), x, w)
    };

    let wants_dx = !p.dx.base.is_null();
    let wants_dw = !p.nodes.is_null();
    let mut tile = warp;
    while tile < tiles {
        let (dy, x, w) = load(tile * TILE + first);
        // SAFETY: the tile is the warp's.
        unsafe { sums.publish(tile, lane_dot(&weighted(&dy, &w), &x)) };
        tile = hint::forget(tile) + warps;
    }
    // SAFETY: all threads of the block are here.
    let dot = unsafe { sums.finish(tiles) };
    let k = projection(dot, Width::new(p.hidden), rstd);

    let exact = p.dy.format != Format::F32 && p.x.format != Format::F32;
    let has_dh = !p.dh.base.is_null();
    let dh = Row::new(&p.dh, row, p.groups, p.hidden);
    let dx = Row::new(&p.dx, row, p.groups, p.hidden);
    let place = Place::of_row(p, row);
    let (mut tile, mut turn) = (warp, 0);
    while tile < tiles {
        let column = tile * TILE + first;
        if column < p.hidden {
            let (dy, x, w) = load(column);
            if wants_dx {
                let mut gradient = input_gradient(&weighted(&dy, &w), &x, rstd, k);
                if let Some(scale) = scale {
                    gradient = scale.apply(&gradient);
                }
                // SAFETY: as in `load`.
                unsafe {
                    if has_dh {
                        let dh = dh.load(column);
                        unroll!(LANE_ELEMENTS, |i| gradient[i] += dh[i]);
                    }
                    dx.store(column, &gradient);
                }
            }
            if wants_dw {
                // SAFETY: the place is the thread's own.
                let mut pairs = unsafe { place.running(p, turn, column) };
                if exact {
                    accumulate(&mut pairs, &dy, &x, rstd);
                } else {
                    accumulate_inexact(&mut pairs, &dy, &x, rstd);
                }
                // SAFETY: as above; rows come in order.
                unsafe { place.keep(p, turn, column, pairs) };
            }
        }
        tile = hint::forget(tile) + warps;
        turn += 1;
    }
}

/// Eight elements of a row that is perhaps an extreme one.
#[inline(always)]
fn scaled(x: Lane, scale: Option<RowScale>, format: Format) -> Lane {
    match scale {
        None => x,
        Some(scale) => format.round_scaled(&scale.apply(&x)),
    }
}

/// Where the sums of a row's leaf are, and how far the leaf has come.
#[derive(Clone, Copy)]
struct Place {
    leaf: u32,
    leaf_begins: bool,
    leaf_ends: bool,
    last: bool,
}

impl Place {
    #[inline(always)]
    fn of_row(p: &GeneralBackwardParams, row: u32) -> Self {
        let mask = (1u32 << p.leaf_log2) - 1;
        let last = row + 1 == p.rows;
        Self {
            leaf: row >> p.leaf_log2,
            leaf_begins: row & mask == 0,
            leaf_ends: last || (row + 1) & mask == 0,
            last,
        }
    }

    /// Shared address of shelf `shelf` of the thread's turn `turn`: the running sums, then the
    /// levels of the counter.
    #[inline(always)]
    fn shelf(p: &GeneralBackwardParams, turn: u32, shelf: u32) -> u32 {
        let shelves = turn * (1 + p.run_log2) + shelf;
        shared::base() + SCRATCH_BYTES + shelves * shelf_bytes(1, thread::block_dim_x())
    }

    /// The sums of the leaf's rows before this one.
    ///
    /// # Safety
    /// - [`Place::keep`] was called for the leaf's rows before, with the same turn and column.
    #[inline(always)]
    unsafe fn running(self, p: &GeneralBackwardParams, turn: u32, column: u32) -> LanePairs {
        if self.leaf_begins {
            return EMPTY;
        }
        // SAFETY: written by this thread a row ago.
        unsafe {
            if p.sums_in_shared != 0 {
                Shelf::<1>::new(Self::shelf(p, turn, 0)).get(thread::thread_idx_x(), 0)
            } else {
                load_node(p.nodes, self.leaf, node_columns(p.hidden), column)
            }
        }
    }

    /// Keeps the sums, this row included; at the end of a run, in its node.
    ///
    /// # Safety
    /// - The calling thread owns the columns, and calls this for each row of the run in order.
    #[inline(always)]
    unsafe fn keep(self, p: &GeneralBackwardParams, turn: u32, column: u32, pairs: LanePairs) {
        let (threads, mut node) = (thread::block_dim_x(), [pairs]);
        // SAFETY: places in shared memory and the columns of the run's node are this thread's; the
        // leaves of a run come in order.
        unsafe {
            let store = if self.leaf_ends {
                let counter = Counter::new(Self::shelf(p, turn, 1), threads, p.run_log2);
                counter.push(self.leaf, self.last, &mut node)
            } else if p.sums_in_shared != 0 {
                let shelf = Shelf::<1>::new(Self::shelf(p, turn, 0));
                shelf.put(thread::thread_idx_x(), 0, &pairs);
                false
            } else {
                true
            };
            if store {
                let slot = self.leaf >> p.run_log2;
                store_node(p.nodes, slot, node_columns(p.hidden), column, &node[0]);
            }
        }
    }
}

/// Bytes of shared memory that [`backward`] needs for blocks of `threads` threads with running sums
/// and the levels of runs of 2^`run_log2` leaves in it.
#[must_use]
pub const fn shared_bytes(hidden: u32, threads: u32, run_log2: u32) -> u32 {
    let turns = hidden.div_ceil(TILE).div_ceil(threads / 32);
    SCRATCH_BYTES + turns * (1 + run_log2) * shelf_bytes(1, threads)
}
