//! Schedules: different orders really happen, a seed reproduces them, and results do not depend
//! on them.

mod common;

use cake_rmsnorm_simt::device::global::{self, Ordering};
use cake_rmsnorm_simt::device::{dependent, shared, thread, warp};
use cake_rmsnorm_simt::{
    BlockOrder, Buffer, Checks, FaultKind, Launch, Memory, Order, Report, Schedule, Simulator,
};
use common::SEEDS;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Every thread takes a ticket; returns which thread of the grid got each, in order.
fn tickets(simulator: Simulator<'_>, (grid, block): (u32, u32)) -> (Vec<u32>, Report) {
    let mut memory = Memory::new();
    let count = (grid * block) as usize;
    let order = memory.alloc("order", count * 4);
    let counter = memory.alloc_from("counter", &[0u32]);
    let kernel = || {
        let index = thread::block_idx_x() * block + thread::thread_idx_x();
        // SAFETY: the checks are on, or the counter makes every place one thread's.
        unsafe {
            let ticket = global::atomic_add(counter.ptr::<u32>(), 1, Ordering::Relaxed);
            global::store(order.ptr::<u32>().wrapping_add(ticket as usize), index);
        }
    };
    let report = simulator.run(&mut memory, &[Launch::new("tickets", grid, block, &kernel)]);
    (memory.read(order).unwrap(), report.unwrap())
}

#[test]
fn a_seed_reproduces_its_order_on_any_number_of_workers() {
    for seed in SEEDS {
        let simulator = Simulator::new().seed(seed);
        let once = tickets(simulator.workers(1), (5, 64));
        assert_eq!(tickets(simulator.workers(1), (5, 64)), once, "seed {seed}");
        assert_eq!(tickets(simulator.workers(3), (5, 64)), once, "seed {seed}");
        assert_eq!(
            tickets(simulator.checks(Checks::Off), (5, 64)),
            once,
            "seed {seed}"
        );
    }
}

#[test]
fn seeds_interleave_threads_and_blocks_differently() {
    let runs: Vec<_> = SEEDS
        .map(|seed| tickets(Simulator::new().seed(seed), (5, 64)))
        .collect();
    let orders: BTreeSet<_> = runs.iter().map(|(order, _)| order.clone()).collect();
    assert!(orders.len() >= 15, "{} orders of threads", orders.len());
    let hashes: BTreeSet<_> = runs.iter().map(|(_, report)| report.order).collect();
    assert!(hashes.len() >= 15, "{} hashes", hashes.len());
    let first: BTreeSet<_> = runs.iter().map(|(order, _)| order[0] / 64).collect();
    assert!(
        first.len() >= 3,
        "only the blocks {first:?} ever come first"
    );
    let last: BTreeSet<_> = runs
        .iter()
        .map(|(order, _)| order[5 * 64 - 1] / 64)
        .collect();
    assert!(last.len() >= 3, "only the blocks {last:?} ever come last");
}

#[test]
fn orders_do_what_they_say() {
    let order = |schedule: Schedule| tickets(Simulator::new().schedule(schedule), (3, 64)).0;
    let blocks = |order: &[u32]| {
        let mut blocks: Vec<u32> = order.iter().map(|index| index / 64).collect();
        blocks.dedup();
        blocks
    };
    let in_turn = order(Schedule::PLAIN);
    assert_eq!(in_turn, (0..192).collect::<Vec<_>>());
    let down = order(Schedule {
        blocks: BlockOrder::Descending,
        ..Schedule::PLAIN
    });
    assert_eq!(blocks(&down), [2, 1, 0]);
    let last = order(Schedule {
        threads: Order::LastReady,
        ..Schedule::PLAIN
    });
    assert_eq!((blocks(&last), last[0]), (vec![0, 1, 2], 63));
    for seed in 0..10 {
        let late = order(Schedule {
            seed,
            blocks: BlockOrder::Late,
            ..Schedule::PLAIN
        });
        let blocks = blocks(&late);
        assert_eq!(
            blocks.len(),
            3,
            "the late block came in between: {blocks:?}"
        );
    }
}

#[test]
fn at_most_as_many_blocks_are_resident_as_the_schedule_says() {
    for most in [1, 2, 5] {
        let mut memory = Memory::new();
        let live = memory.alloc_from("live", &[0u32]);
        let peak = AtomicU32::new(0);
        let kernel = || {
            if thread::thread_idx_x() == 0 {
                // SAFETY: the checks are on.
                unsafe {
                    let before = global::atomic_add(live.ptr::<u32>(), 1, Ordering::Relaxed);
                    peak.fetch_max(before + 1, Relaxed);
                    global::atomic_add(live.ptr::<u32>(), u32::MAX, Ordering::Relaxed);
                }
            }
        };
        let schedule = Schedule {
            resident: Some(most),
            ..Schedule::PLAIN
        };
        let launch = Launch::new("live", 9, 32, &kernel);
        Simulator::new()
            .schedule(schedule)
            .run(&mut memory, &[launch])
            .unwrap();
        assert_eq!(peak.into_inner(), most);
    }
}

