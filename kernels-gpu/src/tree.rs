//! The aligned binary tree over leaves in which dw is summed, and how nodes travel.
//!
//! Node m of level k covers leaves m·2ᵏ … (m + 1)·2ᵏ − 1. n leaves make one node for each set bit
//! of n, the largest first; these fold from left to right. Whoever owns an aligned run of leaves
//! may fold it alone: the result has the same bits.

use crate::arith::{LANE_ELEMENTS, LanePairs, Pair, combine, unroll};
use crate::device::{Words4, global, shared, thread};

/// The pairs of a thread's columns: one node of the tree, or a part of it.
pub type Node<const VECTORS: usize> = [LanePairs; VECTORS];

/// The node of an empty sum: where a leaf starts.
#[inline(always)]
pub const fn empty<const VECTORS: usize>() -> Node<VECTORS> {
    [[Pair::ZERO; LANE_ELEMENTS]; VECTORS]
}

/// 16-byte words of one vector's pairs: sums of columns 0 to 3 and 4 to 7, then compensations.
const PARTS: u32 = 4;

#[inline(always)]
fn to_words(pairs: &LanePairs) -> [Words4; PARTS as usize] {
    let sum = |i: usize| pairs[i].sum.to_bits();
    let comp = |i: usize| pairs[i].comp.to_bits();
    [
        Words4(sum(0), sum(1), sum(2), sum(3)),
        Words4(sum(4), sum(5), sum(6), sum(7)),
        Words4(comp(0), comp(1), comp(2), comp(3)),
        Words4(comp(4), comp(5), comp(6), comp(7)),
    ]
}

#[inline(always)]
fn from_words(words: [Words4; PARTS as usize]) -> LanePairs {
    let pair = |sum: u32, comp: u32| Pair { sum: f32::from_bits(sum), comp: f32::from_bits(comp) };
    [
        pair(words[0].0, words[2].0),
        pair(words[0].1, words[2].1),
        pair(words[0].2, words[2].2),
        pair(words[0].3, words[2].3),
        pair(words[1].0, words[3].0),
        pair(words[1].1, words[3].1),
        pair(words[1].2, words[3].2),
        pair(words[1].3, words[3].3),
    ]
}

/// Bytes of shared memory that `threads` threads need for a node each.
#[must_use]
#[inline(always)]
pub const fn shelf_bytes(vectors: u32, threads: u32) -> u32 {
    vectors * PARTS * 16 * threads
}

/// Shared memory with a place for a node of every thread. A warp's places lie together, a lane's
/// 16 bytes beside its neighbour's: accesses meet no bank conflict.
#[derive(Clone, Copy, Debug)]
pub struct Shelf<const VECTORS: usize> {
    base: u32,
}

impl<const VECTORS: usize> Shelf<VECTORS> {
    /// A shelf of [`shelf_bytes`] bytes at shared address `base`.
    #[inline(always)]
    pub fn new(base: u32) -> Self {
        Self { base }
    }

    #[inline(always)]
    fn address(self, owner: u32, v: usize, part: usize) -> u32 {
        let warp = self.base + owner / 32 * shelf_bytes(VECTORS as u32, 32);
        warp + owner % 32 * 16 + 512 * (v as u32 * PARTS + part as u32)
    }

    /// Puts vector `v` of a node in place `owner`.
    ///
    /// # Safety
    /// - The shelf is inside the launch's shared memory, and `owner` below its threads.
    /// - No other thread accesses the place without a barrier in between.
    #[inline(always)]
    pub unsafe fn put(self, owner: u32, v: usize, pairs: &LanePairs) {
        let words = to_words(pairs);
        // SAFETY: the caller's obligations.
        unroll::<4>(|part| unsafe {
            shared::store_words4(self.address(owner, v, part), words[part]);
        });
    }

    /// Takes vector `v` of the node in place `owner`.
    ///
    /// # Safety
    /// - As [`Shelf::put`]; the place was written.
    #[inline(always)]
    pub unsafe fn get(self, owner: u32, v: usize) -> LanePairs {
        let mut words = [Words4::default(); PARTS as usize];
        // SAFETY: the caller's obligations.
        unroll::<4>(|part| unsafe {
            words[part] = shared::load_words4(self.address(owner, v, part));
        });
        from_words(words)
    }

    /// Puts a node in place `owner`.
    ///
    /// # Safety
    /// - As [`Shelf::put`].
    #[inline(always)]
    pub unsafe fn put_node(self, owner: u32, node: &Node<VECTORS>) {
        // SAFETY: the caller's obligations.
        unroll::<VECTORS>(|v| unsafe { self.put(owner, v, &node[v]) });
    }

    /// node = (the node in place `owner`) + node.
    ///
    /// # Safety
    /// - As [`Shelf::get`].
    #[inline(always)]
    pub unsafe fn add_left_of(self, owner: u32, node: &mut Node<VECTORS>) {
        // SAFETY: the caller's obligations.
        unroll::<VECTORS>(|v| unsafe { node[v] = combine(&self.get(owner, v), &node[v]) });
    }

