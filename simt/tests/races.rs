//! Data races in shared and global memory.

mod common;

use cake_rmsnorm_simt::device::{global, shared, thread, warp};
use cake_rmsnorm_simt::{Action, Buffer, FaultKind, Memory};
use common::{accepted, caught, run_all};

const SOURCE: &str = include_str!("races.rs");

fn race(kind: &FaultKind) -> bool {
    matches!(kind, FaultKind::Race { .. })
}

fn word(index: u32) -> u32 {
    shared::base() + index * 4
}

/// Each thread writes a word and reads its neighbour's, `rounds` times.
fn rotate(rounds: u32, after_write: bool, after_read: bool) {
    let (index, threads) = (thread::thread_idx_x(), thread::block_dim_x());
    for round in 0..rounds {
        // SAFETY: the checks are on.
        unsafe {
            shared::store(word(index), round); // write
            if after_write {
                thread::sync_threads();
            }
            let seen: u32 = shared::load(word((index + 1) % threads)); // read
            assert!(!after_write || seen == round);
            if after_read {
                thread::sync_threads();
            }
        }
    }
}

#[test]
fn a_missing_barrier_between_write_and_read_is_caught() {
    let run = |after_write, after_read| {
        run_all(
            (2, 64, 256),
            |_| (),
            move |()| rotate(2, after_write, after_read),
        )
    };
    accepted(run(true, true));
    // Reading before the neighbour's write is caught as a read of garbage where that happens.
    let kinds = |kind: &FaultKind| race(kind) || matches!(kind, FaultKind::Uninitialised { .. });
    caught(SOURCE, &["write", "read"], run(false, false), kinds);
    // The second round's write may overtake the first round's read.
    for fault in caught(SOURCE, &["write", "read"], run(true, false), race) {
        let FaultKind::Race { action, other, .. } = &*fault.kind else {
            unreachable!()
        };
        let sites = [fault.site.line(), other.site.line()];
        let (write, read) = (
            common::line_of(SOURCE, "write"),
            common::line_of(SOURCE, "read"),
        );
        assert!(sites == [write, read] || sites == [read, write], "{fault}");
        assert_ne!(*action, other.action);
        assert_eq!(
            (other.block, other.kernel.as_str()),
            (fault.block, "kernel")
        );
        assert_ne!(other.thread, Some(fault.thread));
    }
}

#[test]
fn a_race_within_a_warp_is_caught() {
    let kernel = |mended: bool| {
        let lane = thread::thread_idx_x();
        // SAFETY: the checks are on.
        unsafe {
            shared::store(word(lane), lane); // lane write
            // A shuffle makes all lanes meet but orders no memory.
            warp::shuffle_xor(lane, 1);
            if mended {
                warp::sync_warp();
            }
            let _: u32 = shared::load(word(lane ^ 1)); // lane read
        }
    };
    accepted(run_all((1, 32, 128), |_| (), |()| kernel(true)));
    let results = run_all((1, 32, 128), |_| (), |()| kernel(false));
    for fault in caught(SOURCE, &["lane read"], results, race) {
        let FaultKind::Race { other, .. } = &*fault.kind else {
            unreachable!()
        };
        assert_eq!(other.thread, Some(fault.thread ^ 1));
    }
}

#[test]
fn many_readers_are_all_remembered() {
    // Everybody reads word 0; one thread of another warp overwrites it too early.
    let kernel = |mended: bool| {
        let index = thread::thread_idx_x();
        // SAFETY: the checks are on.
        unsafe {
            if index == 0 {
                shared::store(word(0), 1u32);
            }
            thread::sync_threads();
            let _: u32 = shared::load(word(0)); // everybody reads
            if mended {
                thread::sync_threads();
            }
            if index == 77 {
                shared::store(word(0), 2u32); // one overwrites
            }
        }
    };
    accepted(run_all((1, 128, 4), |_| (), |()| kernel(true)));
    let results = run_all((1, 128, 4), |_| (), |()| kernel(false));
    caught(
        SOURCE,
        &["everybody reads", "one overwrites"],
        results,
        race,
    );
}

#[test]
fn neighbouring_halves_of_a_word_do_not_conflict() {
    let setup = |memory: &mut Memory| memory.alloc("x", 4 * 64 * 2);
    accepted(run_all((4, 64, 0), setup, |x: Buffer| {
        let index = thread::block_idx_x() * 64 + thread::thread_idx_x();
        // Neighbouring elements go to different blocks.
        let element = (index % 4 * 64 + index / 4) as usize;
        // SAFETY: the checks are on.
        unsafe { global::store(x.ptr::<u16>().wrapping_add(element), 1) }
    }));
}

