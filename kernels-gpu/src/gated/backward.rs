//! Backward of the gated form: dx, dz, and nodes of dw, which
//! [`crate::backward::reduce`] folds. dy, x and z are read once.

use crate::arith::{Lane, LanePairs, Width, unroll};
use crate::device::global::{self, CachePolicy};
use crate::device::{Words4, shared, thread};
use crate::gated::forward::{weight, weights};
use crate::gated::gate::Formula;
use crate::gated::params::GatedBackwardParams;
use crate::gated::place::Part;
use crate::gated::ring::{DY, Ring, X, Z, ring_bytes};
use crate::gated::row::{Norm, StoredRow};
use crate::gated::sums::{LaneSums, RowSums};
use crate::gated::turn::{Step, Turn};
use crate::row_sum::{BlockSum, Group, SCRATCH_BYTES};
use crate::rows::{Columns, NO_WORDS, Weight};
use crate::tree::{Counter, Node, Shelf, empty, fold_positions, shelf_bytes, store_node};

/// Rows under way.
pub const STAGES: usize = 2;

/// `LANES` lanes of a warp (8, 16 or 32) a row at a time; each lane has `VECTORS` vectors, which is
/// one but for 32 lanes.
///
/// A worker of the group takes runs of 2^run_log2 leaves in turn. The lanes of a row form a
/// position: each of the block's positions sums an equal, aligned part of the run's leaves, its
/// share, and the block folds its positions. Rows travel through a [`Ring`].
///
/// Contract: groups · n blocks of a power of two of positions, at most 2^run_log2, n at most the
/// number of runs; width ≤ 8 · `LANES` · `VECTORS`; shared memory as [`warp_shared_bytes`] says;
/// 16-byte aligned bases. The workspace has a slot for each run.
///
/// # Safety
/// - `p` describes live buffers as [`GatedBackwardParams`] says, and outputs overlap nothing.
/// - The launch keeps the contract.
#[inline(always)]
pub unsafe fn warp<W: Weight, const GATE_FIRST: bool, const LANES: usize, const VECTORS: usize>(
    p: &GatedBackwardParams,
) {
    let (thread, threads) = (thread::thread_idx_x(), thread::block_dim_x());
    let positions = threads / LANES as u32;
    let position = thread / LANES as u32;
    let part = Part::of_block(p.groups);
    let columns = Columns::<VECTORS> {
        first: 8 * (thread % LANES as u32),
        hidden: p.width,
    };
    let share_log2 = p.run_log2 - log2(positions);
    let turn = Turn::<1> {
        rows: p.rows,
        heads: p.heads,
        run_log2: p.run_log2 + p.leaf_log2,
        share_log2: p.leaf_log2 + share_log2,
        position,
        behind: thread % 32 / LANES as u32,
        workers: part.workers,
    };
    let mut rows = Rows::<W, GATE_FIRST, VECTORS>::new(p, part.group, columns, shared::base());
    let levels = shared::base() + ring_bytes(VECTORS as u32, STAGES as u32, threads);
    let counter = Counter::<VECTORS>::new(levels, threads, share_log2);
    let mut sums = LaneSums::<LANES>;

    let mut coming = turn.start(part.worker);
    // SAFETY: rows below p.rows are inside the buffers; a stage is filled again only after its
    // row is done.
    unroll!(STAGES, |_| unsafe { rows.fetch(turn, &mut coming) });
    let mut run = part.worker;
    while run < turn.runs() {
        let mut row = turn.start(run);
        let mut node = empty::<VECTORS>();
        while row.left > 0 {
            let valid = row.row < p.rows;
            // SAFETY: rows are inside the buffers; the lanes of the warp are here together, and
            // each thread alone writes its columns. Leaves of a share come in order.
            unsafe {
                rows.run(row, valid, &mut sums, |v, exact, factor| {
                    if valid {
                        accumulate(&mut node[v], exact, factor);
                    }
                });
                rows.fetch(turn, &mut coming);
                if valid && !p.nodes.is_null() {
                    let done = row.row + 1;
                    close_leaf(p, counter, done, turn.ends(done), &mut node);
                }
            }
            row = turn.after(row);
        }
        if !p.nodes.is_null() {
            let present = turn.present(run);
            // SAFETY: every thread of the block is here. The shelf may be the counter's, whose
            // places are each thread's own and no longer needed.
            unsafe {
                fold_positions(
                    counter.level(0),
                    &mut node,
                    LANES as u32,
                    present.min(positions),
                );
                if position == 0 {
                    unroll!(VECTORS, |v| store_pairs(
                        p, columns, part.group, run, v, &node[v]
                    ));
                }
            }
        }
        run += part.workers;
    }
}

