//! Faults put into the kernels one at a time: each barrier, wait and fence left out, each access
//! of global memory one place further on, a matrix read with another's stride. The simulator, or the comparison with
//! the golden bits, must notice every one.
//!
//! `cargo test --release --test mutations -- --nocapture` prints what noticed which.

#[allow(dead_code)]
mod common;

use cake_rmsnorm::Dtype;
use cake_rmsnorm::backend::sim::Sim;
use cake_rmsnorm::backend::{Backend, Bound, Launcher};
use cake_rmsnorm::plan::DeviceProperties;
use cake_rmsnorm_kernels::contract::Program;
use cake_rmsnorm_kernels::params::{BackwardParams, ForwardParams};
use cake_rmsnorm_simt::{Action, Mutation, Schedule, Synchronisation};
use common::Case;
use std::collections::BTreeSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// A place in the source.
type Site = (String, u32, u32);

fn site(location: &Location<'static>) -> Site {
    let file = location.file().rsplit("src/").next().unwrap_or_default();
    (file.to_string(), location.line(), location.column())
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mutant {
    Skip(Synchronisation, Site),
    Displace(&'static str, Site),
    OtherStride,
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = |f: &mut fmt::Formatter<'_>, (file, line, column): &Site| {
            write!(f, "{file}:{line}:{column}")
        };
        match self {
            Self::Skip(what, site) => {
                write!(f, "without {what:?} at ").and_then(|()| place(f, site))
            }
            Self::Displace(what, site) => {
                write!(f, "{what} one further at ").and_then(|()| place(f, site))
            }
            Self::OtherStride => f.write_str("x read with another stride"),
        }
    }
}

fn name(action: Action) -> &'static str {
    match action {
        Action::Read => "read",
        Action::ConstantRead => "constant read",
        Action::Write => "write",
        Action::Atomic => "atomic",
    }
}

/// Finds every mutant, or makes one.
enum Change {
    Record(Mutex<BTreeSet<Mutant>>),
    Make(Mutant),
}

impl Change {
    fn meets(&self, mutant: Mutant) -> bool {
        match self {
            Self::Record(all) => {
                all.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(mutant);
                false
            }
            Self::Make(this) => *this == mutant,
        }
    }
}

impl Mutation for Change {
    fn skips(&self, synchronisation: Synchronisation, location: &Location<'static>) -> bool {
        self.meets(Mutant::Skip(synchronisation, site(location)))
    }

    fn displaces(&self, action: Action, bytes: u32, location: &Location<'static>) -> isize {
        let meets = self.meets(Mutant::Displace(name(action), site(location)));
        if meets { bytes as isize } else { 0 }
    }
}

/// A simulated device whose kernels take x to be packed.
struct Packed(Sim);

impl Launcher for Packed {
    fn properties(&self) -> &DeviceProperties {
        Backend::properties(&self.0)
    }

    unsafe fn launch(&self, launches: &[Bound]) -> cake_rmsnorm::Result<()> {
        let params: Vec<Vec<u64>> = launches.iter().map(packed_params).collect();
        let launches: Vec<Bound> = launches
            .iter()
            .zip(&params)
            .map(|(bound, params)| Bound {
                launch: bound.launch,
                params: params.as_ptr().cast(),
            })
            .collect();
        // SAFETY: the parameter structs outlive the run; what else is wrong is the point.
        unsafe { self.0.launch(&launches) }
    }
}

/// The kernel's parameters, with x taken to be packed.
fn packed_params(bound: &Bound) -> Vec<u64> {
    let bytes = bound.launch.kernel.param_bytes;
    let mut copy = vec![0u64; bytes.div_ceil(8)];
    let start = copy.as_mut_ptr();
    // SAFETY: the parameter struct has that size and is read only.
    unsafe { start.cast::<u8>().copy_from(bound.params, bytes) };
    match bound.launch.kernel.program {
        Program::Reduce => {}
        Program::ForwardWarp { .. } | Program::ForwardBlock { .. } | Program::ForwardWide => {
            // SAFETY: the kernel's parameter struct.
            let params = unsafe { &mut *start.cast::<ForwardParams>() };
            params.x_stride.row = i64::from(params.hidden);
        }
        _ => {
            // SAFETY: the kernel's parameter struct.
            let params = unsafe { &mut *start.cast::<BackwardParams>() };
            params.x_stride.row = i64::from(params.hidden);
        }
    }
    copy
}

