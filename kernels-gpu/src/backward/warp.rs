//! Backward for narrow rows, a warp a row.

use crate::arith::unroll;
use crate::backward::row::{Cursor, DH, RowWords, dx_start};
use crate::device::global::CachePolicy;
use crate::device::{shared, thread, warp::uniform};
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
    // SAFETY: all lanes are here.
    let warp = unsafe { uniform(thread::thread_idx_x() / 32) };
    let columns = Columns::<VECTORS>::of_warp(0, p.hidden);
    let threads = thread::block_dim_x();
    let shelf = Shelf::<VECTORS>::new(shared::base());
    let ring_base = shared::base() + shelf_bytes(VECTORS as u32, threads);
    let policy = CachePolicy::new(p.keep);
    // SAFETY: shared memory has the ring, behind the shelf.
    let mut ring = unsafe { Ring::<VECTORS, 1, STAGES, TENSORS>::new(ring_base, columns, policy) };
    let warps = threads / 32;
    let leaf_mask = (1u32 << p.leaf_log2) - 1;
    let leaves = (p.rows + leaf_mask) >> p.leaf_log2;
    // Rows stay below 2³¹, runs of a grid within twice that; past the end nothing moves.
    let skip = || (thread::grid_dim_x() * warps - 1) << p.leaf_log2;
    let cursor = |row: u32| Cursor::<TENSORS>::at::<GROUPED>(p, row);
    let mut coming = cursor((thread::block_idx_x() * warps + warp) << p.leaf_log2);
    let fill = |ring: &mut Ring<VECTORS, 1, STAGES, TENSORS>, coming: &mut Cursor<TENSORS>| {
        let present = coming.row < p.rows;
        // SAFETY: rows below p.rows are inside the buffers; a stage is filled again only after its
        // row is done.
        unsafe { ring.fill(columns, |r| coming.starts(p, r), u32::from(present)) };
        if present {
            let next = coming.row + 1;
            if next & leaf_mask == 0 {
                *coming = cursor(next + skip());
            } else if GROUPED {
                *coming = cursor(next);
            } else {
                coming.advance(p, 1);
            }
        }
    };
    unroll!(STAGES, |_| fill(&mut ring, &mut coming));
    // SAFETY: the weight has H elements.
    let kept = weights::<W, VECTORS>(unsafe { columns.load_weight::<W>(p.w) }, p.weight_offset);
    let w = |v: usize| kept[v];
    let wants_dw = !p.nodes.is_null();

    let mut run = thread::block_idx_x();
    while run * warps < leaves {
        let mut row = (run * warps + warp) << p.leaf_log2;
        let end = p.rows.min(row + leaf_mask + 1);
        let mut node = empty::<VECTORS>();
        let mut out = dx_start::<GROUPED>(p, row);
        // SAFETY: rows below `end` are inside the buffers; all lanes of the warp share them, and
        // each thread alone writes its columns of dx.
        unsafe {
            while row < end {
                ring.wait();
                let words = RowWords::take(&ring, 0);
                if wants_dw {
                    words.accumulate(&mut node);
                }
                let dot = warp_row_sum(words.dots(w));
                let mut words = if VECTORS > 1 { words.forget() } else { words };
                if TENSORS > DH {
                    words.dh = ring.vectors(0, DH);
                    words.store_dx::<true>(p, columns, out, w, dot);
                } else {
                    words.store_dx::<false>(p, columns, out, w, dot);
                }
                fill(&mut ring, &mut coming);
                row += 1;
                out = if GROUPED {
                    dx_start::<GROUPED>(p, row)
                } else {
                    out.wrapping_offset(p.dx_stride.row as isize)
                };
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
    shelf_bytes(vectors, threads) + ring_bytes(vectors, 1, stages, tensors, threads)
}
