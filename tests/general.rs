//! The general kernels under the simulator: any order of threads gives the golden bits, every fault
//! put into them is noticed, and it changes no bit where running sums lie.

#[path = "common/simulated.rs"]
mod simulated;

use cake_rmsnorm::Dtype;
use cake_rmsnorm::backend::sim::{Sim, SimBuffer};
use cake_rmsnorm::backend::{Bound, Launcher};
use cake_rmsnorm::cases::{Case, Data, InPlace, Layout, Layouts, Step, WeightOutput};
use cake_rmsnorm::kernels::KERNELS;
use cake_rmsnorm::kernels::format::Format;
use cake_rmsnorm::kernels::general;
use cake_rmsnorm::kernels::general::params::{GeneralBackwardParams, Tensor};
use cake_rmsnorm::kernels::params::{Groups, Stride};
use cake_rmsnorm::plan::Launch;
use cake_rmsnorm_simt::{Action, Mutation, Schedule, Synchronisation};
use rayon::prelude::*;
use simulated::Simulated;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// Both ways of access in every type, rows of one tile and of several, blocks with more than one
/// row and warps with more than one tile.
fn cases() -> Vec<Case> {
    let shapes = [(9, 100usize, false), (11, 777, true), (5, 2600, false)];
    let types = [
        (Dtype::Bf16, Dtype::F16),
        (Dtype::F16, Dtype::Bf16),
        (Dtype::F32, Dtype::F32),
    ];
    let mut cases = Vec::new();
    for (i, (rows, hidden, residual)) in shapes.into_iter().enumerate() {
        for (input, weight) in types {
            for gap in [3, 16 - hidden % 8] {
                let aligned = (hidden + gap).is_multiple_of(8);
                let layout = Layout {
                    offset: if aligned { 0 } else { 1 },
                    step: Step::Gap(gap),
                };
                cases.push(Case {
                    rows,
                    hidden,
                    input,
                    weight: Some(weight),
                    weight_offset: 0.0,
                    residual,
                    eps: 1e-6,
                    x: Data::Mixed,
                    dy: Data::Ordinary,
                    layouts: Layouts {
                        x: layout,
                        residual: layout,
                        h: layout,
                        y: layout,
                        dy: layout,
                        dh: layout,
                        dx: layout,
                    },
                    weight_start: layout.offset,
                    gradients: (true, true),
                    dw: WeightOutput::Overwritten,
                    keeps_rstd: true,
                    in_place: InPlace::default(),
                    seed: i as u64,
                });
            }
        }
    }
    cases
}

fn wrong(case: &Case, sim: Sim) -> Option<String> {
    let run = catch_unwind(AssertUnwindSafe(|| case.run(&Simulated(sim))));
    match run {
        Err(_) => Some("a panic".to_owned()),
        Ok(Err(error)) => Some(error.to_string()),
        Ok(Ok(failures)) => failures.first().cloned(),
    }
}

#[test]
fn twenty_schedules() {
    for case in cases() {
        (0..20).into_par_iter().for_each(|seed| {
            let sim = Sim::new().with_sm_count(1);
            let wrong = wrong(&case, sim.with_schedule(Schedule::from_seed(seed)));
            assert_eq!(wrong, None, "schedule {seed}: {case}");
        });
    }
}

