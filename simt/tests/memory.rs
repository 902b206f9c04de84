//! Checks of single accesses: bounds, alignment, rights, initialisation.

mod common;

use cake_rmsnorm_simt::device::{global, shared, thread};
use cake_rmsnorm_simt::{Action, Buffer, Contents, FaultKind, Memory, MemoryError, Rights, Space};
use common::{accepted, caught, run_all};

const SOURCE: &str = include_str!("memory.rs");

/// Each of 32 threads adds one element of `x` to `y`, `shift` elements further on.
fn add_shifted(x: Buffer, y: Buffer, shift: usize) {
    let index = thread::thread_idx_x() as usize;
    // SAFETY: the checks are on.
    unsafe {
        let value: f32 = global::load(x.ptr::<f32>().wrapping_add(index + shift)); // past the row
        global::store(y.ptr::<f32>().wrapping_add(index), value);
    }
}

#[test]
fn a_read_past_the_end_is_caught() {
    let setup = |memory: &mut Memory| {
        (
            memory.alloc_from("x", &[1.0f32; 32]),
            memory.alloc("y", 128),
        )
    };
    accepted(run_all((1, 32, 0), setup, |(x, y)| add_shifted(x, y, 0)));
    let results = run_all((1, 32, 0), setup, |(x, y)| add_shifted(x, y, 1));
    let right = |kind: &FaultKind| {
        let FaultKind::OutOfBounds {
            action: Action::Read,
            bytes: 4,
            place,
        } = kind
        else {
            return false;
        };
        place.space == Space::Global && place.description == "0 bytes past the end of x"
    };
    for fault in caught(SOURCE, &["past the row"], results, right) {
        assert_eq!((fault.block, fault.thread), (0, 31));
    }
}

#[test]
fn a_null_pointer_is_caught() {
    let kernel = |()| {
        // SAFETY: the checks are on.
        unsafe { global::store(std::ptr::null_mut::<u32>(), 1) } // null
    };
    caught(
        SOURCE,
        &["null"],
        run_all((1, 32, 0), |_| (), kernel),
        |kind| {
            matches!(kind, FaultKind::OutOfBounds { action: Action::Write, place, .. }
            if place.address == 0)
        },
    );
}

#[test]
fn a_misaligned_vector_access_is_caught() {
    let kernel = |x: Buffer, bytes: usize| {
        let start = x.ptr::<u8>().wrapping_add(bytes);
        // SAFETY: the checks are on.
        let _: [u32; 4] = unsafe { global::load(start.cast()) }; // vector
    };
    let setup = |memory: &mut Memory| memory.alloc_from("x", &[0u32; 8]);
    accepted(run_all((1, 32, 0), setup, |x| kernel(x, 16)));
    // By less than a word, and by whole words.
    for misaligned in [2, 4, 8] {
        let results = run_all((1, 32, 0), setup, |x| kernel(x, misaligned));
        caught(SOURCE, &["vector"], results, |kind| {
            matches!(
                kind,
                FaultKind::Misaligned {
                    action: Action::Read,
                    bytes: 16,
                    ..
                }
            )
        });
    }
}

#[test]
fn a_write_to_read_only_memory_is_caught() {
    let store = |x: Buffer| {
        let element = x.ptr::<u32>().wrapping_add(thread::thread_idx_x() as usize);
        // SAFETY: the checks are on.
        unsafe { global::store(element, 7) } // read-only
    };
    for rights in [Rights::ReadWrite, Rights::Read] {
        let mut host = vec![0u32; 32];
        let start = host.as_mut_ptr().cast::<u8>();
        let start = start.expose_provenance();
        let setup = |memory: &mut Memory| {
            let start = std::ptr::with_exposed_provenance_mut(start);
            // SAFETY: the vector outlives the memory, and only the kernel accesses it.
            unsafe { memory.register("x", start, 128, rights, Contents::Initialised) }.unwrap()
        };
        let results = run_all((1, 32, 0), setup, store);
        if rights == Rights::ReadWrite {
            accepted(results);
            assert_eq!(host, [7; 32]);
        } else {
            caught(SOURCE, &["read-only"], results, |kind| {
                matches!(
                    kind,
                    FaultKind::ReadOnly {
                        action: Action::Write,
                        ..
                    }
                )
            });
            assert_eq!(host, [0; 32]);
        }
    }
}

