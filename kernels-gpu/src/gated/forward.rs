//! Forward of the gated form. x and z are read once.

use crate::arith::{Lane, Width, canonical, unroll};
use crate::device::global::{self, CachePolicy};
use crate::device::{Words4, math::wide_product, shared, thread, warp::uniform};
use crate::gated::gate::{Formula, Table};
use crate::gated::params::{GatedForwardParams, Strides};
use crate::gated::place::{Part, Place};
use crate::gated::row::Norm;
use crate::gated::sums::{LaneSums, RowSums};
use crate::row_sum::{BlockSum, Group};
use crate::rows::{Columns, NO_WORDS, Weight};

/// `LANES` lanes of a warp (8, 16 or 32) a row at a time; each lane has `VECTORS` vectors, which is
/// one but for 32 lanes. The next row is loaded while one is worked on.
///
/// Contract: groups · n blocks of a multiple of 32 threads; width ≤ 8 · `LANES` · `VECTORS`; no
/// shared memory; 16-byte aligned bases. Less than 2³¹ rows, and rows of all blocks at once.
///
/// # Safety
/// - `p` describes live buffers as [`GatedForwardParams`] says, and outputs overlap nothing.
/// - The launch keeps the contract.
#[inline(always)]
pub unsafe fn warp<W: Weight, const GATE_FIRST: bool, const LANES: usize, const VECTORS: usize>(
    p: &GatedForwardParams,
) {
    let (thread, lane) = (
        thread::thread_idx_x(),
        thread::thread_idx_x() % LANES as u32,
    );
    let positions = thread::block_dim_x() / LANES as u32;
    let part = Part::of_block(p.groups);
    let turn = Turn {
        first: part.worker * positions + thread / LANES as u32,
        step: part.workers * positions,
        behind: thread % 32 / LANES as u32,
        leader: lane == 0,
    };
    let columns = Columns::<VECTORS> {
        first: 8 * lane,
        hidden: p.width,
    };
    // SAFETY: the lanes of a warp make the same number of sums.
    unsafe { rows::<W, GATE_FIRST, VECTORS>(p, part.group, columns, turn, &mut LaneSums::<LANES>) }
}

/// As [`warp`], for many rows of one vector a lane: gates come from a [`Table`] that every block
/// fills first, and rows go in pairs of neighbours.
///
/// Contract: as [`warp`], but [`Table`]'s bytes of shared memory.
///
/// # Safety
/// - As [`warp`].
#[inline(always)]
pub unsafe fn pairs<W: Weight, const GATE_FIRST: bool, const LANES: usize>(p: &GatedForwardParams) {
    let (thread, lane) = (
        thread::thread_idx_x(),
        thread::thread_idx_x() % LANES as u32,
    );
    let positions = thread::block_dim_x() / LANES as u32;
    let part = Part::of_block(p.groups);
    let norm = Norm {
        width: Width::new(p.width),
        eps: p.eps,
    };
    // Lanes without columns, and pairs without rows, load what others do: cheaper than zeros.
    let inside = 8 * lane < p.width;
    let column = (part.group * p.width + (8 * lane).min(p.width - 8)) as usize;
    let policy = CachePolicy::new(p.keep);
    let neighbour = Place::of(1, p.heads);
    let load = |row: u32, place: Place| {
        let second = if row + 1 < p.rows {
            place.plus(neighbour, p.heads)
        } else {
            place
        };
        // SAFETY: the rows and the column are inside the buffers.
        let load = |base: *const u16, strides: Strides| unsafe {
            [place, second].map(|place| {
                let vector = place.start(base, strides).add(column);
                global::load_words4_by(policy, vector.cast())
            })
        };
        (load(p.x, p.x_strides), load(p.z, p.z_strides))
    };
    // SAFETY: every lane of the warp is here.
    let warp = unsafe { uniform(thread / 32) };
    // The first row of the warp, and how many of its rows come before the thread's.
    let mut leader = 2 * (part.worker * positions + warp * (32 / LANES as u32));
    let behind = 2 * (thread % 32 / LANES as u32);
    let step = 2 * part.workers * positions;
    let distance = Place::of(step, p.heads);
    let mut place = Place::of((leader + behind).min(p.rows - 1), p.heads);
    let mut next = load(leader + behind, place);
    // SAFETY: the weight has an element a column; every thread of the block is here.
    let (w, gates) = unsafe {
        let w = W::widen(W::load(p.w, column as u32));
        (w, Table::prepare(shared::base()))
    };
    while leader < p.rows {
        let row = leader + behind;
        let (x, z) = next;
        let next_place = if row + step < p.rows {
            place.plus(distance, p.heads)
        } else {
            place
        };
        next = load(row + step, next_place);
        // SAFETY: the lanes of the warp are here together. The rows are inside the outputs, if they
        // are there, and this thread alone writes its columns.
        unsafe {
            let store = |r: usize, words: Words4| {
                if inside && row + (r as u32) < p.rows {
                    let place = if r == 0 {
                        place
                    } else {
                        place.plus(neighbour, p.heads)
                    };
                    let vector = place.start_mut(p.y, p.y_strides).add(column);
                    global::store_words4(vector.cast(), words);
                }
            };
            let rstd =
                norm.forward_pair::<GATE_FIRST, LANES, true>(&x, &z, inside, (&w, gates), store);
            let own = row + u32::from(lane >= LANES as u32 / 2);
            if lane % (LANES as u32 / 2) == 0 && own < p.rows && !p.rstd.is_null() {
                let index = u64::from(own) * u64::from(p.groups) + u64::from(part.group);
                global::store_f32(p.rstd.add(index as usize), canonical(rstd));
            }
        }
        leader += step;
        place = next_place;
    }
}