/// A synchronisation left out, or an access one place further on.
type Mutant = (String, &'static str);

/// Finds every mutant, or makes one.
enum Change {
    Record(Mutex<BTreeSet<Mutant>>),
    Make(Mutant),
}

impl Change {
    fn meets(&self, what: &'static str, location: &Location<'static>) -> bool {
        let place = location.to_string();
        let place = place.rsplit("src/").next().unwrap_or_default().to_owned();
        // Other files have their tests.
        if !place.starts_with("general/") && !place.starts_with("row_sum.rs") {
            return false;
        }
        match self {
            Self::Record(all) => {
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                all.insert((place, what));
                false
            }
            Self::Make(this) => *this == (place, what),
        }
    }
}

impl Mutation for Change {
    fn skips(&self, _: Synchronisation, location: &Location<'static>) -> bool {
        self.meets("a synchronisation left out", location)
    }

    fn displaces(&self, action: Action, bytes: u32, location: &Location<'static>) -> isize {
        let what = match action {
            Action::Write => "a write moved",
            _ => "a read moved",
        };
        if self.meets(what, location) {
            bytes as isize
        } else {
            0
        }
    }
}

#[test]
fn every_mutant_is_noticed() {
    let mut open = BTreeSet::new();
    let mut closed = BTreeSet::new();
    for case in cases() {
        let change = Arc::new(Change::Record(Mutex::default()));
        assert_eq!(wrong(&case, Sim::new().with_mutation(change.clone())), None);
        let Change::Record(found) = &*change else {
            unreachable!("the change above")
        };
        let found = found.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for mutant in found.difference(&closed.clone()) {
            let noticed = [0, 3, 5].into_iter().any(|seed| {
                let sim = Sim::new().with_sm_count(1);
                let sim = sim.with_schedule(Schedule::from_seed(seed));
                let change = Arc::new(Change::Make(mutant.clone()));
                wrong(&case, sim.with_mutation(change)).is_some()
            });
            if noticed {
                open.remove(mutant);
                closed.insert(mutant.clone());
            } else {
                open.insert(mutant.clone());
            }
        }
    }
    assert!(open.is_empty(), "nothing notices {open:#?}");
    assert!(closed.len() >= 12, "only {closed:#?}");
}

/// A matrix of 16-bit elements, packed.
fn tensor(buffer: &SimBuffer, hidden: usize) -> Tensor {
    Tensor {
        base: std::ptr::with_exposed_provenance_mut(buffer.address() as usize),
        stride: Stride {
            row: hidden as i64,
            group: 0,
        },
        format: Format::Bf16,
        aligned: 0,
    }
}

/// Wide rows have no room for their sums in shared memory: they lie in the nodes.
#[test]
fn running_sums_may_lie_in_the_nodes() {
    let (rows, hidden, leaf_log2) = (11usize, 600usize, 2);
    let sim = Sim::new();
    let matrix = |name, seed: usize| {
        let buffer = sim.alloc(name, 2 * rows * hidden);
        let value = |i: usize| half::bf16::from_f32(((i * seed) % 257) as f32 / 64.0 - 2.0);
        let values: Vec<u16> = (0..rows * hidden).map(|i| value(i).to_bits()).collect();
        buffer.write(bytemuck::cast_slice(&values)).expect("fits");
        buffer
    };
    let (dy, x) = (matrix("dy", 31), matrix("x", 113));
    let rstd = sim.alloc("rstd", 4 * rows);
    rstd.write(bytemuck::cast_slice(&vec![0.7f32; rows]))
        .expect("fits");
    let kernel = KERNELS.iter().find(|it| it.name == "general_backward");
    let kernel = kernel.expect("the kernel");
    let none = Tensor {
        base: std::ptr::null_mut(),
        ..tensor(&x, hidden)
    };
    let nodes_of = |in_shared: bool| {
        let leaves = rows.div_ceil(1 << leaf_log2);
        let nodes = sim.alloc("nodes", 8 * leaves * hidden);
        let dx = sim.alloc("dx", 2 * rows * hidden);
        let params = GeneralBackwardParams {
            dy: tensor(&dy, hidden),
            x: tensor(&x, hidden),
            dh: none,
            w: none,
            dx: tensor(&dx, hidden),
            rstd: std::ptr::with_exposed_provenance(rstd.address() as usize),
            nodes: std::ptr::with_exposed_provenance_mut(nodes.address() as usize),
            rows: rows as u32,
            hidden: hidden as u32,
            weight_offset: -0.0,
            groups: Groups::ONE,
            leaf_log2,
            run_log2: 0,
            sums_in_shared: u32::from(in_shared),
        };
        let launch = Launch {
            kernel,
            grid: 2,
            block: 64,
            shared_bytes: if in_shared {
                general::backward::shared_bytes(hidden as u32, 64, 0)
            } else {
                general::SCRATCH_BYTES
            },
            dependent: false,
        };
        let params = (&raw const params).cast();
        // SAFETY: the parameters describe buffers of the simulator, as the kernel wants them.
        unsafe { sim.launch(&[Bound { launch, params }]) }.expect("no fault");
        (nodes.read().expect("nodes"), dx.read().expect("dx"))
    };
    let (shared, global) = (nodes_of(true), nodes_of(false));
    assert!(shared == global);
    assert!(shared.0.chunks(4).any(|word| word != [0; 4]));
}
