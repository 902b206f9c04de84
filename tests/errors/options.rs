//! What an operator and a call may leave out, add up, or lay in the place of an input.

use crate::fixture::*;
use cake_rmsnorm::{
    Argument, BackwardArgs, Dtype, Error, ForwardArgs, RmsNorm, RowsView, Update, VectorView,
    WeightGradient,
};

fn without_weight() -> RmsNorm {
    let op = RmsNorm::builder(HIDDEN).no_weight().build();
    op.expect("a supported operator")
}

#[test]
fn weight_offsets_are_checked() {
    for offset in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        match RmsNorm::builder(8).weight_offset(offset).build() {
            Err(Error::InvalidWeightOffset { offset: found }) => {
                assert_eq!(found.to_bits(), offset.to_bits());
            }
            other => panic!("offset {offset}: {other:?}"),
        }
    }
    let offset = 1.0;
    let made = RmsNorm::builder(8).no_weight().weight_offset(offset);
    assert_eq!(made.build(), Err(Error::OffsetWithoutWeight { offset }));
    for made in [
        RmsNorm::builder(8).weight_offset(1.0).build(),
        RmsNorm::builder(8).no_weight().weight_offset(0.0).build(),
    ] {
        assert!(made.is_ok(), "{made:?}");
    }
}

#[test]
fn the_weight_is_there_if_the_operator_has_one() {
    let (argument, op) = (Argument::W, without_weight());
    refused(|args: &mut ForwardArgs, _| {
        args.w = None;
        Error::Missing { argument }
    });
    refused(|args: &mut BackwardArgs, _| {
        args.w = None;
        Error::Missing { argument }
    });
    refused_with(&op, |_: &mut ForwardArgs, _| Error::Unexpected { argument });
    refused_with(&op, |_: &mut BackwardArgs, _| Error::Unexpected {
        argument,
    });
    refused_with(&op, |args: &mut BackwardArgs, _| {
        args.w = None;
        Error::Unexpected {
            argument: Argument::Dw,
        }
    });
    assert_eq!(
        launches_with(&op, |args: &mut ForwardArgs, _| args.w = None),
        1
    );
    let input_alone = launches_with(&op, |args: &mut BackwardArgs, _| {
        (args.w, args.dw) = (None, None);
    });
    assert_eq!(input_alone, 1);
}

#[test]
fn a_backward_without_gradients_is_refused() {
    refused(|args: &mut BackwardArgs, _| {
        (args.dx, args.dw) = (None, None);
        Error::NoGradient
    });
    let op = without_weight();
    refused_with(&op, |args: &mut BackwardArgs, _| {
        (args.w, args.dx, args.dw) = (None, None, None);
        Error::NoGradient
    });
}

/// Launches by what is wanted: the main one, the reduce of dw, and that of rstd.
#[test]
fn what_is_not_wanted_is_not_launched() {
    let input = |args: &mut BackwardArgs, _: &Arena| args.dw = None;
    let weight = |args: &mut BackwardArgs, _: &Arena| args.dx = None;
    let recomputed = |args: &mut BackwardArgs, _: &Arena| args.rstd = None;
    assert_eq!(launches(input), 1);
    assert_eq!(launches(weight), 2);
    assert_eq!(launches(recomputed), 3);
    let no_rstd = |args: &mut ForwardArgs, _: &Arena| args.rstd = None;
    assert_eq!(launches(no_rstd), 1);
    // dx alone needs no workspace.
    let nothing = |args: &mut BackwardArgs, _: &Arena| {
        args.dw = None;
        args.workspace.bytes = 0;
        args.workspace.address = 0;
    };
    assert_eq!(launches(nothing), 1);
}

#[test]
fn rstd_that_was_not_kept_needs_a_place_in_the_workspace() {
    let kept = needed();
    let needed = kept + 4 * ROWS;
    refused_by_launcher(
        cake_rmsnorm::plan::DeviceProperties::H200,
        |args: &mut BackwardArgs, _| {
            args.rstd = None;
            args.workspace.bytes = needed - 1;
            Error::WorkspaceTooSmall {
                found: needed - 1,
                needed,
            }
        },
    );
    let enough = launches(|args: &mut BackwardArgs, _| {
        args.rstd = None;
        args.workspace.bytes = needed;
    });
    assert_eq!(enough, 3);
}