/// Bytes of shared memory that [`warp`] needs.
#[must_use]
pub const fn warp_shared_bytes(vectors: u32, threads: u32, positions: u32, run_log2: u32) -> u32 {
    let share_log2 = run_log2 - log2(positions);
    let shelves = if share_log2 == 0 { 1 } else { share_log2 };
    ring_bytes(vectors, STAGES as u32, threads) + shelves * shelf_bytes(vectors, threads)
}

/// A block a row at a time: warp i holds tiles `VECTORS · i` and following. A worker of the group
/// takes runs of 2^run_log2 leaves in turn and folds each by itself. With more than one vector the
/// running sums lie in shared memory, in places of the thread that owns the columns.
///
/// Contract: groups · n blocks of a multiple of 32 threads with `VECTORS · 256` elements a warp
/// covering the width, n at most the number of runs; shared memory as [`block_shared_bytes`] says;
/// 16-byte aligned bases. The workspace has a slot for each run.
///
/// # Safety
/// - As [`warp`].
#[inline(always)]
pub unsafe fn block<W: Weight, const GATE_FIRST: bool, const VECTORS: usize>(
    p: &GatedBackwardParams,
) {
    let (thread, threads) = (thread::thread_idx_x(), thread::block_dim_x());
    let part = Part::of_block(p.groups);
    let columns = Columns::<VECTORS>::of_warp(thread / 32, p.width);
    let turn = Turn::<1> {
        rows: p.rows,
        heads: p.heads,
        run_log2: p.run_log2 + p.leaf_log2,
        share_log2: p.run_log2 + p.leaf_log2,
        position: 0,
        behind: 0,
        workers: part.workers,
    };
    let mut sums = BlockSum::new(shared::base(), Group::block());
    let ring = shared::base() + SCRATCH_BYTES;
    let mut rows = Rows::<W, GATE_FIRST, VECTORS>::new(p, part.group, columns, ring);
    let shelf = ring + ring_bytes(VECTORS as u32, STAGES as u32, threads);
    let running = Shelf::<VECTORS>::new(shelf);
    let levels = shelf + running_bytes(VECTORS as u32, threads);
    let counter = |v: usize| {
        let shelves = v as u32 * p.run_log2 * shelf_bytes(1, threads);
        Counter::<1>::new(levels + shelves, threads, p.run_log2)
    };
    let leaf_mask = (1u32 << p.leaf_log2) - 1;

    let mut coming = turn.start(part.worker);
    // SAFETY: as in `warp`.
    unroll!(STAGES, |_| unsafe { rows.fetch(turn, &mut coming) });
    let mut run = part.worker;
    while run < turn.runs() {
        let mut row = turn.start(run);
        let mut node = empty::<VECTORS>();
        while row.left > 0 {
            let new_leaf = row.row & leaf_mask == 0;
            let done = row.row + 1;
            // SAFETY: rows are inside the buffers; the block's threads have the same rows, and
            // each alone accesses its columns and its places of shared memory. Leaves come in
            // order.
            unsafe {
                rows.run(row, true, &mut sums, |v, exact, factor| {
                    if VECTORS == 1 {
                        accumulate(&mut node[v], exact, factor);
                    } else {
                        let mut pairs = empty::<1>()[0];
                        if !new_leaf {
                            pairs = running.get(thread, v);
                        }
                        accumulate(&mut pairs, exact, factor);
                        running.put(thread, v, &pairs);
                    }
                });
                rows.fetch(turn, &mut coming);
                let ends = row.left == 1;
                if !p.nodes.is_null() && (done & leaf_mask == 0 || ends) {
                    // Vector by vector: registers are short.
                    unroll!(VECTORS, |v| {
                        let mut leaf = [node[v]];
                        if VECTORS > 1 {
                            leaf[0] = running.get(thread, v);
                        }
                        let counter = counter(v);
                        if counter.push((done - 1) >> p.leaf_log2, ends, &mut leaf) {
                            store_pairs(p, columns, part.group, run, v, &leaf[0]);
                        }
                    });
                    node = empty();
                }
            }
            row = turn.after(row);
        }
        run += part.workers;
    }
}

