//! Types, widths, numbers of rows, operators and devices.

use crate::fixture::*;
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::kernels::backward::reduce;
use cake_rmsnorm::plan::DeviceProperties;
use cake_rmsnorm::{Argument, BackwardArgs, Dtype, Error, ForwardArgs, RmsNorm};

#[test]
fn the_fixture_is_accepted() {
    assert_eq!(launches(|_: &mut ForwardArgs, _| ()), 1);
    assert_eq!(
        launches(|_: &mut BackwardArgs, _| ()),
        2,
        "the main launch and the reduce"
    );
}

#[test]
fn operators_refuse_widths_without_a_kernel() {
    for hidden in [0, 65_537, 65_544, 1 << 32, u64::MAX - 7] {
        for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
            let builder = RmsNorm::builder(hidden).input(dtype).weight(dtype);
            assert_eq!(builder.build(), Err(Error::UnsupportedHidden { hidden }));
        }
    }
    for hidden in [1, 7, 8, 9, 1600, 4100, 16_384, 65_535, 65_536] {
        for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
            let op = RmsNorm::builder(hidden).input(dtype).weight(dtype).build();
            assert_eq!(op.map(|op| op.hidden()), Ok(hidden));
        }
    }
}

#[test]
fn builders_have_defaults() {
    let op = RmsNorm::builder(HIDDEN).build().expect("the defaults");
    let found = (op.hidden(), op.input(), op.weight(), op.eps());
    assert_eq!(found, (HIDDEN, Dtype::Bf16, Some(Dtype::Bf16), 1e-6));
    let built = RmsNorm::builder(HIDDEN)
        .weight(Dtype::F32)
        .eps(1e-5)
        .build();
    assert_eq!(built, RmsNorm::new(HIDDEN, Dtype::F32, 1e-5));
}

#[test]
fn operators_refuse_an_eps_that_is_negative_or_not_finite() {
    for eps in [
        -1e-6,
        -f32::from_bits(1),
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        -f32::NAN,
    ] {
        // Compared as bits: NaN is not equal to itself.
        match RmsNorm::new(HIDDEN, Dtype::Bf16, eps) {
            Err(Error::InvalidEps { eps: found }) => assert_eq!(found.to_bits(), eps.to_bits()),
            other => panic!("eps = {eps}: {other:?}"),
        }
    }
    for eps in [0.0, f32::from_bits(1), 1e-6, f32::MAX] {
        assert!(
            RmsNorm::new(HIDDEN, Dtype::Bf16, eps).is_ok(),
            "eps = {eps}"
        );
    }
}

fn dtype<A: Arguments>(argument: Argument) {
    refused(|args: &mut A, _| {
        args.matrix(argument).dtype = Dtype::F32;
        Error::Dtype {
            argument,
            found: Dtype::F32,
            accepted: Dtype::Bf16,
        }
    });
}

#[test]
fn tensors_of_another_type_are_refused() {
    FORWARD.into_iter().for_each(dtype::<ForwardArgs>);
    BACKWARD.into_iter().for_each(dtype::<BackwardArgs>);
    let error = |argument, found, accepted| Error::Dtype {
        argument,
        found,
        accepted,
    };
    refused(|args: &mut ForwardArgs, _| {
        there(&mut args.w).dtype = Dtype::F32;
        error(Argument::W, Dtype::F32, Dtype::Bf16)
    });
    refused(|args: &mut ForwardArgs, _| {
        there(&mut args.rstd).dtype = Dtype::Bf16;
        error(Argument::Rstd, Dtype::Bf16, Dtype::F32)
    });
    refused(|args: &mut BackwardArgs, _| {
        there(&mut args.w).dtype = Dtype::F32;
        error(Argument::W, Dtype::F32, Dtype::Bf16)
    });
    refused(|args: &mut BackwardArgs, _| {
        there(&mut args.rstd).dtype = Dtype::Bf16;
        error(Argument::Rstd, Dtype::Bf16, Dtype::F32)
    });
    refused(|args: &mut BackwardArgs, _| {
        there(&mut args.dw).dw.dtype = Dtype::F16;
        error(Argument::Dw, Dtype::F16, Dtype::F32)
    });
}

