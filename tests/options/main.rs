//! Every option of a call: what may be left out, added up, laid in groups or in the place of an
//! input. The kernels under the simulator give the golden bytes, and the golden bytes are those of
//! the plain call that says the same.

#[path = "../common/mod.rs"]
#[allow(dead_code)]
mod common;
mod setup;

use cake_rmsnorm::Dtype;
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::sim::Sim;
use cake_rmsnorm_simt::Schedule;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use setup::{Dw, InPlace, Layout, Setup};

const DTYPES: [Dtype; 3] = [Dtype::Bf16, Dtype::F16, Dtype::F32];

/// Options at random, for a shape and an element type.
fn setup(hidden: u64, tokens: u64, heads: u64, input: Dtype, rng: &mut ChaCha8Rng) -> Setup {
    let residual = rng.random();
    let layouts = [
        Layout::Padded(0),
        Layout::Padded(8),
        Layout::Padded(3),
        Layout::Interleaved,
        Layout::Transposed,
    ];
    let layouts = match input {
        // Most calls keep to the fast kernels.
        Dtype::Bf16 if rng.random_ratio(5, 6) => &[layouts[0], layouts[1], layouts[3], layouts[4]],
        _ => &layouts[..],
    };
    let mut layout = || *layouts.choose(rng).expect("a layout");
    let (inputs, outputs) = (layout(), layout());
    let over = [
        InPlace::No,
        InPlace::First,
        InPlace::Second,
        InPlace::Residual,
    ];
    let over = if residual { &over[..] } else { &over[..3] };
    let weight = [Some(Dtype::F32), Some(Dtype::Bf16), None];
    let weight = if rng.random_ratio(1, 8) {
        Some(Dtype::F16)
    } else {
        *weight.choose(rng).expect("a type")
    };
    let dw = match weight {
        None => Dw::None,
        Some(_) => *Dw::ALL.choose(rng).expect("a kind"),
    };
    Setup {
        hidden,
        tokens,
        heads,
        input,
        weight,
        offset: if weight.is_some() && rng.random() {
            1.0
        } else {
            0.0
        },
        residual,
        inputs,
        outputs,
        dx: dw == Dw::None || rng.random_ratio(3, 4),
        dw,
        rstd: rng.random(),
        in_place: *over.choose(rng).expect("a place"),
        seed: rng.random(),
    }
}

/// Shapes (H, T, heads) that reach every program of a device with one multiprocessor.
const SHAPES: [(u64, u64, u64); 14] = [
    (8, 7, 1),
    (64, 3, 5),
    (256, 140, 4),
    (264, 140, 4),
    (520, 3, 4),
    (520, 129, 4),
    (1032, 9, 1),
    (2056, 3, 3),
    (4104, 2, 4),
    (2056, 1, 1),
    (6152, 65, 8),
    (8200, 3, 2),
    (8200, 171, 3),
    (16_392, 3, 1),
];

#[test]
fn kernels_give_the_golden_bytes() {
    SHAPES.par_iter().for_each(|&(hidden, tokens, heads)| {
        let mut rng = ChaCha8Rng::seed_from_u64(hidden * 1000 + tokens);
        let draws = if hidden * tokens * heads > 1 << 20 {
            8
        } else {
            24
        };
        for _ in 0..draws {
            let setup = setup(hidden, tokens, heads, Dtype::Bf16, &mut rng);
            setup.check(&Sim::new().with_sm_count(1));
        }
    });
}

/// Of any type and width: the general kernels.
#[test]
fn general_kernels_give_the_golden_bytes() {
    let widths = [1, 3, 9, 64, 257, 520, 1600, 2049];
    widths.par_iter().for_each(|&hidden| {
        let mut rng = ChaCha8Rng::seed_from_u64(hidden);
        for draw in 0..24 {
            let setup = setup(hidden, 5 + draw, 3, DTYPES[draw as usize % 3], &mut rng);
            setup.check(&Sim::new().with_sm_count(1));
        }
    });
}

