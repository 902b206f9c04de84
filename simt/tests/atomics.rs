//! Atomics, fences, residency, and dependent launches.

mod common;

use cake_rmsnorm_simt::device::global::{self, Ordering};
use cake_rmsnorm_simt::device::{dependent, thread};
use cake_rmsnorm_simt::{
    Action, Buffer, Fault, FaultKind, Launch, Memory, Report, Schedule, Simulator,
};
use common::{SEEDS, accepted, caught, run_all};

const SOURCE: &str = include_str!("atomics.rs");
const BLOCKS: u32 = 6;
const THREADS: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastFault {
    None,
    NoBarrierBefore,
    NoFenceBefore,
    FenceBeforeBarrier,
    NoFenceAfter,
    NoBarrierAfter,
    PlainCounter,
}

/// Every block stores a row of partial sums; the last one to arrive adds them all.
fn last_block_sums((partial, sum, counter): (Buffer, Buffer, Buffer), fault: LastFault) {
    let (index, block) = (thread::thread_idx_x(), thread::block_idx_x());
    let counter = counter.ptr::<u32>();
    // The vote on who is last, as shared memory would hold it; by address, to stay short.
    let last = sum.ptr::<u32>().wrapping_add((THREADS + block) as usize);
    // SAFETY: the checks are on.
    unsafe {
        let own = partial
            .ptr::<u32>()
            .wrapping_add((block * THREADS + index) as usize);
        global::store(own, block + index); // partial
        if fault == LastFault::FenceBeforeBarrier {
            global::fence();
        }
        if fault != LastFault::NoBarrierBefore {
            thread::sync_threads();
        }
        if index == 0 {
            if !matches!(
                fault,
                LastFault::NoFenceBefore | LastFault::FenceBeforeBarrier
            ) {
                global::fence();
            }
            let before = if fault == LastFault::PlainCounter {
                let before: u32 = global::load(counter); // plain counter
                global::store(counter, before + 1); // plain counter store
                before
            } else {
                global::atomic_add(counter, 1, Ordering::Relaxed)
            };
            if fault != LastFault::NoFenceAfter {
                global::fence();
            }
            global::store(last, u32::from(before == BLOCKS - 1));
        }
        if fault != LastFault::NoBarrierAfter {
            thread::sync_threads();
        }
        let am_last: u32 = global::load(last); // vote
        if am_last == 1 {
            let mut total = 0;
            for row in 0..BLOCKS {
                let row = partial
                    .ptr::<u32>()
                    .wrapping_add((row * THREADS + index) as usize);
                total += global::load::<u32>(row); // collect
            }
            global::store(sum.ptr::<u32>().wrapping_add(index as usize), total);
            if index == 0 {
                // For the next launch: nobody else touches it any more.
                global::store(counter, 0);
            }
        }
    }
}

fn last_setup(memory: &mut Memory) -> (Buffer, Buffer, Buffer) {
    let partial = memory.alloc("partial", (BLOCKS * THREADS * 4) as usize);
    let sum = memory.alloc("sum", ((THREADS + BLOCKS) * 4) as usize);
    (partial, sum, memory.alloc_from("counter", &[0u32]))
}

#[test]
fn the_last_block_sums_right_under_every_schedule() {
    for seed in SEEDS {
        let mut memory = Memory::new();
        let buffers = last_setup(&mut memory);
        let kernel = || last_block_sums(buffers, LastFault::None);
        let launch = Launch::new("last", BLOCKS, THREADS, &kernel);
        // Twice: the counter resets itself.
        Simulator::new()
            .seed(seed)
            .run(&mut memory, &[launch, launch])
            .unwrap();
        let sums = memory.read::<u32>(buffers.1).unwrap();
        let expected = |index: u32| (0..BLOCKS).map(|block| block + index).sum::<u32>();
        for index in 0..THREADS {
            assert_eq!(
                sums[index as usize],
                expected(index),
                "seed {seed}, column {index}"
            );
        }
        assert_eq!(memory.read::<u32>(buffers.2).unwrap(), [0]);
    }
}

