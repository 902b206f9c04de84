//! Backward of the gated form for many rows of narrow groups: as [`crate::gated::backward::warp`], but
//! two neighbouring rows at a time, and gates from a table.

use crate::arith::{Lane, Width, unroll};
use crate::device::global::CachePolicy;
use crate::device::{Words4, async_copy, shared, thread};
use crate::gated::backward::{accumulate, close_leaf, log2, store_pairs};
use crate::gated::forward::weight;
use crate::gated::gate::Table;
use crate::gated::pair::{OfPair, StoredPair};
use crate::gated::params::GatedBackwardParams;
use crate::gated::place::{Part, Place};
use crate::gated::row::Norm;
use crate::gated::sums::LaneSums;
use crate::gated::turn::{Step, Turn};
use crate::rows::{Columns, NO_WORDS, Weight};
use crate::tree::{Counter, empty, fold_positions, shelf_bytes};

/// Pairs of rows under way.
const STAGES: u32 = 2;
/// Matrices that are read: dy, x, z.
const TENSORS: u32 = 3;
/// Bytes of a thread's vectors of one row, of all threads of a warp.
const ROW_BYTES: u32 = 512 * TENSORS;
/// Bytes of a warp's stage: two rows, and an rstd a lane.
const STAGE_BYTES: u32 = 2 * ROW_BYTES + 128;

/// `LANES` lanes of a warp (8, 16 or 32) a pair of rows at a time, a vector a row and lane; else as
/// [`crate::gated::backward::warp`].
///
/// Contract: as there, and leaves have at least two rows; shared memory as [`shared_bytes`] says.
///
/// # Safety
/// - `p` describes live buffers as [`GatedBackwardParams`] says, and outputs overlap nothing.
/// - The launch keeps the contract.
#[inline(always)]
pub unsafe fn pairs<W: Weight, const GATE_FIRST: bool, const LANES: usize>(
    p: &GatedBackwardParams,
) {
    let (thread, threads) = (thread::thread_idx_x(), thread::block_dim_x());
    let positions = threads / LANES as u32;
    let position = thread / LANES as u32;
    let lane = thread % LANES as u32;
    let part = Part::of_block(p.groups);
    let columns = Columns::<1> {
        first: 8 * lane,
        hidden: p.width,
    };
    let first = (part.group * p.width) as usize;
    let turn = Turn::<2> {
        rows: p.rows,
        heads: p.heads,
        run_log2: p.run_log2 + p.leaf_log2,
        share_log2: p.leaf_log2 + p.run_log2 - log2(positions),
        position,
        behind: thread % 32 / LANES as u32,
        workers: part.workers,
    };
    let norm = Norm {
        width: Width::new(p.width),
        eps: p.eps,
    };
    let half = u32::from(lane >= LANES as u32 / 2);
    let ring_base = shared::base() + Table::BYTES;
    let levels = ring_base + ring_bytes(threads);
    let counter = Counter::<1>::new(levels, threads, turn.share_log2 - p.leaf_log2);
    // SAFETY: shared memory has the ring.
    let mut ring = unsafe { Ring::new(ring_base, columns, CachePolicy::new(p.keep)) };

    // Starts to copy a pair, and, if it is given, the rstd of the row of the thread's half of the lanes.
    let fetch = |ring: &mut Ring, coming: &mut Step| {
        let (row, places) = (coming.row, places(*coming, p.heads));
        unroll!(2, |r| {
            let present = coming.left > 0 && row + (r as u32) < p.rows;
            let start = |base, strides| places[r].start(base, strides).wrapping_add(first);
            let starts = || {
                [
                    start(p.dy, p.dy_strides),
                    start(p.x, p.x_strides),
                    start(p.z, p.z_strides),
                ]
            };
            // SAFETY: the row and the group's columns are inside the buffers, if it is there; the
            // stage's pair is done.
            unsafe { ring.fill(columns, r as u32, starts, present) };
        });
        if !p.rstd.is_null() {
            let present = coming.left > 0 && row + half < p.rows;
            let index = u64::from(row + half) * u64::from(p.groups) + u64::from(part.group);
            // SAFETY: the row has an element a group, if it is there; the stage's pair is done.
            unsafe { ring.fill_rstd(p.rstd.wrapping_add(index as usize), present) };
        }
        ring.filled();
        if coming.left > 0 {
            *coming = turn.next(*coming);
        }
    };
    let mut coming = turn.start(part.worker);
    unroll!(2, |_| fetch(&mut ring, &mut coming));
    // SAFETY: the weight has an element a column; every thread of the block is here.
    let (w, gates) = unsafe {
        let w = weight::<W, 1>(columns, p.w, first, 0);
        (w, Table::prepare(shared::base()))
    };
    let wants_dw = !p.nodes.is_null();

    let mut run = part.worker;
    while run < turn.runs() {
        let mut pair = turn.start(run);
        let mut node = empty::<1>();
        while pair.left > 0 {
            let row = pair.row;
            let present = |r: u32| row + r < p.rows;
            ring.wait();
            let given = (!p.rstd.is_null()).then(|| ring.rstd());
            let places = places(pair, p.heads);
            let store = |r: usize, dx: Words4, dz: Words4| {
                if present(r as u32) {
                    // Not an index: the places stay in registers.
                    let place = if r == 0 { places[0] } else { places[1] };
                    // SAFETY: the row is inside dx and dz; this thread alone writes its columns.
                    unsafe {
                        let dx_row = place.start_mut(p.dx, p.dx_strides);
                        columns.store(dx_row.wrapping_add(first), 0, dx);
                        let dz_row = place.start_mut(p.dz, p.dz_strides);
                        columns.store(dz_row.wrapping_add(first), 0, dz);
                    }
                }
            };
            let add = |exact: &Lane, factor: &Lane| accumulate(&mut node[0], exact, factor);
            let own = (present(half), given);
            // SAFETY: the lanes of the warp are here together; rows that are not there are zeros.
            let done = unsafe {
                norm.backward_pair::<GATE_FIRST, LANES>(&ring, own, &w, gates, add, store)
            };
            // One after the other, as rows that need a scale.
            let mut r = if done { 2 } else { 0 };
            while r < 2 {
                // SAFETY: as above.
                unsafe {
                    let rstds = given.map(|own| LaneSums::<LANES>.both(own));
                    let present = present(r);
                    norm.backward::<GATE_FIRST, 1>(
                        &OfPair(&ring, r as usize),
                        rstds.map(|(first, second)| if r == 0 { first } else { second }),
                        (|_| w, gates),
                        &mut LaneSums::<LANES>,
                        |_, exact, factor| {
                            if present {
                                accumulate(&mut node[0], exact, factor);
                            }
                        },
                        |_, dx, dz| store(r as usize, dx, dz),
                    );
                }
                r += 1;
            }
            fetch(&mut ring, &mut coming);
            if present(0) && wants_dw {
                let done = p.rows.min(row + 2);
                // SAFETY: rows of a share come in order; shared memory has the shelves.
                unsafe { close_leaf(p, counter, done, turn.ends(done), &mut node) };
            }
            pair = turn.after(pair);
        }
        if wants_dw {
            // SAFETY: every thread of the block is here. The shelf may be the counter's, whose
            // places are each thread's own and no longer needed.
            unsafe {
                let count = turn.present(run).min(positions);
                fold_positions(counter.level(0), &mut node, LANES as u32, count);
                if position == 0 {
                    store_pairs(p, columns, part.group, run, 0, &node[0]);
                }
            }
        }
        run += part.workers;
    }
}