/// Bits do not depend on the order in which threads, blocks and copies run.
#[test]
fn options_under_twenty_schedules() {
    let shapes = [
        (64, 3, 5),
        (256, 133, 4),
        (520, 3, 4),
        (2056, 3, 3),
        (8200, 3, 2),
    ];
    for (hidden, tokens, heads) in shapes {
        let mut rng = ChaCha8Rng::seed_from_u64(hidden);
        for _ in 0..5 {
            let setup = setup(hidden, tokens, heads, Dtype::Bf16, &mut rng);
            let golden = setup.golden();
            (0..20).into_par_iter().for_each(|seed| {
                let schedule = Schedule::from_seed(seed);
                let sim = Sim::new().with_sm_count(1).with_schedule(schedule);
                let same = setup.simulated(&sim) == golden;
                assert!(same, "{setup:?} seed {seed}");
            });
        }
    }
}

/// Nor on the number of multiprocessors.
#[test]
fn multiprocessors_change_nothing() {
    for (hidden, tokens, heads) in [(64, 130, 5), (520, 129, 4), (2056, 3, 3)] {
        let mut rng = ChaCha8Rng::seed_from_u64(hidden);
        for _ in 0..4 {
            let setup = setup(hidden, tokens, heads, Dtype::Bf16, &mut rng);
            for sm_count in [1, 7, 132] {
                setup.check(&Sim::new().with_sm_count(sm_count));
            }
        }
    }
}

/// A call with options gives what the plain call gives, on rows that lie behind each other: the
/// same bits in every row, and nothing outside.
#[test]
fn options_change_no_bits() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for draw in 0..400 {
        let hidden = *[1, 8, 9, 64, 257, 520, 1600].choose(&mut rng).expect("one");
        let (tokens, heads) = (rng.random_range(0..40), rng.random_range(1..5));
        let setup = setup(hidden, tokens, heads, DTYPES[draw % 3], &mut rng);
        setup.check_against_plain();
    }
}

/// What runs on the simulator reaches every kernel of the operators that takes options.
#[test]
fn draws_reach_what_they_should() {
    let sim = Sim::new().with_sm_count(1);
    let mut kernels = std::collections::BTreeSet::new();
    let mut setups = vec![];
    for (hidden, tokens, heads) in SHAPES {
        let mut rng = ChaCha8Rng::seed_from_u64(hidden * 1000 + tokens);
        let draws = if hidden * tokens * heads > 1 << 20 {
            8
        } else {
            24
        };
        for _ in 0..draws {
            let setup = setup(hidden, tokens, heads, Dtype::Bf16, &mut rng);
            kernels.extend(setup.kernels(sim.properties()));
            setups.push(setup);
        }
    }
    let drawn = |what: &dyn Fn(&Setup) -> bool| setups.iter().filter(|setup| what(setup)).count();
    for kind in Dw::ALL {
        assert!(drawn(&|setup| setup.dw == kind && setup.dx) > 3, "{kind:?}");
    }
    for place in [InPlace::First, InPlace::Second, InPlace::Residual] {
        let both = |setup: &Setup| setup.in_place == place && setup.dx && setup.dw != Dw::None;
        assert!(drawn(&both) > 3, "{place:?}");
    }
    assert!(drawn(&|setup| !setup.dx) > 3 && drawn(&|setup| !setup.rstd) > 3);
    assert!(drawn(&|setup| setup.offset != 0.0) > 3 && drawn(&|setup| setup.weight.is_none()) > 3);
    for program in [
        "forward_warp_",
        "forward_block_",
        "forward_grouped_",
        "backward_warp_grouped_",
        "forward_wide_",
        "backward_warp_",
        "backward_block_",
        "backward_wide_",
        "backward_split_f32_v1",
        "backward_split_bf16_v2",
        "backward_split_wide_",
        "backward_reduce",
        "general_forward",
        "general_backward",
    ] {
        let reached = kernels.iter().any(|name| name.starts_with(program));
        assert!(reached, "{program} of {kernels:?}");
    }
}
