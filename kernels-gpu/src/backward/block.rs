//! Backward, a group of warps a row.

use crate::arith::{Lane, TILE, unroll};
use crate::backward::row::{Cursor, DH, RowWords, dx_start};
use crate::device::global::CachePolicy;
use crate::device::{hint, shared, thread, warp};
use crate::params::BackwardParams;
use crate::ring::{Ring, ring_bytes};
use crate::row_sum::{BlockSum, Group, SCRATCH_BYTES};
use crate::rows::{Columns, Weight, weights};
use crate::tree::{Counter, Node, empty, fold_positions, shelf_bytes, store_node};

/// dx, and a node of dw for each run of 2^run_log2 leaves; block b takes runs b, b + grid, …
///
/// The block is cut into groups, each wide enough for a row, that work side by side so that one
/// computes while another waits. A group's share of a run is an equal, aligned part of its leaves.
/// A step of a group takes `ROWS` rows (one or two) and has one barrier, that of their dot products.
/// Rows travel through a [`Ring`] of `STAGES` steps; a group's leaves fold in a [`Counter`]; each
/// thread owns its columns in both. At the end of a run the block folds its groups. `TENSORS` is 2,
/// or 3 in the residual form.
///
/// Contract: at most as many blocks as runs; blocks of 2^g groups of [`group_threads`], g ≤ run_log2
/// and at most 8 groups; H ≤ 16,384; shared memory as [`shared_bytes`] says; 16-byte aligned bases,
/// row strides and H multiples of 8. The workspace has a slot for each run.
///
/// # Safety
/// - `p` describes live buffers as [`BackwardParams`] says, and outputs overlap nothing.
/// - The launch keeps the contract.
#[inline(always)]
pub unsafe fn block<
    W: Weight,
    const VECTORS: usize,
    const ROWS: usize,
    const STAGES: usize,
    const TENSORS: usize,
>(
    p: &BackwardParams,
) {
    let threads = thread::block_dim_x();
    let mut group = Group::of_thread(group_threads(VECTORS as u32, p.hidden));
    // SAFETY: all lanes are here, and groups have whole warps.
    group.index = unsafe { warp::uniform(group.index) };
    let groups = group.count();
    let share_log2 = p.run_log2 - log2(groups);
    let columns = Columns::<VECTORS>::of_warp(group.thread / 32, p.hidden);
    let mut sums = BlockSum::new(shared::base(), group);
    let ring_base = shared::base() + groups * SCRATCH_BYTES;
    let policy = CachePolicy::new(p.keep);
    // SAFETY: shared memory has the ring, and places of its own for the rest.
    let mut ring =
        unsafe { Ring::<VECTORS, ROWS, STAGES, TENSORS>::new(ring_base, columns, policy) };
    let ring_bytes = ring_bytes(
        VECTORS as u32,
        ROWS as u32,
        STAGES as u32,
        TENSORS as u32,
        threads,
    );
    let counter = Counter::<VECTORS>::new(ring_base + ring_bytes, threads, share_log2);

    // A share has an aligned power of two of rows: all its steps have ROWS rows, or it has one
    // row. Rows stay below 2³¹, runs of a grid within twice that; past the end nothing moves.
    let share_rows_log2 = p.leaf_log2 + share_log2;
    let skip = || (thread::grid_dim_x() * groups - 1) << share_rows_log2;
    let full = if ROWS == 1 {
        1
    } else {
        (ROWS as u32).min(1 << share_rows_log2)
    };
    let count = |row: u32| match ROWS {
        1 => u32::from(row < p.rows),
        _ => full.min(p.rows.saturating_sub(row)),
    };
    let share_mask = (1 << share_rows_log2) - 1;
    let cursor = |row: u32| Cursor::<TENSORS>::at::<false>(p, row);
    let first = (thread::block_idx_x() * groups + group.index) << share_rows_log2;
    let mut coming = cursor(first);
    let fill = |ring: &mut Ring<VECTORS, ROWS, STAGES, TENSORS>, coming: &mut Cursor<TENSORS>| {
        let rows = count(coming.row);
        // SAFETY: rows below p.rows are inside the buffers; a stage is filled again only after its
        // rows are done.
        unsafe { ring.fill(columns, |r| coming.starts(p, r), rows) };
        if rows > 0 {
            let next = coming.row + full;
            if next & share_mask == 0 {
                *coming = cursor(next + skip());
            } else {
                coming.advance(p, ROWS as u32);
            }
        }
    };
    unroll!(STAGES, |_| fill(&mut ring, &mut coming));
    // SAFETY: the weight has H elements.
    let w = weights::<W, VECTORS>(unsafe { columns.load_weight::<W>(p.w) }, p.weight_offset);

    let leaves = (p.rows + ((1 << p.leaf_log2) - 1)) >> p.leaf_log2;
    let mut run = thread::block_idx_x();
    while run << p.run_log2 < leaves {
        let mut row = (run * groups + group.index) << share_rows_log2;
        let end = p.rows.min(row + share_mask + 1);
        let mut node = empty::<VECTORS>();
        let mut out = dx_start::<false>(p, row);
        while row < end {
            ring.wait();
            // SAFETY: rows are the group's, so all its threads make the same sums; rows are
            // inside dx, and this thread alone writes its columns.
            unsafe {
                let step = Step {
                    p,
                    columns,
                    w: &w,
                    counter,
                    row,
                    out,
                    count: if ROWS == 1 { 1 } else { count(row) },
                };
                let words = step.words(&ring);
                step.run(&words, &ring, &mut sums, &mut node);
            }
            fill(&mut ring, &mut coming);
            row += full;
            out = out.wrapping_offset(p.dx_stride.row.wrapping_mul(ROWS as i64) as isize);
        }
        // SAFETY: every thread of the block is here.
        unsafe { close_run(p, columns, counter, run, leaves, node) };
        run += thread::grid_dim_x();
    }
}