/// Blocks claim tiles of 32 elements until none are left.
fn claim_tiles((x, y, counter): (Buffer, Buffer, Buffer), tiles: u32) {
    let index = thread::thread_idx_x();
    loop {
        // SAFETY: the checks are on.
        unsafe {
            if index == 0 {
                let tile = global::atomic_add(counter.ptr::<u32>(), 1, Ordering::Relaxed);
                shared::store(shared::base(), tile);
            }
            thread::sync_threads();
            let tile: u32 = shared::load(shared::base());
            thread::sync_threads();
            if tile >= tiles {
                return;
            }
            let element = (tile * 32 + index) as usize;
            let value: u32 = global::load_constant(x.ptr::<u32>().wrapping_add(element));
            global::store(y.ptr::<u32>().wrapping_add(element), value + 1);
        }
    }
}

#[test]
fn claimed_tiles_are_right_whoever_claims_them() {
    let values: Vec<u32> = (0..320).collect();
    let expected: Vec<u32> = (1..321).collect();
    for seed in SEEDS {
        for checks in [Checks::All, Checks::Off] {
            let mut memory = Memory::new();
            let x = memory.alloc_from("x", &values);
            let (y, counter) = (
                memory.alloc("y", 1280),
                memory.alloc_from("counter", &[0u32]),
            );
            let kernel = || claim_tiles((x, y, counter), 10);
            let launch = Launch::new("claim", 4, 32, &kernel).shared_bytes(4);
            Simulator::new()
                .seed(seed)
                .checks(checks)
                .run(&mut memory, &[launch])
                .unwrap();
            assert_eq!(memory.read::<u32>(y).unwrap(), expected, "seed {seed}");
        }
    }
}

#[test]
fn dependent_launches_overlap_where_the_schedule_lets_them() {
    let overlaps = |early_dependents: bool| {
        let mut memory = Memory::new();
        let started = memory.alloc_from("started", &[0u32]);
        let seen = AtomicU32::new(0);
        // SAFETY: the checks are on.
        let count =
            |value| unsafe { global::atomic_add(started.ptr::<u32>(), value, Ordering::Relaxed) };
        let first = || {
            dependent::launch_dependents();
            seen.fetch_max(count(0), Relaxed);
        };
        let second = || {
            count(1);
            dependent::wait();
        };
        let launches = [
            Launch::new("first", 3, 32, &first),
            Launch::new("second", 2, 32, &second).dependent(true),
        ];
        let schedule = Schedule {
            early_dependents,
            ..Schedule::PLAIN
        };
        Simulator::new()
            .schedule(schedule)
            .run(&mut memory, &launches)
            .unwrap();
        assert_eq!(memory.read::<u32>(started).unwrap(), [64]);
        seen.into_inner() > 0
    };
    assert!(overlaps(true));
    assert!(!overlaps(false));
}

#[test]
fn the_hook_sees_every_block_end() {
    let calls = AtomicU32::new(0);
    let hook = |progress: cake_rmsnorm_simt::Progress<'_>| {
        let call = calls.fetch_add(1, Relaxed) + 1;
        assert_eq!(
            (progress.kernel, progress.finished, progress.grid),
            ("kernel", call, 7)
        );
    };
    let kernel = || {};
    let launch = Launch::new("kernel", 7, 32, &kernel);
    let report = Simulator::new()
        .on_block(&hook)
        .run(&mut Memory::new(), &[launch])
        .unwrap();
    assert_eq!((report.blocks, calls.into_inner()), (7, 7));
}

#[test]
fn without_checks_shared_memory_is_still_bounded() {
    let kernel = || {
        // SAFETY: bounds are checked always.
        unsafe { shared::store(shared::base() + 128, 1u32) }
    };
    let launch = Launch::new("kernel", 1, 32, &kernel).shared_bytes(128);
    let simulator = Simulator::new().checks(Checks::Off);
    let fault = simulator.run(&mut Memory::new(), &[launch]).unwrap_err();
    assert!(
        matches!(&*fault.kind, FaultKind::OutOfBounds { .. }),
        "{fault}"
    );
}

#[test]
fn an_endless_exchange_of_one_warp_does_not_starve_the_others() {
    // Warp 1 goes round until warp 0 has stored; no order of threads may starve warp 0.
    for seed in SEEDS {
        let mut memory = Memory::new();
        let flag = memory.alloc_from("flag", &[0u32]);
        let kernel = || {
            let flag = flag.ptr::<u32>();
            // SAFETY: the checks are on.
            unsafe {
                if thread::thread_idx_x() < 32 {
                    global::atomic_store(flag, 1, Ordering::Relaxed);
                } else {
                    while !warp::any(global::atomic_load(flag, Ordering::Relaxed) == 1) {}
                }
            }
        };
        let launch = Launch::new("kernel", 1, 64, &kernel);
        Simulator::new()
            .seed(seed)
            .run(&mut memory, &[launch])
            .unwrap();
    }
}