/// As [`pairs`], for rows of one group of `8 · LANES` elements that lie at one distance in each matrix:
/// what says where a row lies, and which of its columns there are, costs next to nothing. Four
/// small blocks share a multiprocessor, each with a [`Table`].
///
/// Contract: any number of blocks of a multiple of 32 threads; [`Table`]'s bytes of shared memory;
/// width 8 · `LANES`, one group; row r is at r times the stride of a token, which is less than 2³¹
/// bytes; 16-byte aligned bases. From 1 to 2³¹ rows less those of all blocks at once.
///
/// # Safety
/// - As [`warp`].
#[inline(always)]
pub unsafe fn flat<W: Weight, const GATE_FIRST: bool, const LANES: usize>(p: &GatedForwardParams) {
    let (thread, lane) = (
        thread::thread_idx_x(),
        thread::thread_idx_x() % LANES as u32,
    );
    let first = 8 * lane;
    let norm = Norm {
        width: Width::new(8 * LANES as u32),
        eps: p.eps,
    };
    let policy = CachePolicy::new(p.keep);
    // The thread's vector of a row.
    let vector = |base: *const u16, stride: Strides, row: u32| -> *const Words4 {
        let distance = wide_product(row as i32, 16 * stride.token);
        let base = base.wrapping_add(first as usize);
        base.wrapping_byte_offset(distance as isize).cast()
    };
    let load = |row: u32| {
        let mut words = ([NO_WORDS; 2], [NO_WORDS; 2]);
        unroll!(2, |r| {
            // Beyond the last row the last once more: cheaper than zeros.
            let row = (row + r as u32).min(p.rows - 1);
            // SAFETY: the row and its columns are inside the buffers.
            unsafe {
                let load = |base, stride| global::load_words4_by(policy, vector(base, stride, row));
                words.0[r] = load(p.x, p.x_strides);
                words.1[r] = load(p.z, p.z_strides);
            }
        });
        words
    };
    let positions = thread::block_dim_x() / LANES as u32;
    // SAFETY: every lane of the warp is here.
    let warp = unsafe { uniform(thread / 32) };
    // The first row of the warp, and how many of its rows come before the thread's.
    let mut leader = 2 * (thread::block_idx_x() * positions + warp * (32 / LANES as u32));
    let behind = 2 * (thread % 32 / LANES as u32);
    let step = 2 * thread::grid_dim_x() * positions;
    let mut words = load(leader + behind);
    // SAFETY: the weight has an element a column; every thread of the block is here.
    let (w, gates) = unsafe {
        let w = W::widen(W::load(p.w, first));
        (w, Table::prepare(shared::base()))
    };
    while leader < p.rows {
        let row = leader + behind;
        let (x, z) = words;
        // SAFETY: the lanes of the warp are here together. The rows are inside the outputs, if they
        // are there, and this thread alone writes its columns.
        unsafe {
            let store = |r: usize, words: Words4| {
                let row = row + r as u32;
                if row < p.rows {
                    global::store_words4(vector(p.y, p.y_strides, row).cast_mut(), words);
                }
            };
            let rstd =
                norm.forward_pair::<GATE_FIRST, LANES, false>(&x, &z, true, (&w, gates), store);
            let own = row + u32::from(lane >= LANES as u32 / 2);
            if lane % (LANES as u32 / 2) == 0 && own < p.rows && !p.rstd.is_null() {
                global::store_f32(p.rstd.add(own as usize), canonical(rstd));
            }
        }
        leader += step;
        if leader < p.rows {
            words = load(leader + behind);
        }
    }
}