/// Threads of a group: enough warps of `vectors` tiles for a row.
#[must_use]
#[inline(always)]
pub const fn group_threads(vectors: u32, hidden: u32) -> u32 {
    32 * hidden.div_ceil(TILE * vectors)
}

/// Bytes of shared memory that [`block`] needs.
#[must_use]
pub const fn shared_bytes(
    vectors: u32,
    rows: u32,
    stages: u32,
    residual: bool,
    group_threads: u32,
    groups: u32,
    run_log2: u32,
) -> u32 {
    let tensors = if residual { 3 } else { 2 };
    let threads = group_threads * groups;
    let share_log2 = run_log2 - log2(groups);
    let shelves = if groups > 1 && share_log2 == 0 {
        1
    } else {
        share_log2
    };
    groups * SCRATCH_BYTES
        + ring_bytes(vectors, rows, stages, tensors, threads)
        + shelves * shelf_bytes(vectors, threads)
}

#[inline(always)]
const fn log2(n: u32) -> u32 {
    31 - n.leading_zeros()
}

/// One step of a group.
struct Step<'a, const VECTORS: usize> {
    p: &'a BackwardParams,
    columns: Columns<VECTORS>,
    w: &'a [Lane; VECTORS],
    counter: Counter<VECTORS>,
    /// First row.
    row: u32,
    /// The first row of dx.
    out: *mut u16,
    /// Rows.
    count: u32,
}

