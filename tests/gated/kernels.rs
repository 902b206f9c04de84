//! The gated kernels under the simulator, with all checks, against the golden implementation:
//! equal bytes.

use crate::case::{Case, Kind, Shape};
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::sim::Sim;
use cake_rmsnorm::gated::GateOrder;
use cake_rmsnorm::kernels::KERNELS;
use cake_rmsnorm::kernels::contract::Program;
use cake_rmsnorm::{Dtype, Update};
use cake_rmsnorm_simt::{Checks, Schedule};
use rayon::prelude::*;
use std::collections::BTreeSet;

const ORDERS: [GateOrder; 2] = [GateOrder::NormFirst, GateOrder::GateFirst];
const WEIGHTS: [Dtype; 2] = [Dtype::F32, Dtype::Bf16];

/// Both orders with both kinds of rows.
fn orders_and_kinds() -> impl Iterator<Item = (GateOrder, Kind)> {
    let kinds = |order| [Kind::Rows, Kind::Special].map(|kind| (order, kind));
    ORDERS.into_iter().flat_map(kinds)
}

/// A width for each program and for the edges between programs; odd tiles, ragged lanes.
const WIDTHS: &[u64] = &[
    8, 56, 64, 72, 128, 136, 256, 264, 512, 520, 1024, 2056, 4096, 4104, 8192,
];

/// Variants that a case of its own each would be too much for.
fn vary(shape: Shape, number: usize) -> Shape {
    Shape {
        keep_rstd: number.is_multiple_of(3),
        gaps: number.is_multiple_of(2),
        dw: match number % 4 {
            0 => Some(Update::Accumulate),
            1 => None,
            _ => Some(Update::Overwrite),
        },
        ..shape
    }
}

#[test]
fn few_rows() {
    for (i, &hidden) in WIDTHS.iter().enumerate() {
        for (j, rows) in [1, 2, 7, 33].into_iter().enumerate() {
            let (order, weight) = (ORDERS[(i + j) % 2], WEIGHTS[(i + j) / 2 % 2]);
            let shape = vary(Shape::plain(order, weight, rows, hidden), i + j);
            Case::new(shape, Kind::Rows, 1).check(&Sim::new());
        }
    }
}

/// Without rows dw is 0, or stays what it was.
#[test]
fn no_rows() {
    for update in [Update::Overwrite, Update::Accumulate] {
        let shape = Shape {
            dw: Some(update),
            ..Shape::plain(GateOrder::NormFirst, Dtype::F32, 0, 72)
        };
        let case = Case::new(shape, Kind::Rows, 7);
        case.check(&Sim::new());
        let zero = case.golden().dw.iter().all(|&byte| byte == 0);
        assert_eq!(zero, update == Update::Overwrite);
    }
}

#[test]
fn zero_infinite_and_missing_numbers() {
    for (i, &hidden) in [8, 64, 128, 200, 520].iter().enumerate() {
        for order in ORDERS {
            let shape = vary(Shape::plain(order, WEIGHTS[i % 2], 21, hidden), i);
            Case::new(shape, Kind::Special, 2).check(&Sim::new());
        }
    }
}

/// Rows in pairs, on a device so small that they pay early: an odd number of them, pairs that are
/// of two tokens, groups, special numbers.
#[test]
fn pairs_of_rows() {
    for (i, (tokens, heads, hidden, groups)) in [
        (2063, 1, 128, 1),
        (701, 3, 64, 1),
        (1031, 2, 256, 1),
        (2049, 1, 512, 2),
        (413, 5, 40, 1),
    ]
    .into_iter()
    .enumerate()
    {
        for (order, kind) in orders_and_kinds() {
            let shape = Shape {
                tokens,
                heads,
                groups,
                ..vary(Shape::plain(order, WEIGHTS[i % 2], 1, hidden), i)
            };
            Case::new(shape, kind, 9).check(&Sim::new().with_sm_count(1));
        }
    }
}

/// Rows at one distance: so few that lanes have none, more than all blocks have at once, an odd number
/// of them, packed heads, gaps, special numbers.
#[test]
fn rows_at_one_distance() {
    for (i, (tokens, heads, hidden)) in [
        (1, 1, 64),
        (3, 1, 256),
        (33, 1, 128),
        (9, 7, 128),
        (131, 1, 64),
        (499, 1, 128),
        (83, 3, 256),
    ]
    .into_iter()
    .enumerate()
    {
        for (order, kind) in orders_and_kinds() {
            let shape = Shape {
                tokens,
                heads,
                gaps: heads == 1,
                ..vary(Shape::plain(order, WEIGHTS[i % 2], 1, hidden), i)
            };
            let sim = Sim::new().with_sm_count(1);
            let plan = shape
                .op()
                .forward_plan(tokens * heads, shape.spacing(), sim.properties());
            let launch = plan.expect("a plan").launch.expect("rows");
            let flat = matches!(
                launch.kernel.program,
                Program::GatedForwardFlat { lanes, .. } if u64::from(8 * lanes) == hidden
            );
            assert!(flat, "{shape:?}: {launch:?}");
            Case::new(shape, kind, 10).check(&sim);
        }
    }
}