fn bf16(arena: &Arena) -> VectorView {
    VectorView::bf16(arena.at(Argument::DwBf16), HIDDEN)
}

#[test]
fn types_of_the_weight_gradient_are_checked() {
    let narrow = Error::Dtype {
        argument: Argument::Dw,
        found: Dtype::Bf16,
        accepted: Dtype::F32,
    };
    // BF16 is overwritten, and alone.
    refused(|args: &mut BackwardArgs, arena| {
        args.dw = Some(WeightGradient::accumulate(bf16(arena)));
        narrow.clone()
    });
    refused(|args: &mut BackwardArgs, arena| {
        let dw = VectorView::bf16(arena.at(Argument::Dw), HIDDEN);
        args.dw = Some(WeightGradient::overwrite(dw).and_bf16(bf16(arena)));
        narrow.clone()
    });
    refused(|args: &mut BackwardArgs, arena| {
        let dw = there(&mut args.dw);
        dw.bf16 = Some(VectorView::f32(arena.at(Argument::DwBf16), HIDDEN));
        Error::Dtype {
            argument: Argument::DwBf16,
            found: Dtype::F32,
            accepted: Dtype::Bf16,
        }
    });
    refused(|args: &mut BackwardArgs, arena| {
        let found = HIDDEN - 1;
        there(&mut args.dw).bf16 = Some(VectorView::bf16(arena.at(Argument::DwBf16), found));
        Error::Length {
            argument: Argument::DwBf16,
            found,
            expected: HIDDEN,
        }
    });
    let accepted = [
        |args: &mut BackwardArgs, arena: &Arena| args.dw = Some(bf16(arena).into()),
        |args: &mut BackwardArgs, arena: &Arena| {
            there(&mut args.dw).bf16 = Some(bf16(arena));
        },
        |args: &mut BackwardArgs, arena: &Arena| {
            let dw = there(&mut args.dw);
            (dw.update, dw.bf16) = (Update::Accumulate, Some(bf16(arena)));
        },
    ];
    for change in accepted {
        assert_eq!(launches(change), 2);
    }
}

#[test]
fn dw_as_bf16_shares_memory_with_nothing() {
    let output = Argument::DwBf16;
    for other in [
        Argument::Dy,
        Argument::X,
        Argument::Dh,
        Argument::W,
        Argument::Rstd,
        Argument::Workspace,
    ] {
        refused(|args: &mut BackwardArgs, arena| {
            there(&mut args.dw).bf16 = Some(VectorView::bf16(arena.at(other), HIDDEN));
            Error::Overlap { output, other }
        });
    }
    refused(|args: &mut BackwardArgs, arena| {
        there(&mut args.dw).bf16 = Some(VectorView::bf16(arena.at(Argument::Dw), HIDDEN));
        Error::Overlap {
            output: Argument::Dw,
            other: output,
        }
    });
}

/// The place of an input, element for element, is accepted where whoever writes has read it.
#[test]
fn outputs_in_the_place_of_an_input() {
    use Argument::{Dh, Dx, Dy, H, Residual, X, Y};
    for (output, input) in [(Y, X), (Y, Residual), (H, X), (H, Residual)] {
        let launches = launches(|args: &mut ForwardArgs, _| {
            *args.matrix(output) = *args.matrix(input);
        });
        assert_eq!(launches, 1, "{output} over {input}");
    }
    for input in [Dy, X, Dh] {
        let launches = launches(|args: &mut BackwardArgs, _| {
            *args.matrix(Dx) = *args.matrix(input);
        });
        assert_eq!(launches, 2, "dx over {input}");
    }
    // Both outputs in one place.
    refused(|args: &mut ForwardArgs, _| {
        (args.y, args.h) = (args.x, Some(args.x));
        Error::Overlap {
            output: Y,
            other: H,
        }
    });
    // The same memory, in another order.
    for stride in [2 * HIDDEN as i64, HIDDEN as i64 + 8] {
        refused(|args: &mut ForwardArgs, _| {
            args.y = args.x.with_stride(stride);
            Error::Overlap {
                output: Y,
                other: X,
            }
        });
        refused(|args: &mut BackwardArgs, _| {
            args.dx = Some(args.dy.with_stride(stride));
            Error::Overlap {
                output: Dx,
                other: Dy,
            }
        });
    }
    // x shares memory with dy elsewhere.
    refused(|args: &mut BackwardArgs, _| {
        args.x.address = args.dy.address + 16;
        args.dx = Some(args.dy);
        Error::Overlap {
            output: Dx,
            other: X,
        }
    });
}