/// Bytes of the running sums, where they are in shared memory.
#[inline(always)]
const fn running_bytes(vectors: u32, threads: u32) -> u32 {
    if vectors > 1 {
        shelf_bytes(vectors, threads)
    } else {
        0
    }
}

/// Bytes of shared memory that [`block`] needs.
#[must_use]
pub const fn block_shared_bytes(vectors: u32, threads: u32, run_log2: u32) -> u32 {
    SCRATCH_BYTES
        + ring_bytes(vectors, STAGES as u32, threads)
        + running_bytes(vectors, threads)
        + run_log2 * shelf_bytes(vectors, threads)
}

/// log₂ of a power of two.
#[inline(always)]
pub(super) const fn log2(power: u32) -> u32 {
    31 - power.leading_zeros()
}

/// Adds a row's terms to the sums of eight columns.
#[inline(always)]
pub(super) fn accumulate(pairs: &mut LanePairs, exact: &Lane, factor: &Lane) {
    unroll!(8, |i| pairs[i] = pairs[i].add_product(exact[i], factor[i]));
}

/// After a leaf's last row, which is the one before row `done`, adds the leaf to its share; `node`
/// starts the next leaf, or is the share's node where the share `ends`.
///
/// # Safety
/// - As [`warp`]; rows of a share come in order.
#[inline(always)]
pub(super) unsafe fn close_leaf<const VECTORS: usize>(
    p: &GatedBackwardParams,
    counter: Counter<VECTORS>,
    done: u32,
    ends: bool,
    node: &mut Node<VECTORS>,
) {
    let leaf_mask = (1u32 << p.leaf_log2) - 1;
    if done & leaf_mask == 0 || ends {
        // SAFETY: the caller's obligations; shared memory has the counter's shelves.
        let complete = unsafe { counter.push((done - 1) >> p.leaf_log2, ends, node) };
        if !complete {
            *node = empty();
        }
    }
}

/// The rows of one group, for a thread with some of its columns.
struct Rows<'a, W: Weight, const GATE_FIRST: bool, const VECTORS: usize> {
    p: &'a GatedBackwardParams,
    columns: Columns<VECTORS>,
    group: u32,
    norm: Norm,
    ring: Ring<VECTORS, STAGES>,
    weight: core::marker::PhantomData<W>,
    w: [Lane; VECTORS],
}

impl<'a, W: Weight, const GATE_FIRST: bool, const VECTORS: usize> Rows<'a, W, GATE_FIRST, VECTORS> {
    #[inline(always)]
    fn new(p: &'a GatedBackwardParams, group: u32, columns: Columns<VECTORS>, ring: u32) -> Self {
        Self {
            p,
            columns,
            group,
            norm: Norm {
                width: Width::new(p.width),
                eps: p.eps,
            },
            ring: Ring::new(ring, CachePolicy::new(p.keep)),
            weight: core::marker::PhantomData,
            w: if VECTORS == 1 {
                // SAFETY: the weight has an element a column.
                unsafe { weights::<W, VECTORS>(columns, p.w, (group * p.width) as usize) }
            } else {
                [[0.0; 8]; VECTORS]
            },
        }
    }

    /// First column of the group.
    #[inline(always)]
    fn first(&self) -> usize {
        (self.group * self.p.width) as usize
    }

    /// Starts to copy row `coming` to the ring, and moves on to the next.
    ///
    /// # Safety
    /// - `p` describes live buffers; the current stage is free.
    #[inline(always)]
    unsafe fn fetch(&mut self, turn: Turn<1>, coming: &mut Step) {
        let (p, place, first) = (self.p, coming.place, self.first());
        let present = coming.left > 0 && coming.row < p.rows;
        let starts = || {
            [
                place.start(p.dy, p.dy_strides).wrapping_add(first),
                place.start(p.x, p.x_strides).wrapping_add(first),
                place.start(p.z, p.z_strides).wrapping_add(first),
            ]
        };
        // SAFETY: the row and the group's columns are inside the buffers, if it is there.
        unsafe { self.ring.fill(self.columns, starts, present) };
        if coming.left > 0 {
            *coming = turn.next(*coming);
        }
    }

