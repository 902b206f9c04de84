//! Backward, a block a row.

use crate::backward::ring::{Ring, ring_bytes};
use crate::backward::row::RowWords;
use crate::device::{shared, thread};
use crate::params::BackwardParams;
use crate::arith::{Lane, LanePairs, RowScale, unroll};
use crate::row_sum::{BlockSum, SCRATCH_BYTES};
use crate::rows::{Columns, KeptWeight, Weight, kept_weight_bytes};
use crate::tree::{Counter, Node, empty, shelf_bytes, store_node};

/// dx, and a node of dw for each run of 2^run_log2 leaves; block b takes runs b, b + grid, …
///
/// Rows travel through a [`Ring`] of `STAGES`. Within a run, leaves fold in a [`Counter`]; each
/// thread owns its columns in both, so the one barrier a row is that of the dot product.
///
/// Contract: at most as many blocks as runs, of a multiple of 32 threads with `VECTORS · 256` elements a warp covering H;
/// shared memory as [`shared_bytes`] says; 16-byte aligned bases, row strides and H multiples of
/// 8. Slots of the workspace: complete runs in order, then one for each node of the incomplete
/// last run, the largest first.
///
/// # Safety
/// - `p` describes live buffers as [`BackwardParams`] says, and outputs overlap nothing.
/// - The launch keeps the contract.
#[inline(always)]
pub unsafe fn block<W: Weight, const VECTORS: usize, const STAGES: usize, const RESIDUAL: bool>(
    p: &BackwardParams,
) {
    let threads = thread::block_dim_x();
    let columns = Columns::<VECTORS>::of_warp(thread::thread_idx_x() / 32, p.hidden);
    let mut sums = BlockSum::new(shared::base());
    let ring_base = shared::base() + SCRATCH_BYTES;
    let mut ring = Ring::<VECTORS, STAGES, RESIDUAL>::new(ring_base);
    let weight_base = ring_base + ring_bytes(VECTORS as u32, STAGES as u32, RESIDUAL, threads);
    let counter_base = weight_base + kept_weight_bytes(VECTORS as u32, threads);
    let counter = Counter::<VECTORS>::new(counter_base, threads, p.run_log2);
    let run_mask = (1u32 << (p.leaf_log2 + p.run_log2)) - 1;
    let skip = (thread::grid_dim_x() - 1) << (p.leaf_log2 + p.run_log2);
    // Rows stay below 2³¹, runs of a grid within twice that; past the end nothing moves.
    let after = |row: u32| {
        let jump = if (row + 1) & run_mask == 0 { skip } else { 0 };
        if row < p.rows { row + 1 + jump } else { row }
    };

    let mut row = thread::block_idx_x() << (p.leaf_log2 + p.run_log2);
    let mut coming = row;
    // SAFETY: rows below p.rows are inside the buffers; a stage is filled again only after its
    // row is done.
    unsafe {
        unroll::<STAGES>(|_| {
            ring.fill(p, columns, coming);
            coming = after(coming);
        });
    }
    // SAFETY: the weight has H elements, and the launch has the shared memory.
    let kept = unsafe { KeptWeight::load::<W>(columns, p.w, weight_base) };
    let w = |v: usize| kept.lane(v);

    let mut node = empty::<VECTORS>();
    while row < p.rows {
        // SAFETY: rows are the block's, so all its threads make the same sums; the row is
        // inside dx, and this thread alone writes its columns.
        unsafe {
            ring.wait();
            let current = ring.read(columns);
            match current.scale() {
                None => {
                    let dot = dot(&current, w, &mut sums, &mut node, None);
                    ring.read_all(columns).store_dx::<RESIDUAL>(p, columns, row, w, dot, None);
                }
                scale => {
                    let dot = dot(&current, w, &mut sums, &mut node, scale);
                    ring.read_all(columns).store_dx::<RESIDUAL>(p, columns, row, w, dot, scale);
                }
            }
            ring.fill(p, columns, coming);
            coming = after(coming);
            let leaf_mask = (1u32 << p.leaf_log2) - 1;
            if (row + 1) & leaf_mask == 0 || row + 1 == p.rows {
                close_leaf(p, columns, counter, row, node);
                node = empty();
            }
        }
        row = after(row);
    }
}

/// Bytes of shared memory that [`block`] needs.
#[must_use]
pub const fn shared_bytes(vectors: u32, stages: u32, residual: bool, threads: u32, run_log2: u32) -> u32 {
    SCRATCH_BYTES
        + ring_bytes(vectors, stages, residual, threads)
        + kept_weight_bytes(vectors, threads)
        + run_log2 * shelf_bytes(vectors, threads)
}

/// The row's dot product; its terms join the weight gradient while the tile sums travel.
///
/// # Safety
/// - Every thread of the block is here, with the same row.
#[inline(always)]
unsafe fn dot<const VECTORS: usize>(
    words: &RowWords<VECTORS>,
    w: impl Fn(usize) -> Lane,
    sums: &mut BlockSum,
    node: &mut Node<VECTORS>,
    scale: Option<RowScale>,
) -> f32 {
    // SAFETY: the caller's obligation.
    unsafe {
        sums.publish(words.dots(w, scale));
        words.forget().accumulate(node, scale);
        sums.finish::<VECTORS>()
    }
}

/// Adds the leaf that ends with row `row` to its run; stores the run's node after its last leaf,
/// and the nodes of an incomplete run after the last leaf of all.
///
/// # Safety
/// - As [`block`]; leaves of a run come in order.
#[inline(always)]
unsafe fn close_leaf<const VECTORS: usize>(
    p: &BackwardParams,
    columns: Columns<VECTORS>,
    counter: Counter<VECTORS>,
    row: u32,
    mut node: Node<VECTORS>,
) {
    let leaf = row >> p.leaf_log2;
    let index = leaf & ((1 << p.run_log2) - 1);
    let run = leaf >> p.run_log2;
    // SAFETY: the workspace has a slot for every node, and each thread writes its own columns.
    unsafe {
        let store = |slot: u32, v: usize, pairs: &LanePairs| {
            if columns.holds(v) {
                store_node(p.nodes, slot, p.hidden, columns.column(v), pairs);
            }
        };
        if counter.push(index, &mut node) {
            unroll::<VECTORS>(|v| store(run, v, &node[v]));
        } else if row + 1 == p.rows {
            let mut slot = run;
            let mut level = p.run_log2;
            while level > 0 {
                level -= 1;
                if (index + 1) >> level & 1 == 1 {
                    let shelf = counter.level(level);
                    unroll::<VECTORS>(|v| store(slot, v, &shelf.get(thread::thread_idx_x(), v)));
                    slot += 1;
                }
            }
        }
    }
}
