//! Asynchronous copies: mbarriers, byte counts, buffers in flight, proxy fences.

mod common;

use cake_rmsnorm_simt::device::{bulk, global, mbarrier, shared, small_copy, thread};
use cake_rmsnorm_simt::{Action, Buffer, Fault, FaultKind, MbarrierProblem, Memory};
use common::{accepted, caught, run_all};

const SOURCE: &str = include_str!("copies.rs");
/// Elements of a row: one a thread.
const ROW: u32 = 64;
const ROW_BYTES: u32 = ROW * 4;

/// What is left out of, or put into, the pipeline below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Omission {
    None,
    NoInitFence,
    NoBarrierAfterInit,
    InitTwice,
    TooFewBytesExpected,
    TooManyBytesExpected,
    NoWait,
    WrongParity,
    NoRelease,
    ArriveTwice,
    StoreToMbarrier,
    CopyOverMbarrier,
    PastTheEnd,
    OddSize,
}

/// Doubles `rows` rows: bulk loads into two stages, generic reads, direct stores.
fn double(x: Buffer, y: Buffer, rows: u32, fault: Omission) {
    let index = thread::thread_idx_x();
    let stage = |row: u32| shared::base() + 64 + row % 2 * ROW_BYTES;
    let full = |row: u32| shared::base() + row % 2 * 8;
    let load = |row: u32| {
        let expected = match fault {
            Omission::TooFewBytesExpected => ROW_BYTES - 16,
            Omission::TooManyBytesExpected => ROW_BYTES + 16,
            _ => ROW_BYTES,
        };
        let bytes = if fault == Omission::OddSize {
            ROW_BYTES - 4
        } else {
            ROW_BYTES
        };
        let to = if fault == Omission::CopyOverMbarrier {
            shared::base()
        } else {
            stage(row)
        };
        let from = row + u32::from(fault == Omission::PastTheEnd);
        let source = x.ptr::<u8>().wrapping_add((from * ROW_BYTES) as usize);
        mbarrier::arrive_expect_tx(full(row), expected); // expect
        if fault == Omission::ArriveTwice {
            mbarrier::arrive(full(row)); // arrive twice
        }
        // SAFETY: the checks are on.
        unsafe { bulk::load(to, source, bytes, full(row)) } // issue
    };
    if index == 0 {
        mbarrier::init(full(0), 1);
        mbarrier::init(full(1), 1);
        if fault == Omission::InitTwice {
            mbarrier::init(full(1), 1); // init twice
        }
        if fault != Omission::NoInitFence {
            mbarrier::fence_init();
        }
    }
    if fault != Omission::NoBarrierAfterInit {
        thread::sync_threads();
    }
    if index == 0 {
        (0..rows.min(2)).for_each(load);
    }
    for row in 0..rows {
        let parity = row / 2 % 2 + u32::from(fault == Omission::WrongParity);
        if fault != Omission::NoWait {
            mbarrier::wait_parity(full(row), parity); // wait
        }
        // SAFETY: the checks are on.
        unsafe {
            let value: u32 = shared::load(stage(row) + index * 4); // consume
            let to = y.ptr::<u32>().wrapping_add((row * ROW + index) as usize);
            global::store(to, value * 2);
        }
        if fault == Omission::StoreToMbarrier && index == 7 {
            // SAFETY: the checks are on.
            unsafe { shared::store(full(row), 0u32) } // store to mbarrier
        }
        if fault != Omission::NoRelease {
            thread::sync_threads();
        }
        if index == 0 && row + 2 < rows {
            load(row + 2);
        }
    }
}

fn run_double(rows: u32, fault: Omission) -> Vec<Result<(), Fault>> {
    let setup = move |memory: &mut Memory| {
        let values: Vec<u32> = (0..rows * ROW).collect();
        (
            memory.alloc_from("x", &values),
            memory.alloc("y", (rows * ROW_BYTES) as usize),
        )
    };
    run_all((2, ROW, 64 + 2 * ROW_BYTES), setup, move |(x, y)| {
        // Both blocks compute the same rows, into memory of their own.
        if thread::block_idx_x() == 0 {
            double(x, y, rows, fault);
        }
    })
}

#[test]
fn the_pipeline_is_accepted() {
    for rows in [1, 2, 3, 7] {
        accepted(run_double(rows, Omission::None));
    }
}

/// A read of a buffer that a copy is filling, or will.
fn too_early(kind: &FaultKind) -> bool {
    matches!(
        kind,
        FaultKind::Race { .. } | FaultKind::Uninitialised { .. }
    )
}

fn never(kind: &FaultKind) -> bool {
    let FaultKind::Mbarrier { problem, .. } = kind else {
        return false;
    };
    matches!(problem, MbarrierProblem::NeverCompletes { .. })
}