impl<const VECTORS: usize> Step<'_, VECTORS> {
    /// The step's rows; where there is none, zeros.
    ///
    /// # Safety
    /// - The current stage has arrived, with the step's rows.
    #[inline(always)]
    unsafe fn words<const ROWS: usize, const STAGES: usize, const TENSORS: usize>(
        &self,
        ring: &Ring<VECTORS, ROWS, STAGES, TENSORS>,
    ) -> [RowWords<VECTORS>; ROWS] {
        let mut words = [RowWords::default(); ROWS];
        unroll!(ROWS, |r| {
            if (r as u32) < self.count {
                // SAFETY: the stage has the row.
                words[r] = unsafe { RowWords::take(ring, r) };
            }
        });
        words
    }

    /// Dot products; their rows' terms join the weight gradient while the tile sums travel; dx.
    ///
    /// # Safety
    /// - As [`block`]; every thread of the group is here, with the same rows.
    #[inline(always)]
    unsafe fn run<const ROWS: usize, const STAGES: usize, const TENSORS: usize>(
        &self,
        words: &[RowWords<VECTORS>; ROWS],
        ring: &Ring<VECTORS, ROWS, STAGES, TENSORS>,
        sums: &mut BlockSum,
        node: &mut Node<VECTORS>,
    ) {
        let w = |v: usize| self.w[v];
        // SAFETY: the caller's obligations.
        unsafe {
            let mut dots = [[0.0; VECTORS]; ROWS];
            unroll!(ROWS, |r| dots[r] = words[r].dots(w));
            sums.publish(dots);
            unroll!(ROWS, |r| {
                if (r as u32) < self.count {
                    words[r].forget().accumulate(node);
                    self.close_leaf(self.row + r as u32, node);
                }
            });
            let dots = sums.finish::<ROWS, VECTORS>();
            unroll!(ROWS, |r| {
                if (r as u32) < self.count {
                    let mut words = words[r].forget();
                    let distance = self.p.dx_stride.row.wrapping_mul(r as i64);
                    let out = self.out.wrapping_offset(distance as isize);
                    if TENSORS > DH {
                        words.dh = ring.vectors(r, DH);
                        words.store_dx::<true>(self.p, self.columns, out, w, dots[r]);
                    } else {
                        words.store_dx::<false>(self.p, self.columns, out, w, dots[r]);
                    }
                }
            });
        }
    }

    /// After a leaf's last row, adds the leaf to its share; `node` starts the next leaf, or is the
    /// share's node when that is complete.
    ///
    /// # Safety
    /// - As [`block`]; rows of a share come in order.
    #[inline(always)]
    unsafe fn close_leaf(&self, row: u32, node: &mut Node<VECTORS>) {
        let leaf_mask = (1u32 << self.p.leaf_log2) - 1;
        let last = row + 1 == self.p.rows;
        if (row + 1) & leaf_mask == 0 || last {
            // SAFETY: the caller's obligations; shared memory has the counter's shelves.
            let complete = unsafe { self.counter.push(row >> self.p.leaf_log2, last, node) };
            if !complete {
                *node = empty();
            }
        }
    }
}

/// Folds the groups' shares of run `run` and stores the run's node.
///
/// # Safety
/// - As [`block`]; every thread of the block is here; `node` is the group's share, if it has rows.
#[inline(always)]
unsafe fn close_run<const VECTORS: usize>(
    p: &BackwardParams,
    columns: Columns<VECTORS>,
    counter: Counter<VECTORS>,
    run: u32,
    leaves: u32,
    mut node: Node<VECTORS>,
) {
    // Worked out again: the hot loop has no registers to carry it.
    let columns = columns.forget();
    let hidden = hint::forget(p.hidden);
    let group = Group::of_thread(group_threads(VECTORS as u32, hidden));
    let groups = group.count();
    let share_log2 = p.run_log2 - log2(groups);
    let taken = (leaves - (run << p.run_log2)).min(1 << p.run_log2);
    let present = (taken + ((1 << share_log2) - 1)) >> share_log2;
    // SAFETY: every thread is here. The shelf for the fold may be the counter's: a thread's places
    // there are its own, and no longer needed. The workspace has a slot for every run, and each
    // thread of group 0 alone writes its columns of it.
    unsafe {
        if groups > 1 {
            fold_positions(counter.level(0), &mut node, group.threads, present);
        }
        if group.index == 0 {
            unroll!(VECTORS, |v| {
                if columns.holds(v) {
                    store_node(p.nodes, run, hidden, columns.column(v), &node[v]);
                }
            });
        }
    }
}