#[test]
fn a_read_of_uninitialised_global_memory_is_caught() {
    let kernel = |x: Buffer, write_first: bool| {
        let address = x.ptr::<u16>().wrapping_add(thread::thread_idx_x() as usize);
        // SAFETY: the checks are on.
        unsafe {
            if write_first {
                global::store(address, 3);
            }
            let _: u16 = global::load(address); // garbage
        }
    };
    let setup = |memory: &mut Memory| memory.alloc("x", 64);
    accepted(run_all((1, 32, 0), setup, |x| kernel(x, true)));
    let results = run_all((1, 32, 0), setup, |x| kernel(x, false));
    caught(
        SOURCE,
        &["garbage"],
        results,
        |kind| matches!(kind, FaultKind::Uninitialised { action: Action::Read, place } if place.space == Space::Global),
    );
    // Written by the host, even in part.
    let half = |memory: &mut Memory| {
        let x = memory.alloc("x", 64);
        memory.write(x, &[5u16; 16]).unwrap();
        x
    };
    let results = run_all((1, 32, 0), half, |x| kernel(x, false));
    for fault in caught(SOURCE, &["garbage"], results, |_| true) {
        assert!(fault.thread >= 16, "{fault}");
    }
}

/// Writes `words` words of shared memory, synchronises, and reads one at byte `offset`.
fn shared_kernel(words: u32, offset: u32) {
    let index = thread::thread_idx_x();
    // SAFETY: the checks are on.
    unsafe {
        if index < words {
            shared::store(shared::base() + index * 4, index); // shared store
        }
        thread::sync_threads();
        let _: u32 = shared::load(shared::base() + offset); // shared load
    }
}

#[test]
fn wrong_shared_addresses_are_caught() {
    let run = |words, offset| run_all((2, 64, 128), |_| (), move |()| shared_kernel(words, offset));
    accepted(run(32, 124));
    caught(
        SOURCE,
        &["shared load"],
        run(32, 128),
        |kind| matches!(kind, FaultKind::OutOfBounds { action: Action::Read, place, .. } if place.space == Space::Shared),
    );
    for fault in caught(SOURCE, &["shared store"], run(33, 0), |kind| {
        matches!(
            kind,
            FaultKind::OutOfBounds {
                action: Action::Write,
                bytes: 4,
                ..
            }
        )
    }) {
        assert_eq!(fault.thread, 32);
    }
    caught(SOURCE, &["shared load"], run(32, 6), |kind| {
        matches!(
            kind,
            FaultKind::Misaligned {
                action: Action::Read,
                bytes: 4,
                ..
            }
        )
    });
    caught(
        SOURCE,
        &["shared load"],
        run(31, 124),
        |kind| matches!(kind, FaultKind::Uninitialised { action: Action::Read, place } if place.space == Space::Shared),
    );
}

#[test]
fn overlapping_registrations_are_refused() {
    let mut host = vec![0u8; 64];
    let start = host.as_mut_ptr();
    let mut memory = Memory::new();
    let mut register = |name: &str, from: usize, bytes: usize, rights| {
        // SAFETY: no kernel runs.
        unsafe {
            memory.register(
                name,
                start.wrapping_add(from),
                bytes,
                rights,
                Contents::Initialised,
            )
        }
    };
    let x = register("x", 16, 32, Rights::Read).unwrap();
    assert!(register("same memory", 16, 32, Rights::Read).is_ok());
    assert!(register("part of it", 20, 8, Rights::Read).is_ok());
    let refused = |result: Result<Buffer, MemoryError>| matches!(result, Err(MemoryError::Overlap { other, .. }) if other == "x");
    assert!(refused(register("more rights", 20, 8, Rights::ReadWrite)));
    assert!(refused(register("left", 8, 16, Rights::Read)));
    assert!(refused(register("right", 40, 16, Rights::Read)));
    assert!(register("beside", 48, 16, Rights::ReadWrite).is_ok());
    assert!(memory.unregister(x).is_ok());
    assert!(matches!(
        memory.unregister(x),
        Err(MemoryError::Unknown { .. })
    ));
}

#[test]
fn the_host_cannot_misuse_buffers() {
    let mut memory = Memory::new();
    let x = memory.alloc("x", 8);
    assert_eq!(
        memory.write(x, &[0u32; 3]),
        Err(MemoryError::DoesNotFit { bytes: 12, room: 8 })
    );
    assert!(matches!(
        Memory::new().read::<u32>(x),
        Err(MemoryError::Unknown { .. })
    ));
}