#[track_caller]
fn mbarrier_fault(fault: Omission, marks: &[&str], right: impl Fn(&MbarrierProblem) -> bool) {
    caught(
        SOURCE,
        marks,
        run_double(4, fault),
        |kind| matches!(kind, FaultKind::Mbarrier { problem, .. } if right(problem)),
    );
}

#[test]
fn wrong_byte_counts_are_caught() {
    mbarrier_fault(Omission::TooManyBytesExpected, &["wait"], |problem| {
        *problem
            == MbarrierProblem::NeverCompletes {
                phase: 0,
                arrivals: 0,
                bytes: 16,
            }
    });
    mbarrier_fault(Omission::TooFewBytesExpected, &["issue"], |problem| {
        *problem
            == MbarrierProblem::TooManyBytes {
                phase: 0,
                bytes: 16,
            }
    });
}

#[test]
fn phases_that_never_complete_are_caught() {
    // With the parity swapped the first wait returns at once: a read of a buffer in flight.
    let results = run_double(4, Omission::WrongParity);
    // Or the other phase is waited for, where the copy was fast.
    caught(SOURCE, &["consume", "wait"], results, |kind| {
        too_early(kind) || never(kind)
    });
    // Two arrivals are expected and one comes.
    let kernel = |arrivals: u32| {
        if thread::thread_idx_x() == 0 {
            mbarrier::init(shared::base(), arrivals);
        }
        thread::sync_threads();
        if thread::thread_idx_x() == 0 {
            mbarrier::arrive(shared::base());
        }
        mbarrier::wait_parity(shared::base(), 0); // never
    };
    accepted(run_all((1, 32, 8), |_| (), |()| kernel(1)));
    caught(
        SOURCE,
        &["never"],
        run_all((1, 32, 8), |_| (), |()| kernel(2)),
        |kind| {
            let problem = MbarrierProblem::NeverCompletes {
                phase: 0,
                arrivals: 1,
                bytes: 0,
            };
            *kind
                == FaultKind::Mbarrier {
                    address: shared::base(),
                    problem,
                }
        },
    );
}

#[test]
fn misused_mbarriers_are_caught() {
    mbarrier_fault(Omission::InitTwice, &["init twice"], |problem| {
        *problem == MbarrierProblem::AlreadyInitialised
    });
    mbarrier_fault(Omission::NoInitFence, &["issue"], |problem| {
        *problem == MbarrierProblem::InitNotFenced
    });
    // Whoever comes before the initialisation finds none.
    mbarrier_fault(Omission::NoBarrierAfterInit, &["wait"], |problem| {
        matches!(
            problem,
            MbarrierProblem::InitNotOrdered(0) | MbarrierProblem::NotInitialised
        )
    });
    mbarrier_fault(
        Omission::StoreToMbarrier,
        &["store to mbarrier"],
        |problem| *problem == MbarrierProblem::PlainAccess,
    );
    mbarrier_fault(Omission::CopyOverMbarrier, &["issue"], |problem| {
        *problem == MbarrierProblem::PlainAccess
    });
    mbarrier_fault(Omission::ArriveTwice, &["arrive twice"], |problem| {
        matches!(problem, MbarrierProblem::TooManyArrivals { phase: 0 })
    });
}

#[test]
fn buffers_in_flight_are_guarded() {
    let faults = caught(
        SOURCE,
        &["consume"],
        run_double(4, Omission::NoWait),
        too_early,
    );
    let mut races = 0;
    for fault in faults {
        let FaultKind::Race { other, .. } = &*fault.kind else {
            continue;
        };
        assert_eq!(
            (other.thread, other.action),
            (None, Action::Write),
            "{fault}"
        );
        assert_eq!(other.site.line(), common::line_of(SOURCE, "issue"));
        races += 1;
    }
    assert!(races > 0);
    // A thread that comes late finds its buffer overwritten, or waits for a phase long past.
    let results = run_double(4, Omission::NoRelease);
    caught(SOURCE, &["issue", "consume", "wait"], results, |kind| {
        matches!(kind, FaultKind::Race { .. }) || never(kind)
    });
}

#[test]
fn wrong_copies_are_caught() {
    caught(
        SOURCE,
        &["issue"],
        run_double(1, Omission::PastTheEnd),
        |kind| {
            matches!(
                kind,
                FaultKind::OutOfBounds {
                    action: Action::Read,
                    bytes: 256,
                    ..
                }
            )
        },
    );
    caught(
        SOURCE,
        &["issue"],
        run_double(1, Omission::OddSize),
        |kind| *kind == FaultKind::InvalidCopy { bytes: 252 },
    );
}

