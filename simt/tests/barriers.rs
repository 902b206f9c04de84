//! Barriers and exchanges that not everybody reaches, and named barriers.

mod common;

use cake_rmsnorm_simt::device::{shared, thread, warp};
use cake_rmsnorm_simt::{FaultKind, Launch, Memory, Simulator};
use common::{accepted, caught, run_all};

const SOURCE: &str = include_str!("barriers.rs");

#[test]
fn a_barrier_in_a_branch_is_caught() {
    let kernel = |threads: u32| {
        if thread::thread_idx_x() < threads {
            thread::sync_threads(); // in a branch
        }
    };
    accepted(run_all((2, 96, 0), |_| (), |()| kernel(96)));
    let results = run_all((2, 96, 0), |_| (), |()| kernel(80));
    for fault in caught(SOURCE, &["in a branch"], results, |kind| {
        matches!(
            kind,
            FaultKind::BarrierDivergence {
                barrier: 0,
                arrived: 80,
                expected: 96,
                ..
            }
        )
    }) {
        let FaultKind::BarrierDivergence { absent, .. } = &*fault.kind else {
            unreachable!()
        };
        assert_eq!((absent.thread, absent.doing.as_str()), (80, "has ended"));
    }
}

#[test]
fn a_duplicated_barrier_is_caught() {
    // What a compiler makes of `if t == 0 {…} sync(); if t == 0 {…}` when it clones the barrier.
    let kernel = |duplicated: bool| {
        if duplicated && thread::thread_idx_x() == 0 {
            thread::sync_threads(); // clone
        } else {
            thread::sync_threads(); // original
        }
    };
    accepted(run_all((1, 64, 0), |_| (), |()| kernel(false)));
    let results = run_all((1, 64, 0), |_| (), |()| kernel(true));
    caught(SOURCE, &["clone", "original"], results, |kind| {
        matches!(kind, FaultKind::BarrierDivergence { barrier: 0, .. })
    });
}

#[test]
fn different_numbers_of_barriers_are_caught() {
    let kernel = |uneven: bool| {
        let rounds = if uneven {
            thread::thread_idx_x() / 32 + 1
        } else {
            2
        };
        for _ in 0..rounds {
            thread::sync_threads(); // loop
        }
    };
    accepted(run_all((1, 64, 0), |_| (), |()| kernel(false)));
    let results = run_all((1, 64, 0), |_| (), |()| kernel(true));
    caught(SOURCE, &["loop"], results, |kind| {
        matches!(
            kind,
            FaultKind::BarrierDivergence {
                barrier: 0,
                arrived: 32,
                expected: 64,
                ..
            }
        )
    });
}

#[test]
fn a_shuffle_from_an_inactive_lane_is_caught() {
    let kernel = |lanes: u32| {
        if thread::thread_idx_x() % 32 < lanes {
            warp::shuffle_xor(1, 16); // some lanes
        }
        thread::sync_threads();
    };
    accepted(run_all((1, 64, 0), |_| (), |()| kernel(32)));
    let results = run_all((1, 64, 0), |_| (), |()| kernel(31));
    for fault in caught(SOURCE, &["some lanes"], results, |kind| {
        matches!(kind, FaultKind::InactiveLane { .. })
    }) {
        let FaultKind::InactiveLane { absent } = &*fault.kind else {
            unreachable!()
        };
        assert_eq!(absent.thread % 32, 31, "{fault}");
        assert_eq!(absent.thread / 32, fault.thread / 32, "{fault}");
        assert!(absent.doing.starts_with("waits at barrier 0"), "{fault}");
    }
}

#[test]
fn lanes_at_different_shuffles_are_caught() {
    let kernel = |apart: bool| {
        let value = thread::thread_idx_x();
        let sum = if apart && value.is_multiple_of(2) {
            value + warp::shuffle_xor(value, 2) // even lanes
        } else {
            value + warp::shuffle_idx(value, value ^ 2) // odd lanes
        };
        assert_eq!(sum, value + (value ^ 2));
    };
    accepted(run_all((1, 32, 0), |_| (), |()| kernel(false)));
    let results = run_all((1, 32, 0), |_| (), |()| kernel(true));
    caught(SOURCE, &["even lanes", "odd lanes"], results, |kind| {
        matches!(kind, FaultKind::InactiveLane { .. })
    });
}

