//! Backward for narrow rows, a warp a row.

use crate::arith::unroll;
use crate::backward::row::{DH, RowWords, sources};
use crate::device::{shared, thread};
use crate::params::BackwardParams;
use crate::ring::{Ring, ring_bytes};
use crate::row_sum::warp_row_sum;
use crate::rows::{Columns, Weight, weights};
use crate::tree::{Shelf, empty, fold_positions, shelf_bytes, store_node};

/// dx, and a node of dw for each run of 2^run_log2 leaves; block b takes runs b, b + grid, …
///
/// Warp i of the block takes leaf i of the run, its rows through a [`Ring`] of `STAGES` (`TENSORS`
/// is 2, or 3 in the residual form), the next leaf's on their way while the block folds its warps'
/// leaves. With `GROUPED` rows may come in groups. Without a workspace there is only dx.
///
/// Contract: blocks of 2^run_log2 warps; H ≤ 256 · `VECTORS`; shared memory as
/// [`shared_bytes`] says; 16-byte aligned bases, row strides and H multiples of 8. The workspace has
/// a slot for each run, or is null.
///
/// # Safety
/// - `p` describes live buffers as [`BackwardParams`] says, and outputs overlap nothing.
/// - The launch keeps the contract.
#[inline(always)]
pub unsafe fn warp<
    W: Weight,
    const VECTORS: usize,
    const STAGES: usize,
    const TENSORS: usize,
    const GROUPED: bool,
>(
    p: &BackwardParams,
) {
    let warp = thread::thread_idx_x() / 32;
    let columns = Columns::<VECTORS>::of_warp(0, p.hidden);
    let threads = thread::block_dim_x();
    let shelf = Shelf::<VECTORS>::new(shared::base());
    let ring_base = shared::base() + shelf_bytes(VECTORS as u32, threads);
    let mut ring = Ring::<VECTORS, 1, STAGES, TENSORS, true>::new(ring_base);
    let sources = sources::<TENSORS>(p);
    let warps = threads / 32;
    let leaf_mask = (1u32 << p.leaf_log2) - 1;
    let leaves = (p.rows + leaf_mask) >> p.leaf_log2;
    // Rows stay below 2³¹, runs of a grid within twice that; past the end nothing moves.
    let skip = || (thread::grid_dim_x() * warps - 1) << p.leaf_log2;
    let after = |row: u32| {
        let next = row + 1;
        if row >= p.rows {
            row
        } else if next & leaf_mask == 0 {
            next + skip()
        } else {
            next
        }
    };
    let mut coming = (thread::block_idx_x() * warps + warp) << p.leaf_log2;
    // SAFETY: rows below p.rows are inside the buffers; a stage is filled again only after its row
    // is done.
    let fill = |ring: &mut Ring<_, 1, STAGES, TENSORS, true>, row: u32| unsafe {
        let count = u32::from(row < p.rows);
        ring.fill::<GROUPED>(columns, sources, p.groups, p.rstd, row, count);
    };
    unroll!(STAGES, |_| {
        fill(&mut ring, coming);
        coming = after(coming);
    });
    // SAFETY: the weight has H elements.
    let kept = weights::<W, VECTORS>(unsafe { columns.load_weight::<W>(p.w) }, p.weight_offset);
    let w = |v: usize| kept[v];
    let wants_dw = !p.nodes.is_null();

    let mut run = thread::block_idx_x();
    while run * warps < leaves {
        let mut row = (run * warps + warp) << p.leaf_log2;
        let end = p.rows.min(row + leaf_mask + 1);
        let mut node = empty::<VECTORS>();
        // SAFETY: rows below `end` are inside the buffers; all lanes of the warp share them, and
        // each thread alone writes its columns of dx.
        unsafe {
            while row < end {
                ring.wait();
                let words = RowWords::take(&ring, columns, 0);
                if wants_dw {
                    words.accumulate(&mut node);
                }
                let dot = warp_row_sum(words.dots(w));
                let mut words = if VECTORS > 1 { words.forget() } else { words };
                if TENSORS > DH {
                    words.dh = ring.vectors(columns, 0, DH);
                    words.store_dx::<true, GROUPED>(p, columns, row, w, dot);
                } else {
                    words.store_dx::<false, GROUPED>(p, columns, row, w, dot);
                }
                fill(&mut ring, coming);
                coming = after(coming);
                row += 1;
            }

            if wants_dw {
                let count = (leaves - run * warps).min(warps);
                fold_positions(shelf, &mut node, 32, count);
            }
            if wants_dw && warp == 0 {
                unroll!(VECTORS, |v| {
                    if columns.holds(v) {
                        store_node(p.nodes, run, p.hidden, columns.column(v), &node[v]);
                    }
                });
            }
        }
        run += thread::grid_dim_x();
    }
}

/// Bytes of shared memory that [`warp`] needs.
#[must_use]
pub const fn shared_bytes(vectors: u32, stages: u32, residual: bool, threads: u32) -> u32 {
    let tensors = if residual { 3 } else { 2 };
    shelf_bytes(vectors, threads) + ring_bytes(vectors, 1, stages, tensors, true, threads)
}
