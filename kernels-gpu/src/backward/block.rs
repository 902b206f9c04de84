//! Backward, a block a row.

use crate::backward::row::RowWords;
use crate::device::{shared, thread};
use crate::params::BackwardParams;
use crate::arith::{Lane, RowScale, unroll};
use crate::row_sum::{BlockSum, SCRATCH_BYTES};
use crate::rows::{Columns, Weight};
use crate::tree::{Counter, Node, empty, store_node};

/// dx, and a node of dw for each run of 2^run_log2 leaves; block b takes runs b, b + grid, …
///
/// `AHEAD` rows are loaded before they are needed. Within a run, leaves fold in a binary counter
/// whose levels lie in shared memory; each thread owns its columns there, so no barrier is
/// needed beyond the one of the row's dot product.
///
/// Contract: blocks of a multiple of 32 threads with `VECTORS · 256` elements a warp covering H;
/// shared memory of [`SCRATCH_BYTES`] and run_log2 shelves ([`crate::tree::shelf_bytes`]); 16-byte aligned
/// bases, row strides and H multiples of 8. Slots of the workspace: complete runs in order, then
/// one for each node of the incomplete last run, the largest first.
///
/// # Safety
/// - `p` describes live buffers as [`BackwardParams`] says, and outputs overlap nothing.
/// - The launch keeps the contract.
#[inline(always)]
pub unsafe fn block<W: Weight, const VECTORS: usize, const AHEAD: usize, const RESIDUAL: bool>(
    p: &BackwardParams,
) {
    let thread = thread::thread_idx_x();
    let columns = Columns::<VECTORS>::of_warp(thread / 32, p.hidden);
    let counter = Counter::<VECTORS>::new(shared::base() + SCRATCH_BYTES, thread::block_dim_x(), p.run_log2);
    let mut sums = BlockSum::new(shared::base());
    let run_rows = 1u64 << (p.leaf_log2 + p.run_log2);
    let skip = u64::from(thread::grid_dim_x() - 1) * run_rows;
    let after = |row: u64| if (row + 1) & (run_rows - 1) == 0 { row + 1 + skip } else { row + 1 };

    let mut row = u64::from(thread::block_idx_x()) * run_rows;
    let mut load_next = row;
    // SAFETY: rows below p.rows are inside the buffers.
    let mut load = || unsafe {
        let words = RowWords::<VECTORS>::load::<RESIDUAL>(p, columns, load_next);
        load_next = after(load_next);
        words
    };
    let mut ahead = [load(); AHEAD];
    unroll::<AHEAD>(|i| {
        if i > 0 {
            ahead[i] = load();
        }
    });
    // SAFETY: the weight has H elements.
    let w: [Lane; VECTORS] = unsafe { columns.load_weight::<W>(p.w) };

    let mut node = empty::<VECTORS>();
    while row < u64::from(p.rows) {
        let current = ahead[0];
        unroll::<AHEAD>(|i| ahead[i] = if i + 1 < AHEAD { ahead[i + 1] } else { load() });
        // SAFETY: rows are the block's, so all its threads make the same sums; the row is
        // inside dx, and this thread alone writes its columns.
        unsafe {
            match current.scale() {
                None => step::<W, VECTORS, RESIDUAL>(p, columns, row, &current, &w, &mut node, &mut sums, None),
                Some(scale) => step::<W, VECTORS, RESIDUAL>(p, columns, row, &current, &w, &mut node, &mut sums, Some(scale)),
            }
            let leaf_mask = (1u64 << p.leaf_log2) - 1;
            if (row + 1) & leaf_mask == 0 || row + 1 == u64::from(p.rows) {
                close_leaf(p, columns, counter, row, node);
                node = empty();
            }
        }
        row = after(row);
    }
}

/// One row: dot product, weight gradient while it travels, dx.
///
/// # Safety
/// - As [`block`]; every thread of the block is here, with the same row and scale.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn step<W: Weight, const VECTORS: usize, const RESIDUAL: bool>(
    p: &BackwardParams,
    columns: Columns<VECTORS>,
    row: u64,
    words: &RowWords<VECTORS>,
    w: &[Lane; VECTORS],
    node: &mut Node<VECTORS>,
    sums: &mut BlockSum,
    scale: Option<RowScale>,
) {
    // SAFETY: the caller's obligations.
    unsafe {
        sums.publish(words.dots(w, scale));
        words.accumulate(node, scale);
        let dot = sums.finish::<VECTORS>();
        words.store_dx::<RESIDUAL>(p, columns, row as u32, w, dot, scale);
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
    row: u64,
    mut node: Node<VECTORS>,
) {
    let leaf = row >> p.leaf_log2;
    let index = leaf as u32 & ((1 << p.run_log2) - 1);
    let run = (leaf >> p.run_log2) as u32;
    // SAFETY: the workspace has a slot for every node, and each thread writes its own columns.
    unsafe {
        let store = |slot: u32, node: &Node<VECTORS>| {
            unroll::<VECTORS>(|v| {
                if columns.holds(v) {
                    store_node(p.nodes, slot, p.hidden, columns.column(v), &node[v]);
                }
            });
        };
        if counter.push(index, &mut node) {
            store(run, &node);
        } else if row + 1 == u64::from(p.rows) {
            let mut slot = run;
            let mut level = p.run_log2;
            while level > 0 {
                level -= 1;
                if (index + 1) >> level & 1 == 1 {
                    store(slot, &counter.level(level).get(thread::thread_idx_x()));
                    slot += 1;
                }
            }
        }
    }
}
