//! The kernels themselves under the simulator, with all checks, against the golden
//! implementation: equal bytes.

mod common;

use cake_rmsnorm::Dtype;
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::sim::Sim;
use cake_rmsnorm::kernels::{KERNELS, bench};
use cake_rmsnorm::plan::{self, BackwardForm, DeviceProperties, ForwardForm};
use cake_rmsnorm_simt::{Checks, Schedule};
use common::Case;
use rayon::prelude::*;
use std::collections::BTreeSet;

/// A width for each program and for the edges between programs; odd tiles, ragged warps.
const WIDTHS: &[u64] = &[
    8, 64, 128, 136, 256, 264, 512, 520, 576, 1024, 1032, 2048, 2056, 4096, 6144, 6152, 8192,
];

#[test]
fn few_rows() {
    for (i, &hidden) in WIDTHS.iter().enumerate() {
        for rows in [1, 2, 7, 65] {
            let weight = if (i as u64 + rows).is_multiple_of(2) {
                Dtype::F32
            } else {
                Dtype::Bf16
            };
            let residual = (i / 2 + rows as usize).is_multiple_of(2);
            Case::new(hidden, rows, weight, residual, 8, 1).check(&Sim::new(), "few rows");
        }
    }
}

#[test]
fn single_read_programs() {
    for (hidden, rows) in [
        (8, 8200),
        (256, 8195),
        (512, 1025),
        (576, 1031),
        (1024, 1025),
        (2048, 1031),
        (4096, 1027),
        (6144, 1025),
        (8192, 1026),
        (8200, 1025),
    ] {
        for (weight, residual) in [(Dtype::F32, false), (Dtype::Bf16, true)] {
            Case::new(hidden, rows, weight, residual, 0, 2).check(&Sim::new(), "single read");
        }
    }
}

/// Shapes that reach every program on a device of one multiprocessor.
const EVERY_PROGRAM: &[(u64, u64)] = &[
    (8, 7),
    (256, 530),
    (264, 7),
    (264, 530),
    (1032, 9),
    (2056, 2),
    (8200, 5),
    (16_392, 2),
];

/// Shapes for the programs of more rows, which serve few where dx is written over dy.
const IN_PLACE: &[(u64, u64)] = &[(520, 133), (2056, 133), (4104, 70), (6152, 70), (8200, 133)];

/// Shapes that reach the programs for rows in groups alone.
const GROUPED: &[(u64, u64)] = &[(256, 530), (264, 530), (1032, 10)];

/// Shapes for the general kernels: one tile and several, one turn of a warp and two.
const GENERAL: &[(u64, u64)] = &[(100, 40), (777, 9), (2600, 2)];

const VARIANTS: [(Dtype, bool); 4] = [
    (Dtype::F32, false),
    (Dtype::F32, true),
    (Dtype::Bf16, false),
    (Dtype::Bf16, true),
];

/// Names of the kernels that a case launches.
fn kernels(case: &Case, device: &DeviceProperties) -> Vec<&'static str> {
    let alignment = case.alignment();
    let forward = ForwardForm {
        residual: case.residual,
        alignment,
        grouped: case.grouped,
    };
    let backward = BackwardForm {
        residual: case.residual,
        alignment,
        grouped: case.grouped,
        in_place: case.in_place,
        ..BackwardForm::default()
    };
    let forward = plan::forward(&case.op, case.rows, forward, device);
    let backward = plan::backward(&case.op, case.rows, backward, device);
    let (forward, backward) = (forward.expect("a plan"), backward.expect("a plan"));
    let launches = [forward.launch, backward.main, backward.reduce];
    let launches = launches.iter().flatten();
    launches.map(|launch| launch.kernel.name).collect()
}

/// Bits do not depend on the order in which threads, blocks and copies run.
#[test]
fn every_kernel_under_twenty_schedules() {
    /// Shapes, elements between rows, and how the matrices lie.
    type List = (&'static [(u64, u64)], u64, fn(Case) -> Case);
    let mut reached = BTreeSet::new();
    let lists: [List; 4] = [
        (EVERY_PROGRAM, 8, |case| case),
        (IN_PLACE, 8, Case::in_place),
        (GROUPED, 8, Case::in_groups),
        (GENERAL, 3, |case| case),
    ];
    let cases = lists.iter().flat_map(|&(shapes, gap, layout)| {
        let cases = shapes
            .iter()
            .flat_map(|shape| VARIANTS.map(|variant| (*shape, variant)));
        cases.map(move |((hidden, rows), (weight, residual))| {
            layout(Case::new(hidden, rows, weight, residual, gap, 3))
        })
    });
    for case in cases {
        let sim = Sim::new().with_sm_count(1);
        reached.extend(kernels(&case, sim.properties()));
        let golden = case.golden();
        (0..20).into_par_iter().for_each(|seed| {
            let sim = Sim::new()
                .with_sm_count(1)
                .with_schedule(Schedule::from_seed(seed));
            let same = case.simulated(&sim) == golden;
            let (rows, hidden) = (case.rows, case.op.hidden());
            assert!(same, "T={rows} H={hidden} {:?} seed {seed}", case.op);
        });
    }
    let operators = KERNELS
        .iter()
        .filter(|kernel| kernel.module != bench::MODULE && !kernel.module.starts_with("gated"));
    let all: BTreeSet<&str> = operators.map(|kernel| kernel.name).collect();
    assert_eq!(reached, all, "kernels that ran, and all there are");
}

/// Nor on the number of multiprocessors that the planner plans for.
#[test]
fn multiprocessors_change_nothing() {
    for (hidden, rows) in [
        (64, 9001),
        (264, 2100),
        (576, 1031),
        (2048, 700),
        (4104, 300),
    ] {
        let mut case = Case::new(hidden, rows, Dtype::Bf16, true, 0, 4);
        if hidden >= 2048 {
            // By the program of more rows.
            case = case.in_place();
        }
        let golden = case.golden();
        for sm_count in [1, 2, 7, 100, 132, 148, 212] {
            let sim = Sim::new().with_sm_count(sm_count).with_checks(Checks::Off);
            let same = case.simulated(&sim) == golden;
            assert!(same, "T={rows} H={hidden} on {sm_count} multiprocessors");
        }
    }
}