/// A block a row at a time: warp i holds tiles `VECTORS · i` and following.
///
/// Contract: groups · n blocks of a multiple of 32 threads with `VECTORS · 256` elements a warp
/// covering the width; [`crate::row_sum::SCRATCH_BYTES`] of shared memory; else as [`warp`].
///
/// # Safety
/// - As [`warp`].
#[inline(always)]
pub unsafe fn block<W: Weight, const GATE_FIRST: bool, const VECTORS: usize>(
    p: &GatedForwardParams,
) {
    let thread = thread::thread_idx_x();
    let part = Part::of_block(p.groups);
    let turn = Turn {
        first: part.worker,
        step: part.workers,
        behind: 0,
        leader: thread == 0,
    };
    let columns = Columns::<VECTORS>::of_warp(thread / 32, p.width);
    let mut sums = BlockSum::new(shared::base(), Group::block());
    // SAFETY: the threads of the block have the same rows.
    unsafe { rows::<W, GATE_FIRST, VECTORS>(p, part.group, columns, turn, &mut sums) }
}

/// The rows that the threads of a row take: `first`, `first + step`, …
#[derive(Clone, Copy)]
struct Turn {
    first: u32,
    step: u32,
    /// Rows of the warp before this one: threads that make sums together stay together.
    behind: u32,
    /// True in one of the threads that share a row.
    leader: bool,
}

/// # Safety
/// - As [`warp`].
#[inline(always)]
unsafe fn rows<W: Weight, const GATE_FIRST: bool, const VECTORS: usize>(
    p: &GatedForwardParams,
    group: u32,
    columns: Columns<VECTORS>,
    turn: Turn,
    sums: &mut impl RowSums<VECTORS>,
) {
    let norm = Norm {
        width: Width::new(p.width),
        eps: p.eps,
    };
    let first = (group * p.width) as usize;
    let load = |row: u32, place: Place| {
        let mut words = ([NO_WORDS; VECTORS], [NO_WORDS; VECTORS]);
        if row < p.rows {
            // SAFETY: the row and the group's columns are inside the buffers.
            words = unsafe {
                (
                    columns.load(place.start(p.x, p.x_strides).add(first)),
                    columns.load(place.start(p.z, p.z_strides).add(first)),
                )
            };
        }
        words
    };
    let step = Place::of(turn.step, p.heads);
    let (mut row, mut place) = (turn.first, Place::of(turn.first, p.heads));
    let mut next = load(row, place);
    // SAFETY: the weight has an element a column.
    let w = unsafe { weights::<W, VECTORS>(columns, p.w, first) };
    while row - turn.behind < p.rows {
        let (x, z) = next;
        let next_place = place.plus(step, p.heads);
        next = load(row + turn.step, next_place);
        let y = place.start_mut(p.y, p.y_strides);
        // SAFETY: the threads that make sums together are here together. The row is inside the
        // outputs, if there is one, and this thread alone writes its columns.
        unsafe {
            let store = |v: usize, words: Words4| {
                if row < p.rows {
                    columns.store(y.add(first), v, words);
                }
            };
            let rstd =
                norm.forward::<GATE_FIRST, VECTORS>(&x, &z, (|v| w[v], Formula), sums, store);
            if turn.leader && row < p.rows && !p.rstd.is_null() {
                let index = u64::from(row) * u64::from(p.groups) + u64::from(group);
                global::store_f32(p.rstd.add(index as usize), canonical(rstd));
            }
        }
        row += turn.step;
        place = next_place;
    }
}

/// The weights of vector `v` of the thread's columns of the group that starts at column `first`;
/// zeros outside.
///
/// # Safety
/// - As [`Weight::load`].
#[inline(always)]
pub(super) unsafe fn weight<W: Weight, const VECTORS: usize>(
    columns: Columns<VECTORS>,
    w: *const u8,
    first: usize,
    v: usize,
) -> Lane {
    if columns.holds(v) {
        // SAFETY: inside the weight.
        W::widen(unsafe { W::load(w, first as u32 + columns.column(v)) })
    } else {
        [0.0; 8]
    }
}

/// The weights of all of them.
///
/// # Safety
/// - As [`Weight::load`].
#[inline(always)]
pub(super) unsafe fn weights<W: Weight, const VECTORS: usize>(
    columns: Columns<VECTORS>,
    w: *const u8,
    first: usize,
) -> [Lane; VECTORS] {
    let mut lanes = [[0.0; 8]; VECTORS];
    // SAFETY: the caller's obligation.
    unroll!(VECTORS, |v| lanes[v] =
        unsafe { weight::<W, VECTORS>(columns, w, first, v) });
    lanes
}