    /// Stores dx and dz of the ring's current row, if it is `valid`; hands its terms of dw to `add`,
    /// where they are wanted.
    ///
    /// # Safety
    /// - As [`RowSums::one`]; a valid row is inside dx and dz, and this thread alone writes its
    ///   columns. The current stage was filled with it.
    #[inline(always)]
    unsafe fn run(
        &self,
        row: Step,
        valid: bool,
        sums: &mut impl RowSums<VECTORS>,
        mut add: impl FnMut(usize, &Lane, &Lane),
    ) {
        let (p, place) = (self.p, row.place);
        let given = (!p.rstd.is_null()).then(|| {
            if !valid {
                return 1.0;
            }
            let index = u64::from(row.row) * u64::from(p.groups) + u64::from(self.group);
            // SAFETY: the row has an element a group.
            unsafe { global::load_f32(p.rstd.add(index as usize)) }
        });
        self.ring.wait();
        let stored = InRing {
            ring: &self.ring,
            columns: self.columns,
            valid,
        };
        let add = |v: usize, exact: &Lane, factor: &Lane| {
            if !p.nodes.is_null() {
                add(v, exact, factor);
            }
        };
        let store = |v: usize, dx: Words4, dz: Words4| {
            if valid {
                // Addresses are worked out here: carrying them through the sums costs registers.
                let columns = self.columns.forget();
                let start = |base, strides| {
                    let start = place.start_mut(base, strides);
                    start.wrapping_add(self.first())
                };
                // SAFETY: the row is inside dx and dz.
                unsafe {
                    columns.store(start(p.dx, p.dx_strides), v, dx);
                    columns.store(start(p.dz, p.dz_strides), v, dz);
                }
            }
        };
        // SAFETY: the caller's obligation.
        unsafe {
            let w = |v: usize| {
                if VECTORS == 1 {
                    self.w[v]
                } else {
                    // Not kept: registers are short.
                    weight::<W, VECTORS>(self.columns, p.w, self.first(), v)
                }
            };
            self.norm.backward::<GATE_FIRST, VECTORS>(
                &stored,
                given,
                (w, Formula),
                sums,
                add,
                store,
            );
        }
    }
}

/// Stores the pairs of vector `v` of the node of run `run`, of the columns of a group.
///
/// # Safety
/// - The workspace has a slot for the run, and this thread alone writes its columns of it.
#[inline(always)]
pub(super) unsafe fn store_pairs<const VECTORS: usize>(
    p: &GatedBackwardParams,
    columns: Columns<VECTORS>,
    group: u32,
    run: u32,
    v: usize,
    pairs: &LanePairs,
) {
    if columns.holds(v) {
        let column = group * p.width + columns.column(v);
        // SAFETY: the caller's obligations.
        unsafe { store_node(p.nodes, run, p.groups * p.width, column, pairs) };
    }
}

/// The current row of a ring that was waited for; zeros where there is none.
struct InRing<'a, const VECTORS: usize> {
    ring: &'a Ring<VECTORS, STAGES>,
    columns: Columns<VECTORS>,
    valid: bool,
}

impl<const VECTORS: usize> InRing<'_, VECTORS> {
    #[inline(always)]
    fn get(&self, tensor: usize, v: usize) -> Words4 {
        if self.valid {
            // SAFETY: the stage was filled with the row, and waited for.
            unsafe { self.ring.get(self.columns, tensor, v) }
        } else {
            NO_WORDS
        }
    }
}

impl<const VECTORS: usize> StoredRow for InRing<'_, VECTORS> {
    #[inline(always)]
    fn dy(&self, v: usize) -> Words4 {
        self.get(DY, v)
    }

    #[inline(always)]
    fn x(&self, v: usize) -> Words4 {
        self.get(X, v)
    }

    #[inline(always)]
    fn z(&self, v: usize) -> Words4 {
        self.get(Z, v)
    }

    #[inline(always)]
    fn replace_x(&self, v: usize, words: Words4) {
        if self.valid && self.columns.holds(v) {
            // SAFETY: the thread's own place of the stage.
            unsafe { self.ring.put(X, v, words) };
        }
    }
}
