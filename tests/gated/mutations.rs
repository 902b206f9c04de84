//! Faults put into the gated kernels one at a time: each barrier and wait left out, each access of
//! global memory one place further on. The simulator, or the comparison with the golden bits, must
//! notice every one.

use crate::case::{Case, Kind, Outputs, Shape};
use cake_rmsnorm::Dtype;
use cake_rmsnorm::backend::sim::Sim;
use cake_rmsnorm::gated::GateOrder;
use cake_rmsnorm_simt::{Action, Mutation, Schedule, Synchronisation};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// What is left out or moved, and where in the source.
type Mutant = (String, String);

/// Finds every mutant, or makes one.
enum Change {
    Record(Mutex<BTreeSet<Mutant>>),
    Make(Mutant),
}

impl Change {
    fn meets(&self, what: String, location: &Location<'static>) -> bool {
        let file = location.file().rsplit("src/").next().unwrap_or_default();
        let place = format!("{file}:{}:{}", location.line(), location.column());
        let mutant = (what, place);
        match self {
            Self::Record(all) => {
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                all.insert(mutant);
                false
            }
            Self::Make(this) => *this == mutant,
        }
    }
}

impl Mutation for Change {
    fn skips(&self, synchronisation: Synchronisation, location: &Location<'static>) -> bool {
        self.meets(format!("without {synchronisation:?}"), location)
    }

    fn displaces(&self, action: Action, bytes: u32, location: &Location<'static>) -> isize {
        let what = match action {
            Action::Write => "a write moved",
            _ => "a read moved",
        };
        let meets = self.meets(what.to_string(), location);
        if meets { bytes as isize } else { 0 }
    }
}

/// What a changed device wrote, or what the simulator said.
fn run(case: &Case, seed: u64, change: &Arc<Change>) -> Result<Outputs, String> {
    let sim = Sim::new()
        .with_sm_count(1)
        .with_schedule(Schedule::from_seed(seed))
        .with_mutation(Arc::clone(change) as Arc<dyn Mutation + Send>);
    let result = catch_unwind(AssertUnwindSafe(|| case.simulated(&sim)));
    result.map_err(|payload| {
        let message = payload.downcast_ref::<String>().cloned();
        message.unwrap_or_else(|| "a panic".to_string())
    })
}

/// Shapes that reach every program, with several runs, or shares of several leaves.
const CASES: &[(GateOrder, u64, u64)] = &[
    (GateOrder::NormFirst, 64, 2100),
    (GateOrder::GateFirst, 200, 2053),
    (GateOrder::NormFirst, 72, 60),
    (GateOrder::GateFirst, 128, 1100),
    (GateOrder::NormFirst, 256, 300),
    (GateOrder::GateFirst, 512, 9),
    (GateOrder::NormFirst, 1032, 70),
    (GateOrder::GateFirst, 4104, 9),
];

#[test]
fn every_mutant_is_noticed() {
    let (mut open, mut closed) = (BTreeSet::new(), BTreeSet::new());
    for &(order, hidden, rows) in CASES {
        let shape = Shape {
            gaps: true,
            keep_rstd: hidden == 256,
            ..Shape::plain(order, Dtype::F32, rows, hidden)
        };
        let case = Case::new(shape, Kind::Rows, 8);
        let golden = case.golden();
        let record = Arc::new(Change::Record(Mutex::default()));
        let outputs = run(&case, 0, &record);
        assert!(
            outputs.as_ref() == Ok(&golden),
            "{shape:?}: wrong unchanged"
        );
        let Change::Record(found) = &*record else {
            unreachable!("made above")
        };
        let found = found.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for mutant in found {
            if closed.contains(&mutant) {
                continue;
            }
            let change = Arc::new(Change::Make(mutant.clone()));
            let noticed = [0, 3, 5, 9, 12].into_iter().any(|seed| {
                let outputs = run(&case, seed, &change);
                outputs.as_ref() != Ok(&golden)
            });
            if noticed {
                open.remove(&mutant);
                closed.insert(mutant);
            } else {
                open.insert(mutant);
            }
        }
    }
    assert!(open.is_empty(), "nothing notices {open:#?}");
    assert!(closed.len() >= 20, "only {} mutants", closed.len());
}