#[test]
fn an_overwrite_of_a_copys_source_is_caught() {
    // The copy may read its source any time before the wait.
    let kernel = |x: Buffer, wait_first: bool| {
        let full = shared::base();
        if thread::thread_idx_x() == 0 {
            mbarrier::init(full, 1);
            mbarrier::fence_init();
            mbarrier::arrive_expect_tx(full, 128);
            // SAFETY: the checks are on.
            unsafe {
                bulk::load(full + 16, x.ptr(), 128, full);
                if wait_first {
                    mbarrier::wait_parity(full, 0);
                }
                global::store(x.ptr::<u32>(), 9); // overwrite source
            }
            mbarrier::wait_parity(full, 0);
        }
    };
    let setup = |memory: &mut Memory| memory.alloc_from("x", &[1u32; 32]);
    accepted(run_all((1, 32, 144), setup, |x| kernel(x, true)));
    let results = run_all((1, 32, 144), setup, |x| kernel(x, false));
    caught(
        SOURCE,
        &["overwrite source"],
        results,
        |kind| matches!(kind, FaultKind::Race { action: Action::Write, other, .. } if other.thread.is_none()),
    );
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreFault {
    None,
    NoFence,
    NoBarrier,
    NoWaitBeforeReuse,
    NoWaitAtEnd,
}

/// Writes `rows` rows through one shared buffer and bulk stores.
fn store_rows(y: Buffer, rows: u32, fault: StoreFault) {
    let index = thread::thread_idx_x();
    for row in 0..rows {
        // SAFETY: the checks are on.
        unsafe {
            shared::store(shared::base() + index * 4, row * ROW + index); // fill
        }
        if fault != StoreFault::NoFence {
            bulk::fence_shared();
        }
        if fault != StoreFault::NoBarrier {
            thread::sync_threads();
        }
        if index == 0 {
            let to = y.ptr::<u8>().wrapping_add((row * ROW_BYTES) as usize);
            // SAFETY: the checks are on.
            unsafe { bulk::store(to, shared::base(), ROW_BYTES) } // drain
            bulk::commit_group();
            if fault == StoreFault::NoWaitAtEnd {
                return;
            }
            if fault != StoreFault::NoWaitBeforeReuse {
                bulk::wait_read::<0>();
            }
        }
        thread::sync_threads();
    }
}

#[test]
fn bulk_stores_need_a_fence_a_barrier_and_a_wait() {
    let setup = |memory: &mut Memory| memory.alloc("y", (2 * ROW_BYTES) as usize);
    let run = |rows: u32, fault: StoreFault| {
        run_all((1, ROW, ROW_BYTES), setup, move |y| {
            store_rows(y, rows, fault)
        })
    };
    accepted(run(2, StoreFault::None));
    for fault in caught(SOURCE, &["drain"], run(1, StoreFault::NoFence), |kind| {
        matches!(
            kind,
            FaultKind::MissingProxyFence {
                action: Action::Read,
                ..
            }
        )
    }) {
        let FaultKind::MissingProxyFence { other, .. } = &*fault.kind else {
            unreachable!()
        };
        assert_eq!(other.site.line(), common::line_of(SOURCE, "fill"));
    }
    caught(
        SOURCE,
        &["drain", "fill"],
        run(1, StoreFault::NoBarrier),
        |kind| {
            // Or the source is not written at all yet.
            matches!(
                kind,
                FaultKind::Race { .. } | FaultKind::Uninitialised { .. }
            )
        },
    );
    caught(
        SOURCE,
        &["fill"],
        run(2, StoreFault::NoWaitBeforeReuse),
        |kind| {
            matches!(kind, FaultKind::Race { action: Action::Write, other, .. }
            if other.thread.is_none() && other.action == Action::Read)
        },
    );
    let kernel = |wait: bool| {
        move |y: Buffer| {
            if thread::thread_idx_x() == 0 {
                // SAFETY: the checks are on.
                unsafe {
                    shared::store(shared::base(), [1u32; 4]);
                    bulk::fence_shared();
                    bulk::store(y.ptr(), shared::base(), 16); // not awaited
                }
                bulk::commit_group();
                if wait {
                    bulk::wait_read::<0>();
                }
            }
        }
    };
    accepted(run_all((1, 32, 16), setup, kernel(true)));
    let results = run_all((1, 32, 16), setup, kernel(false));
    caught(SOURCE, &["not awaited"], results, |kind| {
        *kind == FaultKind::CopyNotAwaited
    });
}

#[test]
fn an_asynchronous_overwrite_of_a_generic_write_needs_a_fence() {
    let kernel = |x: Buffer, fence: bool| {
        let full = shared::base();
        if thread::thread_idx_x() == 0 {
            mbarrier::init(full, 1);
            mbarrier::fence_init();
            // SAFETY: the checks are on.
            unsafe { shared::store(full + 16, 0u32) } // zero
            if fence {
                bulk::fence_shared();
            }
            mbarrier::arrive_expect_tx(full, 16);
            // SAFETY: the checks are on.
            unsafe { bulk::load(full + 16, x.ptr(), 16, full) } // overwrite
            mbarrier::wait_parity(full, 0);
            // SAFETY: the checks are on.
            assert_eq!(unsafe { shared::load::<u32>(full + 16) }, 5);
        }
    };
    let setup = |memory: &mut Memory| memory.alloc_from("x", &[5u32; 4]);
    accepted(run_all((1, 32, 32), setup, |x| kernel(x, true)));
    let results = run_all((1, 32, 32), setup, |x| kernel(x, false));
    caught(SOURCE, &["overwrite"], results, |kind| {
        matches!(kind, FaultKind::MissingProxyFence { action: Action::Write, other, .. }
            if other.site.line() == common::line_of(SOURCE, "zero"))
    });
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SmallFault {
    None,
    NoWait,
    WaitsForTooFew,
    NoBarrier,
}

/// Each thread copies a word a group, two groups ahead, and reads its neighbour's.
fn small_pipeline(x: Buffer, rows: u32, fault: SmallFault) {
    let index = thread::thread_idx_x();
    let stage = |row: u32, index: u32| shared::base() + (row % 2 * ROW + index % ROW) * 4;
    let fetch = |row: u32| {
        if row < rows {
            let source = x.ptr::<u32>().wrapping_add((row * ROW + index) as usize);
            // SAFETY: the checks are on.
            unsafe { small_copy::copy_constant(stage(row, index), source) } // fetch
        }
        small_copy::commit_group();
    };
    fetch(0);
    for row in 0..rows {
        fetch(row + 1);
        match fault {
            SmallFault::NoWait => {}
            SmallFault::WaitsForTooFew => small_copy::wait::<2>(),
            SmallFault::None | SmallFault::NoBarrier => small_copy::wait::<1>(),
        }
        if fault != SmallFault::NoBarrier {
            thread::sync_threads();
        }
        // SAFETY: the checks are on.
        let value: u32 = unsafe { shared::load(stage(row, index + 1)) }; // use
        assert_eq!(value, row * ROW + (index + 1) % ROW);
        thread::sync_threads();
    }
    small_copy::wait::<0>();
}

#[test]
fn small_copies_need_a_wait_and_a_barrier() {
    let rows = 5;
    let setup = move |memory: &mut Memory| {
        let values: Vec<u32> = (0..rows * ROW).collect();
        memory.alloc_from("x", &values)
    };
    let run = |fault: SmallFault| {
        run_all((1, ROW, 2 * ROW_BYTES), setup, move |x| {
            small_pipeline(x, rows, fault)
        })
    };
    accepted(run(SmallFault::None));
    for fault in [
        SmallFault::NoWait,
        SmallFault::WaitsForTooFew,
        SmallFault::NoBarrier,
    ] {
        caught(SOURCE, &["use"], run(fault), |kind| {
            // Or the neighbour has not even started its copy.
            matches!(
                kind,
                FaultKind::Race { .. } | FaultKind::Uninitialised { .. }
            )
        });
    }
}

#[test]
fn a_copy_of_what_the_kernel_wrote_needs_a_fence() {
    let kernel = |x: Buffer, fence: bool| {
        let full = shared::base();
        if thread::thread_idx_x() == 0 {
            mbarrier::init(full, 1);
            mbarrier::fence_init();
            // SAFETY: the checks are on.
            unsafe { global::store(x.ptr(), [7u32; 4]) } // global write
            if fence {
                bulk::fence_global();
            }
            mbarrier::arrive_expect_tx(full, 16);
            // SAFETY: the checks are on.
            unsafe { bulk::load(full + 16, x.ptr(), 16, full) } // reads it
            mbarrier::wait_parity(full, 0);
            // SAFETY: the checks are on.
            assert_eq!(unsafe { shared::load::<[u32; 4]>(full + 16) }, [7; 4]);
        }
    };
    let setup = |memory: &mut Memory| memory.alloc("x", 16);
    accepted(run_all((1, 32, 32), setup, |x| kernel(x, true)));
    let results = run_all((1, 32, 32), setup, |x| kernel(x, false));
    caught(SOURCE, &["reads it"], results, |kind| {
        matches!(kind, FaultKind::MissingProxyFence { action: Action::Read, other, .. }
            if other.site.line() == common::line_of(SOURCE, "global write"))
    });
}
