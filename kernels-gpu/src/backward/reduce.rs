//! dw from the nodes that the backward stored.

use crate::arith::{LANE_ELEMENTS, Pair, unroll};
use crate::device::math::bf16x2;
use crate::device::{global, shared, thread};
use crate::params::{ReduceParams, WeightGradientOut};
use crate::tree::{
    Counter, FOLD_NARROW_BYTES, WIDTH, empty, fold_narrow, load_node, narrow_column, node_columns,
    shelf_bytes,
};

/// Nodes that a thread loads at once.
const BATCH: usize = 4;

/// dw_j = s ⊕ c of the root, for the 32 columns of a block.
///
/// Position i of the block ([`WIDTH`] threads) folds nodes i·2^chunk_log2 and following, then the
/// block folds its positions.
///
/// Contract: ⌈H / 32⌉ blocks of at most 16 warps, with (threads / 4) · 2^chunk_log2 ≥ nodes; shared
/// memory of [`shared_bytes`]; `nodes` 16-byte aligned.
///
/// # Safety
/// - `p` describes live buffers as [`ReduceParams`] says.
/// - The launch keeps the contract.
#[inline(always)]
pub unsafe fn reduce(p: &ReduceParams) {
    let position = thread::thread_idx_x() / WIDTH;
    let column = Columns32::of_block(thread::block_idx_x(), p.hidden);
    let load = |slot: u32| {
        if !column.inside {
            return empty::<1>()[0];
        }
        // SAFETY: slots below p.node_count were written by the kernel before.
        unsafe { load_node(p.nodes, slot, node_columns(p.hidden), column.first) }
    };

    let chunk = Chunk::of_position(position, p.node_count, p.chunk_log2);
    let counter = chunk_counter(p.chunk_log2);
    let mut node = empty::<1>();
    let mut index = 0;
    while index < chunk.count {
        // A batch of loads in flight, then their additions.
        let mut batch = empty::<BATCH>();
        unroll!(BATCH, |i| {
            if index + (i as u32) < chunk.count {
                batch[i] = load(chunk.first + index + i as u32);
            }
        });
        unroll!(BATCH, |i| {
            let index = index + i as u32;
            if index < chunk.count {
                node = [batch[i]];
                // SAFETY: this position's nodes come in order.
                unsafe { counter.push(index, index + 1 == chunk.count, &mut node) };
            }
        });
        index += BATCH as u32;
    }
    // SAFETY: every thread is here; dw has H elements.
    unsafe {
        let root = fold_narrow(shared::base(), &node[0], chunk.positions);
        store_dw(&p.dw, p.hidden, root);
    }
}

/// The eight columns of a thread, of the 32 of its block.
#[derive(Clone, Copy, Debug)]
pub struct Columns32 {
    /// First column.
    pub first: u32,
    /// Whether they are inside the row.
    pub inside: bool,
}

impl Columns32 {
    /// Columns of the calling thread in column task `task`.
    #[inline(always)]
    pub fn of_block(task: u32, hidden: u32) -> Self {
        let lane = thread::thread_idx_x() % WIDTH;
        let first = (task * WIDTH + lane) * LANE_ELEMENTS as u32;
        Self {
            first,
            inside: first < hidden,
        }
    }
}

/// The consecutive nodes of a position.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// First node.
    pub first: u32,
    /// Nodes.
    pub count: u32,
    /// Positions of the block that have nodes.
    pub positions: u32,
}

impl Chunk {
    /// Nodes of position `position`, of `nodes` in chunks of 2^log2.
    #[inline(always)]
    pub fn of_position(position: u32, nodes: u32, log2: u32) -> Self {
        let first = position << log2;
        Self {
            first,
            count: (1 << log2).min(nodes.saturating_sub(first)),
            positions: (nodes + ((1 << log2) - 1)) >> log2,
        }
    }
}

/// The counter of a position's chunk, behind the memory of [`fold_narrow`].
#[inline(always)]
pub fn chunk_counter(chunk_log2: u32) -> Counter<1> {
    Counter::new(
        shared::base() + FOLD_NARROW_BYTES,
        thread::block_dim_x(),
        chunk_log2,
    )
}

/// Bytes of shared memory for blocks of `threads` threads.
#[must_use]
pub const fn shared_bytes(threads: u32, chunk_log2: u32) -> u32 {
    FOLD_NARROW_BYTES + shelf_bytes(1, threads) * chunk_log2
}

/// Stores the columns of dw that [`fold_narrow`] gave the threads of warp 0, each rounded once, and
/// once more to BF16. The values that dw holds join the sum first, if they are to.
///
/// # Safety
/// - `out` is as [`WeightGradientOut`] says; the block's column task is its index.
#[inline(always)]
pub unsafe fn store_dw(out: &WeightGradientOut, hidden: u32, root: Pair) {
    let column = thread::block_idx_x() * WIDTH * LANE_ELEMENTS as u32 + narrow_column();
    if thread::thread_idx_x() < 32 && column < hidden {
        let column = column as usize;
        let mut root = root;
        // SAFETY: inside dw, and this thread alone accesses the column.
        unsafe {
            if out.accumulate != 0 {
                root = root.add_value(global::load_f32(out.dw.add(column)));
            }
            let dw = root.round();
            if !out.dw.is_null() {
                global::store_f32(out.dw.add(column), dw);
            }
            if !out.dw_bf16.is_null() {
                global::store_u16(out.dw_bf16.add(column), bf16x2(dw, 0.0) as u16);
            }
        }
    }
}