/// Runs a case on a changed device: what it wrote, or what the simulator said.
fn run(case: &Case, seed: u64, change: Arc<Change>) -> Result<common::Outputs, String> {
    let packed = matches!(*change, Change::Make(Mutant::OtherStride));
    let sim = Sim::new()
        .with_sm_count(1)
        .with_schedule(Schedule::from_seed(seed))
        .with_mutation(change);
    let result = catch_unwind(AssertUnwindSafe(|| {
        if packed {
            case.run(&Packed(sim.clone()), &|name, bytes| {
                Box::new(sim.alloc(name, bytes))
            })
        } else {
            case.simulated(&sim)
        }
    }));
    result.map_err(|payload| {
        let message = payload.downcast_ref::<String>();
        message.cloned().unwrap_or_else(|| "a panic".to_string())
    })
}

/// How a mutant is noticed, if it is: the fault's first words, or the bits.
fn noticed(case: &Case, golden: &common::Outputs, mutant: &Mutant) -> Option<String> {
    // The plain schedule, then others.
    [0, 3, 5, 9, 12].into_iter().find_map(|seed| {
        match run(case, seed, Arc::new(Change::Make(mutant.clone()))) {
            Ok(outputs) if outputs == *golden => None,
            Ok(_) => Some("other bits".to_string()),
            Err(message) => Some(message),
        }
    })
}

/// Shapes that reach every program, blocks with several rows or runs, and incomplete trees; whether
/// in the residual form, and whether dx is written over dy, which takes a program of many rows.
const CASES: &[(u64, u64, bool, bool)] = &[
    (256, 9, false, false),
    (512, 9, true, false),
    (1024, 9, false, false),
    (2048, 9, true, false),
    (4104, 3, false, false),
    (9000, 10, false, false),
    (17_000, 5, true, false),
    (64, 2100, true, false),
    (264, 600, false, false),
    (576, 530, true, false),
    (8200, 133, false, true),
];

/// Every mutant of the kernels that a case runs.
fn mutants(case: &Case, golden: &common::Outputs, what: &str) -> BTreeSet<Mutant> {
    let change = Arc::new(Change::Record(Mutex::default()));
    let outputs = run(case, 0, Arc::clone(&change));
    assert!(
        outputs.as_ref() == Ok(golden),
        "{what}: wrong without any mutation"
    );
    let Change::Record(found) = &*change else {
        unreachable!("the change above")
    };
    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner).clone();
    found.insert(Mutant::OtherStride);
    found
}

/// Makes the mutants of every case; `again` those too that a case before has noticed.
fn every_case(again: bool) {
    // What is redundant in one kernel may be needed in another that shares the line.
    let mut open = BTreeSet::new();
    let mut closed = BTreeSet::new();
    for &(hidden, rows, residual, in_place) in CASES {
        let mut case = Case::new(hidden, rows, Dtype::F32, residual, 8, 1);
        if in_place {
            case = case.in_place();
        }
        let what = format!(
            "H={hidden} T={rows}{}",
            if residual { " residual" } else { "" }
        );
        let golden = case.golden();
        for mutant in mutants(&case, &golden, &what) {
            if closed.contains(&mutant) && !again {
                continue;
            }
            let how = noticed(&case, &golden, &mutant);
            println!(
                "| {what} | {mutant} | {} |",
                how.as_deref().unwrap_or("nothing")
            );
            if how.is_some() {
                open.remove(&mutant);
                closed.insert(mutant);
            } else if !closed.contains(&mutant) {
                open.insert(mutant);
            }
        }
    }
    let open: Vec<String> = open.iter().map(Mutant::to_string).collect();
    assert!(open.is_empty(), "nothing notices {open:#?}");
    assert!(closed.len() > 20, "only {} mutants", closed.len());
}

#[test]
fn every_mutant_is_noticed() {
    every_case(false);
}

#[test]
#[ignore = "minutes; prints the whole table with --nocapture"]
fn every_mutant_in_every_case() {
    every_case(true);
}