#[test]
fn missing_fences_and_barriers_around_a_counter_are_caught() {
    let run = |fault| {
        run_all((BLOCKS, THREADS, 0), last_setup, move |b| {
            last_block_sums(b, fault)
        })
    };
    accepted(run(LastFault::None));
    for (fault, marks) in [
        (LastFault::NoBarrierBefore, &["collect"][..]),
        (LastFault::NoFenceBefore, &["collect"]),
        (LastFault::FenceBeforeBarrier, &["collect"]),
        (LastFault::NoFenceAfter, &["collect"]),
    ] {
        let faults = caught(SOURCE, marks, run(fault), |kind| {
            matches!(
                kind,
                FaultKind::Race {
                    action: Action::Read,
                    ..
                }
            )
        });
        let FaultKind::Race { other, .. } = &*faults[0].kind else {
            unreachable!()
        };
        assert_eq!(other.site.line(), common::line_of(SOURCE, "partial"));
        assert_ne!(other.block, faults[0].block, "{fault:?}");
    }
    caught(SOURCE, &["vote"], run(LastFault::NoBarrierAfter), |kind| {
        matches!(
            kind,
            FaultKind::Race { .. } | FaultKind::Uninitialised { .. }
        )
    });
    caught(
        SOURCE,
        &["plain counter", "plain counter store"],
        run(LastFault::PlainCounter),
        |kind| matches!(kind, FaultKind::Race { .. }),
    );
}

#[test]
fn an_atomic_beside_a_plain_access_is_caught() {
    let kernel = |x: Buffer, plain: bool| {
        let x = x.ptr::<u32>();
        // SAFETY: the checks are on.
        unsafe {
            if plain && thread::block_idx_x() == 1 {
                let _: u32 = global::load(x); // plain load
            } else {
                global::atomic_add(x, 1, Ordering::AcquireRelease); // atomic
            }
        }
    };
    let setup = |memory: &mut Memory| memory.alloc_from("x", &[0u32]);
    accepted(run_all((2, 32, 0), setup, |x| kernel(x, false)));
    let results = run_all((2, 32, 0), setup, |x| kernel(x, true));
    caught(SOURCE, &["plain load", "atomic"], results, |kind| {
        matches!(
            kind,
            FaultKind::Race {
                action: Action::Read | Action::Atomic,
                ..
            }
        )
    });
}

#[test]
fn atomics_return_what_they_replace() {
    let setup = |memory: &mut Memory| memory.alloc_from("x", &[10u64, 0]);
    accepted(run_all((1, 32, 0), setup, |x: Buffer| {
        if thread::thread_idx_x() != 0 {
            return;
        }
        let (wide, narrow) = (x.ptr::<u64>(), x.ptr::<u32>().wrapping_add(2));
        let order = Ordering::Relaxed;
        // SAFETY: the checks are on.
        unsafe {
            assert_eq!(global::atomic_add(wide, u64::MAX, order), 10);
            assert_eq!(global::atomic_exchange(wide, 1 << 40, order), 9);
            assert_eq!(global::atomic_compare_exchange(wide, 3, 4, order), 1 << 40);
            assert_eq!(
                global::atomic_compare_exchange(wide, 1 << 40, 4, order),
                1 << 40
            );
            assert_eq!(global::atomic_load(wide, order), 4);
            assert_eq!(global::atomic_add(narrow, u32::MAX, order), 0);
            assert_eq!(global::atomic_add(narrow, 2, order), u32::MAX);
            global::atomic_store(narrow, 77, order);
            assert_eq!(global::atomic_load(narrow, order), 77);
        }
    }));
}

/// All blocks wait for a flag that the last one sets after writing `data`.
fn wait_for_flag((data, flag): (Buffer, Buffer), sets: bool, ordering: [Ordering; 2]) {
    if thread::thread_idx_x() != 0 {
        return;
    }
    let (data, flag) = (data.ptr::<u32>(), flag.ptr::<u32>());
    // SAFETY: the checks are on.
    unsafe {
        if thread::block_idx_x() + 1 < thread::grid_dim_x() {
            while global::atomic_load(flag, ordering[1]) == 0 {} // poll
            assert_eq!(global::load::<u32>(data), 5); // data
        } else if sets {
            global::store(data, 5);
            global::atomic_store(flag, 1, ordering[0]);
        }
    }
}

fn run_flag(
    seed: u64,
    cooperative: bool,
    sets: bool,
    ordering: [Ordering; 2],
) -> Result<Report, Fault> {
    let mut memory = Memory::new();
    let buffers = (memory.alloc("data", 4), memory.alloc_from("flag", &[0u32]));
    let kernel = || wait_for_flag(buffers, sets, ordering);
    let launch = Launch::new("flag", 4, 32, &kernel).cooperative(cooperative);
    Simulator::new().seed(seed).run(&mut memory, &[launch])
}