/// Bytes of shared memory that [`pairs`] needs.
#[must_use]
pub const fn shared_bytes(threads: u32, positions: u32, run_log2: u32) -> u32 {
    let share_log2 = run_log2 - log2(positions);
    let shelves = if share_log2 == 0 { 1 } else { share_log2 };
    Table::BYTES + ring_bytes(threads) + shelves * shelf_bytes(1, threads)
}

/// Bytes of the ring of `threads` threads.
#[inline(always)]
const fn ring_bytes(threads: u32) -> u32 {
    threads / 32 * STAGES * STAGE_BYTES
}

/// Where the two rows of a step lie.
#[inline(always)]
fn places(step: Step, heads: u32) -> [Place; 2] {
    [step.place, step.place.plus(Place::of(1, heads), heads)]
}

/// Pairs on their way, in places that are each thread's own. What no copy fills is zero.
#[derive(Clone, Copy, Debug)]
struct Ring {
    /// The thread's first place in stage 0.
    place: u32,
    /// Offset of the stage that is read next, and filled next.
    stage: u32,
    /// What L2 is told of the rows.
    policy: CachePolicy,
}

/// dy in a stage.
const DY: u32 = 0;
/// x in a stage.
const X: u32 = 1;
/// z in a stage.
const Z: u32 = 2;

