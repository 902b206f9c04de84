//! The aligned binary tree over leaves in which dw is summed, and how nodes travel.
//!
//! Node m of level k covers leaves m·2ᵏ … (m + 1)·2ᵏ − 1: it is the sum of its left and its right
//! child, or its left child where there are no leaves on the right. Whoever owns an aligned run of
//! leaves may fold it alone: the result has the same bits.

use crate::arith::{LANE_ELEMENTS, LanePairs, Pair, TILE, combine, unroll};
use crate::device::{Words4, global, hint, shared, thread, warp};

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
    let pair = |sum: u32, comp: u32| Pair {
        sum: f32::from_bits(sum),
        comp: f32::from_bits(comp),
    };
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
        unroll!(4, |part| unsafe {
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
        unroll!(4, |part| unsafe {
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
        unroll!(VECTORS, |v| unsafe { self.put(owner, v, &node[v]) });
    }

    /// node = (the node in place `owner`) + node.
    ///
    /// # Safety
    /// - As [`Shelf::get`].
    #[inline(always)]
    pub unsafe fn add_left_of(self, owner: u32, node: &mut Node<VECTORS>) {
        // SAFETY: the caller's obligations.
        unroll!(VECTORS, |v| unsafe {
            node[v] = combine(&self.get(owner, v), &node[v])
        });
    }

    /// node = node + (the node in place `owner`).
    ///
    /// # Safety
    /// - As [`Shelf::get`].
    #[inline(always)]
    pub unsafe fn add_right_of(self, owner: u32, node: &mut Node<VECTORS>) {
        // SAFETY: the caller's obligations.
        unroll!(VECTORS, |v| unsafe {
            node[v] = combine(&node[v], &self.get(owner, v))
        });
    }
}

/// Columns of a node in the workspace: H, up to whole vectors.
#[must_use]
#[inline(always)]
pub const fn node_columns(hidden: u32) -> u32 {
    (hidden + 7) & !7
}

/// Where a node of the workspace holds eight columns: offsets of their [`PARTS`].
///
/// As on a [`Shelf`], the lanes' words of a tile lie beside each other, so that a warp accesses whole
/// lines: FP32 `[slots, tiles, 4, lanes, 4]`, a tile's sums of columns 0 to 3 and 4 to 7 of each lane,
/// then its compensations. The last tile has as many lanes as it needs: a node has 2·columns values.
#[derive(Clone, Copy, Debug)]
struct NodePlace {
    first: usize,
    /// Between the parts.
    step: usize,
}

impl NodePlace {
    #[inline(always)]
    fn new(slot: u32, columns: u32, column: u32) -> Self {
        let tile_start = column & !(TILE - 1);
        let lanes = TILE.min(columns - tile_start) / LANE_ELEMENTS as u32;
        let lane = (column - tile_start) / LANE_ELEMENTS as u32;
        let node = u64::from(slot) * 2 * u64::from(columns);
        Self {
            first: (node + u64::from(2 * tile_start + 4 * lane)) as usize,
            step: 4 * lanes as usize,
        }
    }
}

/// Stores eight columns of a node in slot `slot` of the workspace.
///
/// # Safety
/// - `nodes` has 2·`columns` FP32 values for each slot, 16-byte aligned, writable; `slot` is below
///   slots, and `columns` a multiple of 8 ([`node_columns`]).
/// - `column` is a multiple of 8 below `columns`; no other thread accesses the place.
#[inline(always)]
pub unsafe fn store_node(nodes: *mut f32, slot: u32, columns: u32, column: u32, pairs: &LanePairs) {
    // Worked out where it is needed: loops over rows have no registers to carry it.
    let place = NodePlace::new(slot, hint::forget(columns), hint::forget(column));
    let words = to_words(pairs);
    // SAFETY: inside the slot; offsets are multiples of 4 elements, which keeps 16-byte alignment.
    unroll!(4, |part| unsafe {
        let part_place = nodes.add(place.first + part * place.step);
        global::store_words4(part_place.cast(), words[part]);
    });
}

/// Loads eight columns of the node in slot `slot`.
///
/// # Safety
/// - As [`store_node`], readable; the place was written by an earlier kernel.
#[inline(always)]
pub unsafe fn load_node(nodes: *const f32, slot: u32, columns: u32, column: u32) -> LanePairs {
    let place = NodePlace::new(slot, columns, column);
    let mut words = [Words4::default(); PARTS as usize];
    // SAFETY: as for storing.
    unroll!(4, |part| unsafe {
        let part_place = nodes.add(place.first + part * place.step);
        words[part] = global::load_words4(part_place.cast());
    });
    from_words(words)
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
        Self {
            base,
            threads,
            log2,
        }
    }

    /// The shelf of level `level`. After n pushes, a thread's place holds the node of that level
    /// where bit `level` of n is set.
    #[inline(always)]
    pub fn level(self, level: u32) -> Shelf<VECTORS> {
        let bytes = shelf_bytes(VECTORS as u32, self.threads);
        Shelf::new(self.base + level * bytes)
    }

    /// Adds node number `index` modulo 2^log2 of the run. `node` becomes the run's node when
    /// `last` is set or the run complete (the answer is true then).
    ///
    /// # Safety
    /// - A run's nodes come in order from 0; shared memory holds the shelves, and no other thread
    ///   accesses the calling thread's places without a barrier in between.
    #[inline(always)]
    pub unsafe fn push(self, index: u32, last: bool, node: &mut Node<VECTORS>) -> bool {
        let thread = thread::thread_idx_x();
        let index = index & ((1 << self.log2) - 1);
        let mut level = 0;
        // SAFETY: the caller's obligations; a level is read only after it was written, since
        // its bit of `index` is set.
        unsafe {
            // The last node is the right child of every level that waits for one.
            while index >> level & 1 == 1 || last && index >> level != 0 {
                if index >> level & 1 == 1 {
                    self.level(level).add_left_of(thread, node);
                }
                level += 1;
            }
            if last || level == self.log2 {
                return true;
            }
            self.level(level).put_node(thread, node);
        }
        false
    }
}

/// Folds the nodes of a block's positions (groups of `width` threads, a node a position, the first
/// `present` of them): the root is position 0's `node` then.
///
/// # Safety
/// - Every thread of the block reaches this call, with the same `present`.
/// - The shelf is free, and `present` at most the number of positions.
#[inline(always)]
pub unsafe fn fold_positions<const VECTORS: usize>(
    shelf: Shelf<VECTORS>,
    node: &mut Node<VECTORS>,
    width: u32,
    present: u32,
) {
    let thread = thread::thread_idx_x();
    let position = thread / width;
    // SAFETY: a place is written by its owner alone, and only in steps in which nobody reads
    // it: positions that are multiples of 2·step read odd multiples of step.
    unsafe {
        shelf.put_node(thread, node);
        let mut step = 1;
        while step < present {
            thread::sync_threads();
            if position & (2 * step - 1) == 0 && position + step < present {
                shelf.add_right_of(thread + step * width, node);
                shelf.put_node(thread, node);
            }
            step *= 2;
        }
        thread::sync_threads();
    }
}

/// Threads that share a node's columns where positions are narrow: 32 columns.
pub const WIDTH: u32 = 4;
/// Positions of a warp.
const WARP_POSITIONS: u32 = 32 / WIDTH;
/// Most warps whose nodes [`fold_narrow`] folds.
const MAX_WARPS: usize = 16;

/// Bytes of shared memory that [`fold_narrow`] needs.
pub const FOLD_NARROW_BYTES: u32 = 2 * 4 * 32 * MAX_WARPS as u32;

/// As [`fold_positions`] for positions of [`WIDTH`] threads: every thread of warp 0 gets one column
/// of the root, number [`narrow_column`] of the block's 32 columns.
///
/// In each step neighbours exchange halves of their columns, so both work.
///
/// # Safety
/// - Every thread of the block reaches this call, with the same `present`; at most 16 warps.
/// - [`FOLD_NARROW_BYTES`] of shared memory at `base` are free.
#[inline(always)]
pub unsafe fn fold_narrow(base: u32, node: &LanePairs, present: u32) -> Pair {
    let thread = thread::thread_idx_x();
    let (warp, lane) = (thread / 32, thread % 32);
    let position = thread / WIDTH;
    // SAFETY: all lanes of each warp are here.
    let root = unsafe {
        let four: [Pair; 4] = exchange_halves(node, 1, position, present);
        let two: [Pair; 2] = exchange_halves(&four, 2, position, present);
        let one: [Pair; 1] = exchange_halves(&two, 4, position, present);
        one[0]
    };
    let warps = present.div_ceil(WARP_POSITIONS);
    if warps <= 1 {
        return root;
    }
    let place = |warp: u32| base + 8 * 32 * warp + 4 * lane;
    // SAFETY: places are the thread's own until the barrier, and read-only after it; those of
    // the first `warps` warps were written.
    unsafe {
        shared::store_f32(place(warp), root.sum);
        shared::store_f32(place(warp) + 4 * 32, root.comp);
        thread::sync_threads();
        if warp > 0 {
            return root;
        }
        let mut nodes = [Pair::ZERO; MAX_WARPS];
        let take = |nodes: &mut [Pair; MAX_WARPS], i: usize| {
            if (i as u32) < warps {
                let place = place(i as u32);
                let comp = shared::load_f32(place + 4 * 32);
                nodes[i] = Pair {
                    sum: shared::load_f32(place),
                    comp,
                };
            }
        };
        unroll!(8, |i| take(&mut nodes, i));
        unroll!(8, |i| take(&mut nodes, i + 8));
        unroll!(4, |level| {
            let step = 1 << level;
            unroll!(8, |m| {
                let left = 2 * step * m;
                if left + step < MAX_WARPS && ((left + step) as u32) < warps {
                    nodes[left] = nodes[left].combine(nodes[left + step]);
                }
            });
        });
        nodes[0]
    }
}

/// The column of the block that a thread has after [`fold_narrow`].
#[inline(always)]
pub fn narrow_column() -> u32 {
    let lane = thread::thread_idx_x() % 32;
    lane % WIDTH * LANE_ELEMENTS as u32 + (lane >> 2 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 4)
}

/// One step of [`fold_narrow`]: positions `distance` apart combine, the left one going on with the
/// first half of the columns, the right one with the second.
///
/// # Safety
/// - All 32 lanes of the warp reach this call together.
#[inline(always)]
unsafe fn exchange_halves<const COLUMNS: usize, const HALF: usize>(
    pairs: &[Pair; COLUMNS],
    distance: u32,
    position: u32,
    present: u32,
) -> [Pair; HALF] {
    const { assert!(COLUMNS == 2 * HALF) };
    let right = position & distance != 0;
    let has_right = (position & !(2 * distance - 1)) + distance < present;
    let mut out = [Pair::ZERO; HALF];
    unroll!(HALF, |i| {
        let (low, high) = (pairs[i], pairs[HALF + i]);
        let keep = high.or(low, right);
        let send = low.or(high, right);
        // SAFETY: the caller's obligation.
        let got = unsafe {
            Pair {
                sum: warp::shuffle_xor(send.sum, distance * WIDTH),
                comp: warp::shuffle_xor(send.comp, distance * WIDTH),
            }
        };
        let left = got.or(keep, right);
        out[i] = left.combine(keep.or(got, right)).or(left, has_right);
    });
    out
}