    /// node = node + (the node in place `owner`).
    ///
    /// # Safety
    /// - As [`Shelf::get`].
    #[inline(always)]
    pub unsafe fn add_right_of(self, owner: u32, node: &mut Node<VECTORS>) {
        // SAFETY: the caller's obligations.
        unroll::<VECTORS>(|v| unsafe { node[v] = combine(&node[v], &self.get(owner, v)) });
    }
}

/// Stores eight columns of a node in slot `slot` of the workspace: sums, then compensations.
///
/// # Safety
/// - `nodes` is FP32 [slots, 2, hidden], 16-byte aligned, writable; `slot` is below slots.
/// - `column` is a multiple of 8 and `column + 8 ≤ hidden`; no other thread accesses the place.
#[inline(always)]
pub unsafe fn store_node(nodes: *mut f32, slot: u32, hidden: u32, column: u32, pairs: &LanePairs) {
    let words = to_words(pairs);
    let sums = (u64::from(slot) * 2 * u64::from(hidden) + u64::from(column)) as usize;
    let comps = sums + hidden as usize;
    // SAFETY: inside the workspace; multiples of 8 elements keep 16-byte alignment.
    unsafe {
        global::store_words4(nodes.add(sums).cast(), words[0]);
        global::store_words4(nodes.add(sums + 4).cast(), words[1]);
        global::store_words4(nodes.add(comps).cast(), words[2]);
        global::store_words4(nodes.add(comps + 4).cast(), words[3]);
    }
}

/// Loads eight columns of the node in slot `slot`.
///
/// # Safety
/// - As [`store_node`], readable; the place was written by an earlier kernel.
#[inline(always)]
pub unsafe fn load_node(nodes: *const f32, slot: u32, hidden: u32, column: u32) -> LanePairs {
    let sums = (u64::from(slot) * 2 * u64::from(hidden) + u64::from(column)) as usize;
    let comps = sums + hidden as usize;
    // SAFETY: inside the workspace; multiples of 8 elements keep 16-byte alignment.
    unsafe {
        from_words([
            global::load_words4(nodes.add(sums).cast()),
            global::load_words4(nodes.add(sums + 4).cast()),
            global::load_words4(nodes.add(comps).cast()),
            global::load_words4(nodes.add(comps + 4).cast()),
        ])
    }
}

/// A binary counter that folds the 2^log2 consecutive nodes of a run as one thread visits them.
/// Its levels lie in shared memory, where each thread touches its own places: no barrier needed.
#[derive(Clone, Copy, Debug)]
pub struct Counter<const VECTORS: usize> {
    base: u32,
    threads: u32,
    log2: u32,
}

impl<const VECTORS: usize> Counter<VECTORS> {
    /// A counter for runs of 2^`log2` nodes, with `log2` shelves for `threads` threads from
    /// shared address `base` on.
    #[inline(always)]
    pub fn new(base: u32, threads: u32, log2: u32) -> Self {
        Self { base, threads, log2 }
    }

    /// The shelf of level `level`. After n pushes, a thread's place holds the node of that level
    /// where bit `level` of n is set.
    #[inline(always)]
    pub fn level(self, level: u32) -> Shelf<VECTORS> {
        let bytes = shelf_bytes(VECTORS as u32, self.threads);
        Shelf::new(self.base + level * bytes)
    }

    /// Adds node number `index` modulo 2^log2 of the run; true when `node` has become the run's node.
    ///
    /// # Safety
    /// - A run's nodes come in order from 0; shared memory holds the shelves, and no other thread
    ///   accesses the calling thread's places without a barrier in between.
    #[inline(always)]
    pub unsafe fn push(self, index: u32, node: &mut Node<VECTORS>) -> bool {
        let thread = thread::thread_idx_x();
        let index = index & ((1 << self.log2) - 1);
        let mut level = 0;
        // SAFETY: the caller's obligations; a level is read only after it was written, since
        // its bit of `index` is set.
        unsafe {
            while index >> level & 1 == 1 {
                self.level(level).add_left_of(thread, node);
                level += 1;
            }
            if level == self.log2 {
                return true;
            }
            self.level(level).put_node(thread, node);
        }
        false
    }
}

/// Folds the nodes of a block's positions (groups of `width` threads, a node a position) in the
/// aligned tree. On return the roots stand at the positions that the binary expansion of
/// `complete` gives, both in their threads' `node` and on the shelf, which all may read.
///
/// # Safety
/// - Every thread of the block reaches this call, with the same `complete`.
/// - The shelf is free, and `complete` at most the number of positions.
#[inline(always)]
pub unsafe fn fold_positions<const VECTORS: usize>(
    shelf: Shelf<VECTORS>,
    node: &mut Node<VECTORS>,
    width: u32,
    complete: u32,
) {
    let thread = thread::thread_idx_x();
    let position = thread / width;
    // SAFETY: a place is written by its owner alone, and only in steps in which nobody reads
    // it: positions that are multiples of 2·step read odd multiples of step.
    unsafe {
        shelf.put_node(thread, node);
        let mut step = 1;
        while 2 * step <= complete {
            thread::sync_threads();
            let pair = 2 * step;
            if position & (pair - 1) == 0 && position + pair <= complete {
                shelf.add_right_of(thread + step * width, node);
                shelf.put_node(thread, node);
            }
            step = pair;
        }
        thread::sync_threads();
    }
}