impl Ring {
    /// A ring at shared address `base`, for rows that are read under `policy`.
    ///
    /// # Safety
    /// - Shared memory has [`ring_bytes`] there.
    #[inline(always)]
    unsafe fn new(base: u32, columns: Columns<1>, policy: CachePolicy) -> Self {
        let (warp, lane) = (thread::thread_idx_x() / 32, thread::thread_idx_x() % 32);
        let place = base + warp * STAGES * STAGE_BYTES + 16 * lane;
        if !columns.holds(0) {
            let mut offset = 0;
            while offset < 2 * ROW_BYTES {
                unroll!(2, |stage| {
                    let place = place + stage as u32 * STAGE_BYTES + offset;
                    // SAFETY: the thread's own place.
                    unsafe { shared::store_words4(place, NO_WORDS) };
                });
                offset += 512;
            }
        }
        Self {
            place,
            stage: 0,
            policy,
        }
    }

    #[inline(always)]
    fn at(&self, tensor: u32, r: u32) -> u32 {
        self.place + self.stage + r * ROW_BYTES + 512 * tensor
    }

    /// Starts to copy row `r` of a pair to the current stage, or makes it zero.
    ///
    /// # Safety
    /// - `row` are the starts of rows of dy, x and z, 16-byte aligned, that nobody writes during the
    ///   launch; the columns are inside. The stage was read, or never filled.
    #[inline(always)]
    unsafe fn fill(
        &self,
        columns: Columns<1>,
        r: u32,
        row: impl FnOnce() -> [*const u16; TENSORS as usize],
        present: bool,
    ) {
        if present {
            if columns.holds(0) {
                let row = row();
                // SAFETY: inside the rows; the places are the thread's own.
                unroll!(3, |tensor| unsafe {
                    let source = row[tensor].add(columns.column(0) as usize);
                    let place = self.at(tensor as u32, r);
                    async_copy::copy_words4(self.policy, place, source.cast());
                });
            }
        } else {
            // SAFETY: the thread's own places, which no copy is under way to.
            unroll!(3, |tensor| unsafe {
                shared::store_words4(self.at(tensor as u32, r), NO_WORDS);
            });
        }
    }

    /// The thread's place for an rstd in the current stage.
    #[inline(always)]
    fn rstd_place(&self) -> u32 {
        // Lanes lie 16 bytes apart in rows, 4 here.
        self.place + self.stage + 2 * ROW_BYTES - 12 * (thread::thread_idx_x() % 32)
    }

    /// Starts to copy the rstd of the thread's row of a pair to the current stage; 1 for a row that
    /// is not there.
    ///
    /// # Safety
    /// - `rstd` points to it in global memory, if it is there, and nobody writes it during the launch.
    ///   The stage was read, or never filled.
    #[inline(always)]
    unsafe fn fill_rstd(&self, rstd: *const f32, present: bool) {
        // SAFETY: the thread's own place; the caller's obligations.
        unsafe {
            if present {
                async_copy::copy_f32(self.rstd_place(), rstd);
            } else {
                shared::store_f32(self.rstd_place(), 1.0);
            }
        }
    }

    /// The rstd of the thread's row of the current pair.
    #[inline(always)]
    fn rstd(&self) -> f32 {
        // SAFETY: the thread's own place, which was filled and waited for.
        unsafe { shared::load_f32(self.rstd_place()) }
    }

    /// Moves on after the two rows of a stage.
    #[inline(always)]
    fn filled(&mut self) {
        async_copy::commit_group();
        self.stage = STAGE_BYTES - self.stage;
    }

    /// Waits for the pair of the current stage, `STAGES` fills after the first.
    #[inline(always)]
    fn wait(&self) {
        async_copy::wait_group::<{ STAGES - 1 }>();
    }

    #[inline(always)]
    fn get(&self, tensor: u32, r: usize) -> Words4 {
        // SAFETY: the thread's own place, which was filled and waited for.
        unsafe { shared::load_words4(self.at(tensor, r as u32)) }
    }
}

impl StoredPair for Ring {
    #[inline(always)]
    fn dy(&self, r: usize) -> Words4 {
        self.get(DY, r)
    }

    #[inline(always)]
    fn x(&self, r: usize) -> Words4 {
        self.get(X, r)
    }

    #[inline(always)]
    fn z(&self, r: usize) -> Words4 {
        self.get(Z, r)
    }

    #[inline(always)]
    fn replace_x(&self, r: usize, words: Words4) {
        // SAFETY: the thread's own place.
        unsafe { shared::store_words4(self.at(X, r as u32), words) }
    }
}