#[test]
fn a_block_that_waits_for_another_must_be_resident_with_it() {
    let right = [Ordering::Release, Ordering::Acquire];
    let mut caught_seeds = 0;
    for seed in 0..40 {
        run_flag(seed, true, true, right).unwrap();
        let schedule = Schedule::from_seed(seed);
        let Err(fault) = run_flag(seed, false, true, right) else {
            continue;
        };
        caught_seeds += 1;
        assert!(
            matches!(&*fault.kind, FaultKind::AssumedResidency { .. }),
            "{fault}"
        );
        assert_eq!(fault.site.line(), common::line_of(SOURCE, "poll"));
        assert!(
            schedule.resident.is_some_and(|most| most < 4),
            "{schedule:?}"
        );
    }
    assert!(
        caught_seeds >= 10,
        "only {caught_seeds} of 40 schedules show it"
    );
}

#[test]
fn a_flag_that_nobody_sets_is_a_deadlock() {
    for seed in SEEDS {
        let fault = run_flag(seed, true, false, [Ordering::Relaxed; 2]).unwrap_err();
        assert!(
            matches!(&*fault.kind, FaultKind::Deadlock(_)),
            "seed {seed}: {fault}"
        );
        assert_eq!(fault.site.line(), common::line_of(SOURCE, "poll"));
    }
}

#[test]
fn a_flag_must_be_released_and_acquired() {
    for seed in SEEDS {
        for ordering in [
            [Ordering::Relaxed, Ordering::Acquire],
            [Ordering::Release, Ordering::Relaxed],
        ] {
            let fault = run_flag(seed, true, true, ordering).unwrap_err();
            assert!(
                matches!(&*fault.kind, FaultKind::Race { .. }),
                "seed {seed}: {fault}"
            );
            assert_eq!(fault.site.line(), common::line_of(SOURCE, "data"));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DependentFault {
    None,
    NoWait,
    WaitByOneThread,
    OverwritesTooEarly,
}

/// Two kernels: the first writes `x` and reads `old`, the second reads `x` and overwrites `old`.
fn run_dependent(seed: u64, dependent: bool, fault: DependentFault) -> Result<(), Fault> {
    let mut memory = Memory::new();
    let x = memory.alloc("x", (BLOCKS * THREADS * 4) as usize);
    let old = memory.alloc_from("old", &[3u32]);
    let position = || (thread::block_idx_x() * THREADS + thread::thread_idx_x()) as usize;
    let first = || {
        dependent::launch_dependents();
        // SAFETY: the checks are on.
        unsafe {
            let value: u32 = global::load(old.ptr()); // read old
            global::store(x.ptr::<u32>().wrapping_add(position()), value); // produce
        }
    };
    let second = || {
        let one = thread::block_idx_x() == 0 && thread::thread_idx_x() == 0;
        // SAFETY: the checks are on.
        unsafe {
            if one && fault == DependentFault::OverwritesTooEarly {
                global::store(old.ptr::<u32>(), 4); // overwrite old
            }
            match fault {
                DependentFault::NoWait => {}
                DependentFault::WaitByOneThread if thread::thread_idx_x() > 0 => {}
                _ => dependent::wait(),
            }
            let _: u32 = global::load(x.ptr::<u32>().wrapping_add(position())); // depend
            if one {
                global::store(old.ptr::<u32>(), 4);
            }
        }
    };
    let launches = [
        Launch::new("first", BLOCKS, THREADS, &first),
        Launch::new("second", BLOCKS, THREADS, &second).dependent(dependent),
    ];
    Simulator::new()
        .seed(seed)
        .run(&mut memory, &launches)
        .map(|_| ())
}

#[test]
fn a_dependent_launch_must_wait() {
    use DependentFault::{NoWait, None, OverwritesTooEarly, WaitByOneThread};
    let run = |dependent, fault| {
        SEEDS
            .map(|seed| run_dependent(seed, dependent, fault))
            .collect::<Vec<_>>()
    };
    accepted(run(true, None));
    // Without the attribute the kernels are ordered anyway.
    for fault in [NoWait, WaitByOneThread, OverwritesTooEarly] {
        accepted(run(false, fault));
    }
    for fault in [NoWait, WaitByOneThread] {
        caught(SOURCE, &["depend"], run(true, fault), |kind| {
            // Or it reads before the first kernel has written.
            matches!(kind, FaultKind::Race { other, .. } if other.kernel == "first")
                || matches!(kind, FaultKind::Uninitialised { .. })
        });
    }
    caught(
        SOURCE,
        &["overwrite old", "read old"],
        run(true, OverwritesTooEarly),
        |kind| matches!(kind, FaultKind::Race { .. }),
    );
}
