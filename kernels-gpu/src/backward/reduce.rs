//! dw from the nodes that the backward stored.

use crate::arith::{LANE_ELEMENTS, LanePairs, combine, unroll};
use crate::device::{Words4, dependent, global, shared, thread};
use crate::params::ReduceParams;
use crate::tree::{Counter, Node, Shelf, empty, fold_positions, load_node, shelf_bytes};

/// Threads that share a node's columns in one block: 32 columns, 128 bytes a plane.
pub const WIDTH: u32 = 4;
/// Nodes that a thread loads at once.
const BATCH: usize = 4;

/// dw_j = s ⊕ c of the root, for the 32 columns of a block.
///
/// Position i of the block (4 threads) folds nodes i·2^chunk_log2 and following, the block folds
/// its positions, and the first position adds the right edge.
///
/// Contract: ⌈H / 32⌉ blocks of 4 · 2^m threads, 2^m · 2^chunk_log2 ≥ full_nodes;
/// shared memory of [`roots_bytes`]; `nodes` and `dw`
/// 16-byte aligned, H a multiple of 8.
///
/// # Safety
/// - `p` describes live buffers as [`ReduceParams`] says.
/// - The launch keeps the contract.
#[inline(always)]
pub unsafe fn reduce(p: &ReduceParams) {
    let thread = thread::thread_idx_x();
    let (position, lane) = (thread / WIDTH, thread % WIDTH);
    let column = thread::block_idx_x() * WIDTH * LANE_ELEMENTS as u32 + lane * LANE_ELEMENTS as u32;
    let inside = column < p.hidden;
    let load = |slot: u32| {
        if !inside {
            return empty::<1>()[0];
        }
        // SAFETY: slots below full_nodes + edge_nodes were written by the kernel before.
        unsafe { load_node(p.nodes, slot, p.hidden, column) }
    };

    dependent::wait();
    let first = position << p.chunk_log2;
    let taken = (1 << p.chunk_log2).min(p.full_nodes.saturating_sub(first));
    let roots = Roots::new(p.full_nodes, p.chunk_log2);
    let mut node = empty::<1>();
    let mut index = 0;
    while index < taken {
        // A batch of loads in flight, then their additions.
        let mut batch = empty::<BATCH>();
        unroll::<BATCH>(|i| {
            if index + (i as u32) < taken {
                batch[i] = load(first + index + i as u32);
            }
        });
        unroll::<BATCH>(|i| {
            if index + (i as u32) < taken {
                node = [batch[i]];
                // SAFETY: this position's nodes come in order.
                unsafe { roots.counter.push(index + i as u32, &mut node) };
            }
        });
        index += BATCH as u32;
    }

    // SAFETY: all threads are here.
    let root = unsafe { roots.fold(node, position, lane) };
    if position == 0 && inside {
        let mut root = root;
        let mut edge = 0;
        while edge < p.edge_nodes {
            let node = load(p.full_nodes + edge);
            root = if p.full_nodes == 0 && edge == 0 { node } else { combine(&root, &node) };
            edge += 1;
        }
        // SAFETY: eight columns inside dw, written by this thread alone.
        unsafe { store_dw(p.dw, column, &root) };
    }
}

/// Stores eight columns of dw, each rounded once.
///
/// # Safety
/// - `dw` is 16-byte aligned FP32 [hidden]; `column` is a multiple of 8 inside it.
#[inline(always)]
pub unsafe fn store_dw(dw: *mut f32, column: u32, root: &LanePairs) {
    let word = |i: usize| root[i].round().to_bits();
    // SAFETY: the caller's obligations.
    unsafe {
        let dw: *mut Words4 = dw.add(column as usize).cast();
        global::store_words4(dw, Words4(word(0), word(1), word(2), word(3)));
        global::store_words4(dw.add(1), Words4(word(4), word(5), word(6), word(7)));
    }
}

/// Folds nodes of a block's columns into one root: [`WIDTH`] threads a position, a chunk of
/// 2^chunk_log2 consecutive nodes a position.
#[derive(Clone, Copy, Debug)]
pub struct Roots {
    nodes: u32,
    chunk_log2: u32,
    shelf: Shelf<1>,
    /// Folds the chunk of a position.
    pub counter: Counter<1>,
}

/// Bytes of shared memory for [`Roots`] in a block of `threads` threads.
#[must_use]
pub const fn roots_bytes(threads: u32, chunk_log2: u32) -> u32 {
    shelf_bytes(1, threads) * (1 + chunk_log2)
}

impl Roots {
    /// For `nodes` nodes, with shared memory of [`roots_bytes`] at its base.
    #[inline(always)]
    pub fn new(nodes: u32, chunk_log2: u32) -> Self {
        let threads = thread::block_dim_x();
        let base = shared::base();
        Self {
            nodes,
            chunk_log2,
            shelf: Shelf::new(base),
            counter: Counter::new(base + shelf_bytes(1, threads), threads, chunk_log2),
        }
    }

    /// The root, in the threads of position 0; other positions get something else. `node` is the
    /// position's chunk, if complete.
    ///
    /// # Safety
    /// - Every thread of the block reaches this call, after it pushed its nodes.
    #[inline(always)]
    pub unsafe fn fold(self, mut node: Node<1>, position: u32, lane: u32) -> LanePairs {
        let complete = self.nodes >> self.chunk_log2;
        let rest = self.nodes & ((1 << self.chunk_log2) - 1);
        let levels = 31 - (thread::block_dim_x() / WIDTH).leading_zeros();
        // SAFETY: the barriers of fold_positions stand between the writes and these reads.
        unsafe {
            fold_positions(self.shelf, &mut node, WIDTH, complete);
            let mut root = node[0];
            if position == 0 {
                let mut start = 0;
                let mut level = levels + 1;
                while level > 0 {
                    level -= 1;
                    if complete >> level & 1 == 1 {
                        if start > 0 {
                            root = combine(&root, &self.shelf.get(start * WIDTH + lane, 0));
                        }
                        start += 1 << level;
                    }
                }
                // The incomplete chunk's nodes are where its position's threads counted them.
                let mut level = self.chunk_log2;
                while level > 0 {
                    level -= 1;
                    if rest >> level & 1 == 1 {
                        let node = self.counter.level(level).get(complete * WIDTH + lane, 0);
                        root = if start > 0 { combine(&root, &node) } else { node };
                        start += 1;
                    }
                }
            }
            root
        }
    }
}
