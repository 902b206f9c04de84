//! Backward for narrow rows, a warp a row.

use crate::arith::unroll;
use crate::backward::row::{DH, RowWords, sources};
use crate::device::{shared, thread};
use crate::params::BackwardParams;
use crate::ring::{Ring, ring_bytes};
use crate::row_sum::warp_row_sum;
use crate::rows::{Columns, Weight};
use crate::tree::{Shelf, empty, fold_positions, shelf_bytes, store_node};

/// dx, and a node of dw for each run of 2^run_log2 leaves; block b takes runs b, b + grid, …
///
/// Warp i of the block takes leaf i of the run, its rows through a [`Ring`] of `STAGES` (`TENSORS`
/// is 2, or 3 in the residual form); then the block folds its warps' leaves. Rows may come in groups;
/// without a workspace there is only dx.
///
/// Contract: blocks of 2^run_log2 warps; H ≤ 256 · `VECTORS`; shared memory as
/// [`shared_bytes`] says; 16-byte aligned bases, row strides and H multiples of 8. The workspace has
/// a slot for each run, or is null.
///
/// # Safety
/// - `p` describes live buffers as [`BackwardParams`] says, and outputs overlap nothing.
/// - The launch keeps the contract.
#[inline(always)]
pub unsafe fn warp<W: Weight, const VECTORS: usize, const STAGES: usize, const TENSORS: usize>(
    p: &BackwardParams,
) {
    let warp = thread::thread_idx_x() / 32;
    let columns = Columns::<VECTORS>::of_warp(0, p.hidden);
    let threads = thread::block_dim_x();
    let shelf = Shelf::<VECTORS>::new(shared::base());
    let ring_base = shared::base() + shelf_bytes(VECTORS as u32, threads);
    let mut ring = Ring::<VECTORS, 1, STAGES, TENSORS, true>::new(ring_base);
    let sources = sources::<TENSORS>(p);
    let leaf_rows = 1u64 << p.leaf_log2;
    let leaves = (u64::from(p.rows) + leaf_rows - 1) >> p.leaf_log2;
    let run_leaves = 1u64 << p.run_log2;
    // SAFETY: the weight has H elements.
    let kept = unsafe { columns.load_weight::<W>(p.w, p.weight_offset) };
    let w = |v: usize| kept[v];
    let wants_dw = !p.nodes.is_null();

    let mut run = u64::from(thread::block_idx_x());
    while run << p.run_log2 < leaves {
        let leaf = (run << p.run_log2) + u64::from(warp);
        let first = leaf << p.leaf_log2;
        let end = (first + leaf_rows).min(u64::from(p.rows));
        let mut node = empty::<VECTORS>();
        // SAFETY: rows below `end` are inside the buffers; all lanes of the warp share them, and
        // each thread alone writes its columns of dx.
        unsafe {
            let fill = |ring: &mut Ring<_, 1, STAGES, TENSORS, true>, row: u64| {
                let count = u32::from(row < end);
                ring.fill::<true>(columns, sources, p.groups, p.rstd, row as u32, count);
            };
            unroll!(STAGES, |i| fill(&mut ring, first + i as u64));
            let mut row = first;
            while row < end {
                ring.wait();
                let words = RowWords::take(&ring, columns, 0);
                if wants_dw {
                    words.accumulate(&mut node);
                }
                let dot = warp_row_sum(words.forget().dots(w));
                let mut words = words.forget();
                if TENSORS > DH {
                    words.dh = ring.vectors(columns, 0, DH);
                    words.store_dx::<true, true>(p, columns, row as u32, w, dot);
                } else {
                    words.store_dx::<false, true>(p, columns, row as u32, w, dot);
                }
                fill(&mut ring, row + STAGES as u64);
                row += 1;
            }

            if wants_dw {
                let count = (leaves - (run << p.run_log2)).min(run_leaves) as u32;
                fold_positions(shelf, &mut node, 32, count);
            }
            if wants_dw && warp == 0 {
                unroll!(VECTORS, |v| {
                    if columns.holds(v) {
                        store_node(p.nodes, run as u32, p.hidden, columns.column(v), &node[v]);
                    }
                });
            }
        }
        run += u64::from(thread::grid_dim_x());
    }
}

/// Bytes of shared memory that [`warp`] needs.
#[must_use]
pub const fn shared_bytes(vectors: u32, stages: u32, residual: bool, threads: u32) -> u32 {
    let tensors = if residual { 3 } else { 2 };
    shelf_bytes(vectors, threads) + ring_bytes(vectors, 1, stages, tensors, true, threads)
}
