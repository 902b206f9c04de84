//! Faults put into a right kernel from outside are noticed.

use cake_rmsnorm_simt::device::{dependent, global, shared, small_copy, thread};
use cake_rmsnorm_simt::{
    Action, Buffer, Fault, FaultKind, Launch, Memory, Mutation, Simulator, Synchronisation,
};
use std::collections::BTreeSet;
use std::panic::Location;
use std::sync::Mutex;

/// Records every synchronisation and leaves none out.
#[derive(Default)]
struct Recorder(Mutex<BTreeSet<(Synchronisation, u32)>>);

impl Mutation for Recorder {
    fn skips(&self, synchronisation: Synchronisation, site: &Location<'static>) -> bool {
        self.0
            .lock()
            .unwrap()
            .insert((synchronisation, site.line()));
        false
    }
}

/// Leaves out one synchronisation.
struct Skip((Synchronisation, u32));

impl Mutation for Skip {
    fn skips(&self, synchronisation: Synchronisation, site: &Location<'static>) -> bool {
        self.0 == (synchronisation, site.line())
    }
}

/// Moves all accesses of one kind by their own size.
struct Displace(Action);

impl Mutation for Displace {
    fn displaces(&self, action: Action, bytes: u32, _: &Location<'static>) -> isize {
        if action == self.0 { bytes as isize } else { 0 }
    }
}

/// Fetches a word a thread, twice, and stores the neighbour's.
fn rotate_twice(x: Buffer, y: Buffer) {
    let (index, threads) = (thread::thread_idx_x(), thread::block_dim_x());
    let place = |index: u32| shared::base() + 4 * (index % threads);
    for round in 0..2 {
        let element = (round * threads + index) as usize;
        // SAFETY: the checks are on.
        unsafe {
            small_copy::copy_constant(place(index), x.ptr::<u32>().wrapping_add(element));
            small_copy::commit_group();
            small_copy::wait::<0>();
            thread::sync_threads();
            let value: u32 = shared::load(place(index + 1));
            global::store(y.ptr::<u32>().wrapping_add(element), value);
            thread::sync_threads();
        }
    }
}

fn run(seed: u64, mutation: &dyn Mutation) -> Result<Vec<u32>, Fault> {
    let mut memory = Memory::new();
    let x = memory.alloc_from("x", &(0..128).collect::<Vec<u32>>());
    let (y, z) = (memory.alloc("y", 512), memory.alloc("z", 4));
    let first = || rotate_twice(x, y);
    let second = || {
        dependent::wait();
        if thread::thread_idx_x() == 0 {
            // SAFETY: the checks are on.
            unsafe {
                global::store(
                    z.ptr::<u32>(),
                    global::load(y.ptr::<u32>().wrapping_add(127)),
                )
            }
        }
    };
    let launches = [
        Launch::new("first", 1, 64, &first).shared_bytes(256),
        Launch::new("second", 1, 32, &second).dependent(true),
    ];
    Simulator::new()
        .seed(seed)
        .mutation(mutation)
        .run(&mut memory, &launches)?;
    Ok(memory.read(z).unwrap())
}

#[test]
fn every_synchronisation_left_out_is_noticed() {
    let recorder = Recorder::default();
    assert_eq!(run(0, &recorder).unwrap(), [64]);
    let found = recorder.0.into_inner().unwrap();
    assert_eq!(found.len(), 4, "{found:?}");
    for left_out in found {
        for seed in 0..20 {
            let result = run(seed, &Skip(left_out));
            assert!(result.is_err(), "seed {seed}: nobody misses {left_out:?}");
        }
    }
}

#[test]
fn displaced_accesses_are_noticed() {
    let kind = |action| *run(0, &Displace(action)).unwrap_err().kind;
    for action in [Action::ConstantRead, Action::Write, Action::Read] {
        let kind = kind(action);
        assert!(
            matches!(kind, FaultKind::OutOfBounds { action: a, .. } if a == action),
            "{kind}"
        );
    }
}