const GROUP: u64 = 4;

/// A view with groups of [`GROUP`] rows in every second place of twice as much memory.
fn grouped(view: RowsView) -> RowsView {
    view.with_groups(GROUP, 2 * (GROUP * HIDDEN) as i64)
}

fn groups<A: Arguments>(argument: Argument) {
    for group in [0, 3, ROWS - 1] {
        refused(|args: &mut A, _| {
            let view = args.matrix(argument);
            *view = view.with_groups(group, 4 * HIDDEN as i64 * group as i64 + 8);
            Error::RowGroups {
                argument,
                rows: ROWS,
                group,
            }
        });
    }
    assert_ne!(
        launches(|args: &mut A, _| {
            let view = args.matrix(argument);
            *view = grouped(*view);
        }),
        0
    );
}

#[test]
fn rows_that_make_no_whole_groups_are_refused() {
    FORWARD.into_iter().for_each(groups::<ForwardArgs>);
    BACKWARD.into_iter().for_each(groups::<BackwardArgs>);
}

#[test]
fn groups_have_one_size() {
    refused(|args: &mut ForwardArgs, _| {
        args.x = grouped(args.x);
        args.y = args.y.with_groups(2 * GROUP, 8 * (GROUP * HIDDEN) as i64);
        Error::GroupsDiffer {
            argument: Argument::Y,
            found: 2 * GROUP,
            expected: GROUP,
        }
    });
    refused(|args: &mut BackwardArgs, _| {
        args.dy = grouped(args.dy);
        args.x = args.x.with_groups(2 * GROUP, 8 * (GROUP * HIDDEN) as i64);
        Error::GroupsDiffer {
            argument: Argument::X,
            found: 2 * GROUP,
            expected: GROUP,
        }
    });
    // Groups that are none do not count.
    let launches = launches(|args: &mut ForwardArgs, _| {
        args.x = grouped(args.x);
        args.y = args.y.with_groups(8, 8 * HIDDEN as i64);
        args.h = args.h.map(|h| h.with_groups(1, HIDDEN as i64));
        args.residual = args.residual.map(|view| view.with_groups(ROWS, 8));
    });
    assert_eq!(launches, 1);
}

fn output_groups<A: Arguments>(argument: Argument) {
    let needed = i128::from(GROUP * HIDDEN);
    for stride in [
        0,
        -(HIDDEN as i64),
        HIDDEN as i64,
        (GROUP * HIDDEN) as i64 - 8,
    ] {
        refused(|args: &mut A, _| {
            let view = args.matrix(argument);
            *view = view.with_groups(GROUP, stride);
            Error::OutputGroups {
                argument,
                stride,
                needed,
            }
        });
    }
    // [heads, T, H]: the rows of a group lie far from each other, groups beside each other.
    let transposed = launches(|args: &mut A, _| {
        let view = args.matrix(argument);
        let stride = (ROWS / GROUP * HIDDEN) as i64;
        *view = view.with_stride(stride).with_groups(GROUP, HIDDEN as i64);
    });
    assert_ne!(transposed, 0);
}

#[test]
fn outputs_whose_groups_overlap_are_refused() {
    output_groups::<ForwardArgs>(Argument::Y);
    output_groups::<ForwardArgs>(Argument::H);
    output_groups::<BackwardArgs>(Argument::Dx);
}