#[test]
fn exchanges_follow_the_definition() {
    accepted(run_all(
        (1, 64, 0),
        |_| (),
        |()| {
            let lane = thread::thread_idx_x() % 32;
            let value = thread::thread_idx_x() * 3;
            let first = thread::thread_idx_x() - lane;
            assert_eq!(warp::shuffle_xor(value, 5), (first + (lane ^ 5)) * 3);
            assert_eq!(warp::shuffle_idx(value, lane / 2), (first + lane / 2) * 3);
            let below = if lane + 4 < 32 { lane + 4 } else { lane };
            assert_eq!(warp::shuffle_down(value, 4), (first + below) * 3);
            assert_eq!(warp::ballot(lane.is_multiple_of(3)), 0o11111111111);
            assert!(warp::any(lane == 7) && !warp::any(lane == 32));
            assert!(warp::all(lane < 32) && !warp::all(lane < 31));
        },
    ));
}

/// Warps 1 and 2 consume in turn what warp 0 produces, by named barriers: `full` and `empty`.
fn pipeline(rounds: u32, consumers_release: bool) {
    const FULL: u32 = 1;
    const EMPTY: u32 = 2;
    let (warp, lane) = (thread::thread_idx_x() / 32, thread::thread_idx_x() % 32);
    for round in 0..rounds {
        let slot = shared::base() + lane * 4;
        // SAFETY: the checks are on.
        unsafe {
            if warp == 0 {
                if round > 0 && consumers_release {
                    thread::sync_named(EMPTY, 96);
                }
                shared::store(slot, round); // produce
                thread::arrive_named(FULL, 96); // announce
            } else {
                thread::sync_named(FULL, 96);
                assert_eq!(shared::load::<u32>(slot), round); // consume
                if round + 1 < rounds {
                    thread::arrive_named(EMPTY, 96);
                }
            }
        }
    }
}

#[test]
fn named_barriers_order_producers_and_consumers() {
    accepted(run_all((2, 96, 128), |_| (), |()| pipeline(4, true)));
    // Without waiting for the consumers the producer overwrites what they read.
    let results = run_all((2, 96, 128), |_| (), |()| pipeline(2, false));
    caught(
        SOURCE,
        &["produce", "consume", "announce"],
        results,
        |kind| matches!(kind, FaultKind::Race { .. } | FaultKind::InvalidBarrier(_)),
    );
}

#[test]
fn invalid_named_barriers_are_caught() {
    let run = |barrier: u32, threads: u32, others: u32| {
        run_all(
            (1, 64, 0),
            |_| (),
            move |()| {
                let threads = if thread::thread_idx_x() < 32 {
                    threads
                } else {
                    others
                };
                thread::sync_named(barrier, threads); // named
            },
        )
    };
    accepted(run(15, 64, 64));
    for (barrier, threads, others) in [
        (0, 64, 64),
        (16, 64, 64),
        (1, 48, 48),
        (1, 64, 32),
        (1, 96, 96),
    ] {
        caught(SOURCE, &["named"], run(barrier, threads, others), |kind| {
            // A barrier of 32 may be over before the other warp comes.
            let alone = others == 32 && matches!(kind, FaultKind::BarrierDivergence { .. });
            alone || matches!(kind, FaultKind::InvalidBarrier(_))
        });
    }
}

#[test]
fn crossed_named_barriers_are_caught() {
    let kernel = |crossed: bool| {
        let first = if crossed {
            1 + thread::thread_idx_x() / 32
        } else {
            1
        };
        thread::sync_named(first, 64); // first
        thread::sync_named(3 - first, 64);
    };
    accepted(run_all((1, 64, 0), |_| (), |()| kernel(false)));
    let results = run_all((1, 64, 0), |_| (), |()| kernel(true));
    caught(SOURCE, &["first"], results, |kind| {
        matches!(
            kind,
            FaultKind::BarrierDivergence {
                arrived: 32,
                expected: 64,
                ..
            }
        )
    });
}

#[test]
fn a_panic_of_the_kernel_is_a_fault() {
    let kernel = || assert!(thread::thread_idx_x() != 5, "not thread 5");
    let result = Simulator::new().run(&mut Memory::new(), &[Launch::new("panics", 1, 32, &kernel)]);
    let fault = result.unwrap_err();
    assert_eq!((fault.kernel.as_str(), fault.thread), ("panics", 5));
    assert_eq!(*fault.kind, FaultKind::Panic("not thread 5".to_string()));
}

#[test]
fn impossible_launches_are_refused() {
    let kernel = || {};
    for (grid, block) in [(0, 32), (1, 0), (1, 33), (1, 1056)] {
        let launch = Launch::new("kernel", grid, block, &kernel);
        let fault = Simulator::new()
            .run(&mut Memory::new(), &[launch])
            .unwrap_err();
        assert!(
            matches!(&*fault.kind, FaultKind::InvalidLaunch(_)),
            "{fault}"
        );
    }
}