#[test]
fn the_weight_type_is_the_operators() {
    let arena = Arena::poisoned();
    let recorder = Recorder::new(DeviceProperties::H200);
    let op = RmsNorm::new(HIDDEN, Dtype::F32, 1e-6).expect("a supported operator");
    // SAFETY: the recorder touches nothing.
    let run = |args: &ForwardArgs| unsafe { recorder.forward(&op, args) };
    let mut args = arena.forward();
    let (argument, found, accepted) = (Argument::W, Dtype::Bf16, Dtype::F32);
    assert_eq!(
        run(&args),
        Err(Error::Dtype {
            argument,
            found,
            accepted
        })
    );
    assert_eq!(recorder.calls.get(), 0);
    there(&mut args.w).dtype = Dtype::F32;
    assert_eq!(run(&args), Ok(()));
}

fn width<A: Arguments>(argument: Argument) {
    for found in [0, HIDDEN - 8, HIDDEN + 8, 2 * HIDDEN] {
        refused(|args: &mut A, _| {
            args.matrix(argument).hidden = found;
            Error::Length {
                argument,
                found,
                expected: HIDDEN,
            }
        });
    }
}

#[test]
fn tensors_of_another_width_are_refused() {
    FORWARD.into_iter().for_each(width::<ForwardArgs>);
    BACKWARD.into_iter().for_each(width::<BackwardArgs>);
    for found in [0, HIDDEN - 1, HIDDEN + 1, 2 * HIDDEN] {
        let error = |argument| Error::Length {
            argument,
            found,
            expected: HIDDEN,
        };
        refused(|args: &mut ForwardArgs, _| {
            there(&mut args.w).len = found;
            error(Argument::W)
        });
        refused(|args: &mut BackwardArgs, _| {
            there(&mut args.w).len = found;
            error(Argument::W)
        });
        refused(|args: &mut BackwardArgs, _| {
            there(&mut args.dw).dw.len = found;
            error(Argument::Dw)
        });
    }
}

fn rows<A: Arguments>(argument: Argument) {
    for found in [0, ROWS - 1, ROWS + 1] {
        refused(|args: &mut A, _| {
            args.matrix(argument).rows = found;
            Error::Rows {
                argument,
                found,
                expected: ROWS,
            }
        });
    }
}

#[test]
fn tensors_with_another_number_of_rows_are_refused() {
    FORWARD[1..].iter().copied().for_each(rows::<ForwardArgs>);
    BACKWARD[1..].iter().copied().for_each(rows::<BackwardArgs>);
    for found in [0, ROWS - 1, ROWS + 1] {
        let error = Error::Length {
            argument: Argument::Rstd,
            found,
            expected: ROWS,
        };
        refused(|args: &mut ForwardArgs, _| {
            there(&mut args.rstd).len = found;
            error.clone()
        });
        refused(|args: &mut BackwardArgs, _| {
            there(&mut args.rstd).len = found;
            error.clone()
        });
    }
}

#[test]
fn one_of_residual_and_h_alone_is_refused() {
    refused(|args: &mut ForwardArgs, _| {
        args.h = None;
        Error::Unpaired {
            given: Argument::Residual,
            missing: Argument::H,
        }
    });
    refused(|args: &mut ForwardArgs, _| {
        args.residual = None;
        Error::Unpaired {
            given: Argument::H,
            missing: Argument::Residual,
        }
    });
    assert_eq!(
        launches(|args: &mut ForwardArgs, _| (args.residual, args.h) = (None, None)),
        1
    );
}

#[test]
fn devices_that_cannot_run_the_kernels_are_refused() {
    let old = DeviceProperties {
        compute_capability: (7, 5),
        ..DeviceProperties::H200
    };
    let error = Error::UnsupportedDevice { major: 7, minor: 5 };
    refused_by_launcher(old, |_: &mut ForwardArgs, _| error.clone());
    refused_by_launcher(old, |_: &mut BackwardArgs, _| error.clone());

    // What the program that needs no workspace takes for 520 leaves in 128 positions of 4 threads.
    let needed = reduce::shared_bytes(512, 3);
    let found = 16_384;
    let small = DeviceProperties {
        shared_bytes_per_block: found,
        ..DeviceProperties::H200
    };
    refused_by_launcher(small, |_: &mut BackwardArgs, _| Error::SharedMemory {
        needed,
        found,
    });
}