/// Slices of one interleaved buffer: each in the gaps of the other, or not.
#[test]
fn groups_in_the_gaps_of_other_groups_are_accepted() {
    let token = 3 * (GROUP * HIDDEN) as i64;
    let slice = |view: RowsView, columns: u64| {
        let view = view.with_groups(GROUP, token);
        RowsView {
            address: view.address + 2 * columns,
            ..view
        }
    };
    for columns in [GROUP * HIDDEN, 2 * GROUP * HIDDEN] {
        let beside = launches(|args: &mut ForwardArgs, _| {
            args.y = slice(args.x, columns);
            args.x = slice(args.x, 0);
        });
        assert_eq!(beside, 1);
    }
    for columns in [HIDDEN, GROUP * HIDDEN - 8, 2 * GROUP * HIDDEN + 8] {
        refused(|args: &mut ForwardArgs, _| {
            args.y = slice(args.x, columns);
            args.x = slice(args.x, 0);
            Error::Overlap {
                output: Argument::Y,
                other: Argument::X,
            }
        });
    }
}

#[test]
fn groups_beyond_the_address_space_are_refused() {
    let (argument, rows, stride) = (Argument::X, ROWS, HIDDEN as i64);
    refused(|args: &mut ForwardArgs, _| {
        args.x = args.x.with_groups(GROUP, i64::MAX / 2);
        Error::AddressOverflow {
            argument,
            rows,
            stride,
        }
    });
}

#[test]
fn shapes_that_are_no_rows_are_refused() {
    let from =
        |shape: &[u64], strides: &[i64]| RowsView::from_shape(4096, Dtype::Bf16, shape, strides);
    for (shape, strides) in [(&[][..], &[][..]), (&[4, 8], &[8]), (&[8], &[8, 1])] {
        let (dimensions, found) = (shape.len(), strides.len());
        assert_eq!(
            from(shape, strides),
            Err(Error::Dimensions {
                shape: dimensions,
                strides: found,
            })
        );
    }
    for stride in [0, 2, -1] {
        let error = Err(Error::ColumnStride { stride });
        assert_eq!(from(&[4, 8], &[16, stride]), error);
    }
    // Every second of three dimensions that do not continue each other.
    let (shape, strides) = ([2, 3, 4, 8], [1000, 100, 16, 1]);
    assert_eq!(
        from(&shape, &strides),
        Err(Error::Uncollapsible {
            shape: shape.to_vec(),
            strides: strides.to_vec(),
        })
    );
    let many = from(&[1 << 40, 1 << 40, 8], &[8 << 40, 8, 1]);
    assert_eq!(many, Err(Error::TooManyRows { rows: u64::MAX }));
}

#[test]
fn shapes_become_rows() {
    let from = |shape: &[u64], strides: &[i64]| {
        RowsView::from_shape(4096, Dtype::Bf16, shape, strides).expect("rows")
    };
    let packed = |rows| RowsView::packed(4096, rows, 8);
    assert_eq!(from(&[8], &[1]), packed(1));
    assert_eq!(from(&[52, 7, 8], &[56, 8, 1]), packed(364));
    assert_eq!(from(&[5, 8], &[96, 1]), packed(5).with_stride(96));
    assert_eq!(from(&[5, 1, 8], &[96, 7, 1]), packed(5).with_stride(96));
    assert_eq!(from(&[5, 3, 8], &[0, 0, 1]), packed(15).with_stride(0));
    let expanded = packed(15).with_stride(0).with_groups(3, 96);
    assert_eq!(from(&[5, 3, 8], &[96, 0, 1]), expanded);
    let heads = packed(24).with_groups(4, 96);
    assert_eq!(from(&[2, 3, 4, 8], &[288, 96, 8, 1]), heads);
    assert_eq!(from(&[2, 1, 3, 4, 8], &[288, 5, 96, 8, 1]), heads);
    // [B, heads, T, H] transposed to [B, T, heads, H].
    let transposed = packed(12).with_stride(24).with_groups(4, 8);
    assert_eq!(from(&[1, 3, 4, 8], &[96, 8, 24, 1]), transposed);
    assert_eq!(from(&[3, 0, 8], &[96, 8, 1]), packed(0));
    assert_eq!(from(&[4, 1], &[1, 7]).hidden, 1);
}