/// Runs of several leaves, leaves of several rows, incomplete ones at the end.
#[test]
fn many_rows() {
    for (i, (hidden, rows)) in [
        (8, 9001),
        (64, 8195),
        (128, 8200),
        (256, 4099),
        (512, 4100),
        (576, 1031),
        (1032, 1025),
        (4104, 515),
    ]
    .into_iter()
    .enumerate()
    {
        let shape = Shape::plain(ORDERS[i % 2], WEIGHTS[i / 2 % 2], rows, hidden);
        Case::new(shape, Kind::Rows, 3).check(&Sim::new());
    }
}

#[test]
fn heads_and_groups() {
    for (i, (tokens, heads, hidden, groups)) in [
        (5, 3, 128, 1),
        (17, 4, 64, 2),
        (9, 32, 128, 4),
        (3, 1, 1024, 8),
        (7, 2, 1536, 3),
        (300, 7, 256, 2),
        (2, 1, 8208, 2),
    ]
    .into_iter()
    .enumerate()
    {
        for order in ORDERS {
            let shape = Shape {
                tokens,
                heads,
                groups,
                ..vary(Shape::plain(order, WEIGHTS[i % 2], 1, hidden), i)
            };
            Case::new(shape, Kind::Rows, 4).check(&Sim::new());
        }
    }
}

/// Widths, tokens and heads that reach every program on a device of one multiprocessor.
const EVERY_PROGRAM: &[(u64, u64, u64)] = &[
    (64, 70, 1),
    (128, 41, 1),
    (256, 37, 1),
    (64, 17, 3),
    (128, 11, 5),
    (256, 19, 3),
    (64, 2051, 1),
    (128, 2053, 1),
    (200, 2055, 1),
    (512, 5, 1),
    (520, 5, 1),
    (4104, 3, 1),
];

/// Bits do not depend on the order in which threads, blocks and copies run.
#[test]
fn every_kernel_under_twenty_schedules() {
    let mut reached = BTreeSet::new();
    for (i, &(hidden, tokens, heads)) in EVERY_PROGRAM.iter().enumerate() {
        for order in ORDERS {
            for weight in WEIGHTS {
                let shape = Shape {
                    gaps: true,
                    keep_rstd: i % 2 == 1,
                    heads,
                    ..Shape::plain(order, weight, tokens, hidden)
                };
                let rows = tokens * heads;
                let case = Case::new(shape, Kind::Rows, 5);
                let sim = Sim::new().with_sm_count(1);
                let forward = case
                    .op
                    .forward_plan(rows, shape.spacing(), sim.properties());
                let backward = case.op.backward_plan(rows, true, sim.properties());
                let launches = [
                    forward.expect("a plan").launch,
                    backward.expect("a plan").main,
                ];
                reached.extend(launches.iter().flatten().map(|launch| launch.kernel.name));
                let golden = case.golden();
                (0..20).into_par_iter().for_each(|seed| {
                    let sim = Sim::new()
                        .with_sm_count(1)
                        .with_schedule(Schedule::from_seed(seed));
                    assert!(case.simulated(&sim) == golden, "{shape:?} seed {seed}");
                });
            }
        }
    }
    let gated = KERNELS
        .iter()
        .filter(|kernel| kernel.module.starts_with("gated"));
    let all: BTreeSet<&str> = gated.map(|kernel| kernel.name).collect();
    assert_eq!(reached, all, "kernels that ran, and all there are");
}

/// Nor on the number of multiprocessors that the planner plans for.
#[test]
fn multiprocessors_change_nothing() {
    for (i, (hidden, rows, groups)) in [(128, 9001, 1), (64, 5000, 2), (576, 700, 1)]
        .into_iter()
        .enumerate()
    {
        let shape = Shape {
            groups,
            ..Shape::plain(ORDERS[i % 2], Dtype::Bf16, rows, hidden)
        };
        let case = Case::new(shape, Kind::Rows, 6);
        let golden = case.golden();
        for sm_count in [1, 2, 7, 132] {
            let sim = Sim::new().with_sm_count(sm_count).with_checks(Checks::Off);
            assert!(case.simulated(&sim) == golden, "{shape:?} on {sm_count}");
        }
    }
}