#[test]
fn blocks_that_write_the_same_row_are_caught() {
    let kernel = |x: Buffer, rows: u32| {
        let row = thread::block_idx_x() % rows;
        let address = x
            .ptr::<[u32; 4]>()
            .wrapping_add((row * 32 + thread::thread_idx_x()) as usize);
        // SAFETY: the checks are on.
        unsafe { global::store(address, [row; 4]) } // row
    };
    let setup = |memory: &mut Memory| memory.alloc("x", 4 * 512);
    accepted(run_all((4, 32, 0), setup, |x| kernel(x, 4)));
    let results = run_all((4, 32, 0), setup, |x| kernel(x, 3));
    for fault in caught(SOURCE, &["row"], results, race) {
        let FaultKind::Race { other, .. } = &*fault.kind else {
            unreachable!()
        };
        let mut blocks = [fault.block, other.block];
        blocks.sort_unstable();
        assert_eq!(blocks, [0, 3], "{fault}");
    }
}

#[test]
fn a_barrier_orders_global_memory_within_its_block_only() {
    // Block 0's threads exchange through global memory; with two blocks the second interferes.
    let kernel = |x: Buffer, barrier: bool| {
        let index = thread::thread_idx_x();
        let element = |index: u32| x.ptr::<u32>().wrapping_add((index % 64) as usize);
        // SAFETY: the checks are on.
        unsafe {
            global::store(element(index), index); // global write
            if barrier {
                thread::sync_threads();
            }
            let _: u32 = global::load(element(index + 1)); // global read
        }
    };
    let setup = |memory: &mut Memory| memory.alloc_from("x", &[0u32; 64]);
    accepted(run_all((1, 64, 0), setup, |x| kernel(x, true)));
    let marks = ["global write", "global read"];
    caught(
        SOURCE,
        &marks,
        run_all((1, 64, 0), setup, |x| kernel(x, false)),
        race,
    );
    caught(
        SOURCE,
        &marks,
        run_all((2, 64, 0), setup, |x| kernel(x, true)),
        race,
    );
}

#[test]
fn a_write_to_constant_memory_is_caught() {
    // In place: y = x + 1 with y over x is right with plain loads, as each thread owns its
    // element, but not with loads that rely on constant memory.
    let kernel = |x: Buffer, constant: bool| {
        let address = x.ptr::<u32>().wrapping_add(thread::thread_idx_x() as usize);
        // SAFETY: the checks are on.
        unsafe {
            let value: u32 = if constant {
                global::load_constant(address)
            } else {
                global::load(address)
            };
            global::store(address, value + 1); // in place
        }
    };
    let setup = |memory: &mut Memory| memory.alloc_from("x", &[0u32; 32]);
    accepted(run_all((1, 32, 0), setup, |x| kernel(x, false)));
    let results = run_all((1, 32, 0), setup, |x| kernel(x, true));
    caught(SOURCE, &["in place"], results, |kind| {
        matches!(kind, FaultKind::NotConstant { action: Action::Write, other, .. }
            if other.action == Action::ConstantRead)
    });
}

#[test]
fn a_constant_read_after_a_write_is_caught() {
    // Even behind a barrier: the read may be served from a stale cache.
    let kernel = |x: Buffer, constant: bool| {
        let address = x.ptr::<u32>();
        // SAFETY: the checks are on.
        unsafe {
            if thread::thread_idx_x() == 0 {
                global::store(address, 1);
            }
            thread::sync_threads();
            if constant {
                let _: u32 = global::load_constant(address); // stale
            } else {
                let _: u32 = global::load(address);
            }
        }
    };
    let setup = |memory: &mut Memory| memory.alloc_from("x", &[0u32; 32]);
    accepted(run_all((1, 64, 0), setup, |x| kernel(x, false)));
    let results = run_all((1, 64, 0), setup, |x| kernel(x, true));
    caught(SOURCE, &["stale"], results, |kind| {
        matches!(kind, FaultKind::NotConstant { action: Action::ConstantRead, other, .. }
            if other.action == Action::Write && other.thread == Some(0))
    });
}

#[test]
fn vector_accesses_are_remembered_byte_by_byte() {
    // Two warps read 16 bytes; a third overwrites two of them.
    let kernel = |x: Buffer, mended: bool| {
        let (warp, lane) = (thread::thread_idx_x() / 32, thread::thread_idx_x() % 32);
        let vector = x.ptr::<[u32; 4]>().wrapping_add(lane as usize);
        // SAFETY: the checks are on.
        unsafe {
            if warp < 2 {
                let _: [u32; 4] = global::load(vector); // vector read
            }
            if mended {
                thread::sync_threads();
            }
            if warp == 2 && lane == 5 {
                global::store(vector.cast::<u16>().wrapping_add(3), 1); // half word
            }
        }
    };
    let setup = |memory: &mut Memory| memory.alloc_from("x", &[0u32; 128]);
    accepted(run_all((1, 96, 0), setup, |x| kernel(x, true)));
    let results = run_all((1, 96, 0), setup, |x| kernel(x, false));
    for fault in caught(SOURCE, &["vector read", "half word"], results, race) {
        let FaultKind::Race { place, other, .. } = &*fault.kind else {
            unreachable!()
        };
        assert_eq!(place.description, "byte 86 of x, which has 512", "{fault}");
        assert!(fault.thread == 69 || other.thread == Some(69), "{fault}");
    }
}
