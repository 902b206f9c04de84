//! Backward, a block a row, for rows whose sums of dw do not fit in registers.

use crate::arith::{Lane, LanePairs, Pair, accumulate, unroll};
use crate::backward::row::{Cursor, RowWords, dx_start};
use crate::device::global::CachePolicy;
use crate::device::{shared, thread};
use crate::params::BackwardParams;
use crate::ring::{Ring, ring_bytes};
use crate::row_sum::{BlockSum, Group, SCRATCH_BYTES};
use crate::rows::{Columns, Weight, row_start, weight_lane};
use crate::tree::{Shelf, shelf_bytes, store_node};

/// Vectors of a thread.
pub const VECTORS: usize = 2;
/// Rows under way.
const STAGES: usize = 1;
/// The empty sum of eight columns.
const EMPTY: LanePairs = [Pair::ZERO; 8];

/// dx, and a node of dw for each leaf; block b takes leaves b, b + grid, …
///
/// As [`super::block::block`], but the running sums lie in shared memory, in places of the thread
/// that owns the columns, and the weight is read again for every row.
///
/// Contract: at most as many blocks as leaves, of a multiple of 32 threads with 512 elements a
/// warp covering H; run_log2 = 0; shared memory as [`shared_bytes`] says; 16-byte aligned bases,
/// row strides and H multiples of 8. Slots of the workspace: leaves in order.
///
/// # Safety
/// - `p` describes live buffers as [`BackwardParams`] says, and outputs overlap nothing.
/// - The launch keeps the contract.
#[inline(always)]
pub unsafe fn wide<W: Weight, const RESIDUAL: bool>(p: &BackwardParams) {
    let (thread, threads) = (thread::thread_idx_x(), thread::block_dim_x());
    let columns = Columns::<VECTORS>::of_warp(thread / 32, p.hidden);
    let mut sums = BlockSum::new(shared::base(), Group::block());
    let ring_base = shared::base() + SCRATCH_BYTES;
    let policy = CachePolicy::new(p.keep);
    // SAFETY: shared memory has the ring, and places of its own for the rest.
    let mut ring = unsafe { Ring::<VECTORS, 1, STAGES, 2>::new(ring_base, columns, policy) };
    let shelf_base = ring_base + ring_bytes(VECTORS as u32, 1, STAGES as u32, 2, threads);
    let node = Shelf::<VECTORS>::new(shelf_base);
    let leaf_mask = (1u32 << p.leaf_log2) - 1;
    let skip = (thread::grid_dim_x() - 1) << p.leaf_log2;
    let w = |v: usize| -> Lane {
        if !columns.holds(v) {
            return [0.0; 8];
        }
        // SAFETY: the vector is inside the weight.
        unsafe { weight_lane::<W>(p.w, p.weight_offset, columns.column(v)) }
    };

    let mut row = thread::block_idx_x() << p.leaf_log2;
    // SAFETY: rows below p.rows are inside the buffers; rows are the block's, so all its threads
    // make the same sums; places of shared memory and columns are the thread's own.
    unsafe {
        unroll!(VECTORS, |v| node.put(thread, v, &EMPTY));
        while row < p.rows {
            let coming = Cursor::at::<false>(p, row);
            ring.fill(columns, |r| coming.starts(p, r), 1);
            ring.wait();
            let current = RowWords::take(&ring, 0);
            sums.publish([current.dots(w)]);
            unroll!(VECTORS, |v| {
                let (dy, x) = current.forget().vector(v);
                let mut pairs = node.get(thread, v);
                accumulate(&mut pairs, &dy, &x, current.rstd);
                node.put(thread, v, &pairs);
            });
            let mut words = RowWords::take(&ring, 0);
            if RESIDUAL {
                // The ring has no room for it; it travels while the block meets.
                words.dh = columns.load(row_start::<false>(p.dh, row, p.dh_stride, p.groups));
            }
            let dot = sums.finish::<1, VECTORS>()[0];
            let out = dx_start::<false>(p, row);
            words.store_dx::<RESIDUAL>(p, columns, out, w, dot);

            let leaf_ends = (row + 1) & leaf_mask == 0;
            if leaf_ends || row + 1 == p.rows {
                unroll!(VECTORS, |v| {
                    if columns.holds(v) {
                        let slot = row >> p.leaf_log2;
                        let pairs = node.get(thread, v);
                        store_node(p.nodes, slot, p.hidden, columns.column(v), &pairs);
                    }
                    node.put(thread, v, &EMPTY);
                });
            }
            row += if leaf_ends { 1 + skip } else { 1 };
        }
    }
}

/// Bytes of shared memory that [`wide`] needs.
#[must_use]
pub const fn shared_bytes(threads: u32) -> u32 {
    SCRATCH_BYTES
        + ring_bytes(VECTORS as u32, 1, STAGES as u32, 2, threads)
        + shelf_bytes(VECTORS as u32, threads)
}
