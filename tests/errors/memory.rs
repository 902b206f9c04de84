//! Where arguments lie: strides, address space, null, alignment, overlap, workspace.

use crate::fixture::*;
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::plan::DeviceProperties;
use cake_rmsnorm::{
    Argument, BackwardArgs, Dtype, Error, ForwardArgs, MAX_ROWS, RmsNorm, RowsView, VectorView,
    Workspace,
};

/// Bytes of a packed matrix of the fixture.
const MATRIX: u64 = ROWS * HIDDEN * 2;
const INPUTS: [Argument; 2] = [Argument::X, Argument::Residual];
const GRADIENTS: [Argument; 3] = [Argument::Dy, Argument::X, Argument::Dh];

fn odd_stride<A: Arguments>(argument: Argument) {
    for stride in [65, 68, 100, 449] {
        let calls = launches(|args: &mut A, _| args.matrix(argument).stride = stride);
        assert!(calls > 0, "{argument} with stride {stride}");
    }
}

/// Rows may start anywhere: they are read and written element by element where it takes that.
#[test]
fn any_stride_is_accepted() {
    FORWARD.into_iter().for_each(odd_stride::<ForwardArgs>);
    BACKWARD.into_iter().for_each(odd_stride::<BackwardArgs>);
}

fn output_stride<A: Arguments>(argument: Argument) {
    for stride in [
        0,
        8,
        HIDDEN as i64 - 8,
        -8,
        -(HIDDEN as i64),
        -2 * HIDDEN as i64,
    ] {
        refused(|args: &mut A, _| {
            args.matrix(argument).stride = stride;
            Error::OutputStride {
                argument,
                stride,
                hidden: HIDDEN,
            }
        });
    }
}

#[test]
fn outputs_whose_rows_overlap_or_run_backwards_are_refused() {
    [Argument::Y, Argument::H]
        .into_iter()
        .for_each(output_stride::<ForwardArgs>);
    output_stride::<BackwardArgs>(Argument::Dx);
}

fn any_input_stride<A: Arguments>(argument: Argument) {
    for stride in [0, 8, HIDDEN as i64 + 8, 2 * HIDDEN as i64] {
        assert_ne!(
            launches(|args: &mut A, _| args.matrix(argument).stride = stride),
            0
        );
    }
    let reversed = launches(|args: &mut A, _| {
        let view = args.matrix(argument);
        view.address += MATRIX - 2 * HIDDEN;
        view.stride = -(HIDDEN as i64);
    });
    assert_ne!(reversed, 0);
}

#[test]
fn inputs_may_repeat_overlap_and_run_backwards() {
    INPUTS.into_iter().for_each(any_input_stride::<ForwardArgs>);
    GRADIENTS
        .into_iter()
        .for_each(any_input_stride::<BackwardArgs>);
}

#[test]
fn the_stride_of_a_single_row_does_not_matter() {
    fn single<A: Arguments>(args: &mut A, arguments: [Argument; 4]) {
        for argument in arguments {
            let view = args.matrix(argument);
            (view.rows, view.stride) = (1, -3);
        }
    }
    let forward = launches(|args: &mut ForwardArgs, _| {
        single(args, FORWARD);
        there(&mut args.rstd).len = 1;
    });
    let backward = launches(|args: &mut BackwardArgs, _| {
        single(args, BACKWARD);
        there(&mut args.rstd).len = 1;
    });
    assert_eq!((forward, backward), (1, 1));
}

fn address_space<A: Arguments>(argument: Argument) {
    let top = u64::MAX - 15;
    // Past 2^64; below 0; distances that no signed 64-bit offset holds.
    let places = [
        (top, 64),
        (16, -64),
        (16, 1 << 53),
        (top, -(1 << 53)),
        (16, i64::MAX - 7),
        (16, i64::MIN + 8),
    ];
    for (address, stride) in places {
        refused(|args: &mut A, _| {
            let view = args.matrix(argument);
            (view.address, view.stride) = (address, stride);
            Error::AddressOverflow {
                argument,
                rows: ROWS,
                stride,
            }
        });
    }
}

#[test]
fn rows_beyond_the_address_space_are_refused() {
    FORWARD.into_iter().for_each(address_space::<ForwardArgs>);
    BACKWARD.into_iter().for_each(address_space::<BackwardArgs>);
    let error = |argument| Error::AddressOverflow {
        argument,
        rows: 1,
        stride: 0,
    };
    refused(|args: &mut ForwardArgs, _| {
        there(&mut args.rstd).address = !15;
        error(Argument::Rstd)
    });
    refused(|args: &mut BackwardArgs, _| {
        there(&mut args.dw).dw.address = !15;
        error(Argument::Dw)
    });
    refused(|args: &mut BackwardArgs, _| {
        args.workspace.address = !15;
        error(Argument::Workspace)
    });
}

/// A forward of `rows` rows with every tensor at an address of its own.
fn tall(args: &mut ForwardArgs, rows: u64) {
    for (i, argument) in FORWARD.into_iter().enumerate() {
        *args.matrix(argument) = RowsView::packed((i as u64 + 1) << 48, rows, HIDDEN);
    }
    args.rstd = Some(VectorView::f32(1 << 52, rows));
}

#[test]
fn rows_beyond_31_bits_are_refused() {
    assert_eq!(
        launches(|args: &mut ForwardArgs, _| tall(args, MAX_ROWS)),
        1
    );
    for rows in [MAX_ROWS + 1, 1 << 32, u64::MAX] {
        refused(|args: &mut ForwardArgs, _| {
            tall(args, rows);
            Error::TooManyRows { rows }
        });
        refused(|args: &mut BackwardArgs, _| {
            args.dy.rows = rows;
            Error::TooManyRows { rows }
        });
        let device = DeviceProperties::H200;
        let error = Some(Error::TooManyRows { rows });
        assert_eq!(operator().forward_plan(rows, false, &device).err(), error);
        assert_eq!(operator().backward_plan(rows, false, &device).err(), error);
    }
}

/// Every address of the arguments.
fn forward_address(args: &mut ForwardArgs, argument: Argument) -> &mut u64 {
    match argument {
        Argument::W => &mut there(&mut args.w).address,
        Argument::Rstd => &mut there(&mut args.rstd).address,
        matrix => &mut args.matrix(matrix).address,
    }
}

fn backward_address(args: &mut BackwardArgs, argument: Argument) -> &mut u64 {
    match argument {
        Argument::W => &mut there(&mut args.w).address,
        Argument::Rstd => &mut there(&mut args.rstd).address,
        Argument::Dw => &mut there(&mut args.dw).dw.address,
        Argument::Workspace => &mut args.workspace.address,
        matrix => &mut args.matrix(matrix).address,
    }
}

const FORWARD_ALL: [Argument; 6] = [
    Argument::X,
    Argument::Residual,
    Argument::W,
    Argument::Y,
    Argument::H,
    Argument::Rstd,
];
const BACKWARD_ALL: [Argument; 8] = [
    Argument::Dy,
    Argument::X,
    Argument::Dh,
    Argument::W,
    Argument::Rstd,
    Argument::Dx,
    Argument::Dw,
    Argument::Workspace,
];

#[test]
fn null_pointers_are_refused() {
    for argument in FORWARD_ALL {
        refused(|args: &mut ForwardArgs, _| {
            *forward_address(args, argument) = 0;
            Error::NullPointer { argument }
        });
    }
    for argument in BACKWARD_ALL {
        refused(|args: &mut BackwardArgs, _| {
            *backward_address(args, argument) = 0;
            Error::NullPointer { argument }
        });
    }
}

/// The fixture without rows, and null where there are no elements.
fn empty<A: Arguments>(args: &mut A, arguments: [Argument; 4]) {
    for argument in arguments {
        *args.matrix(argument) = RowsView::packed(0, 0, HIDDEN);
    }
}

#[test]
fn null_pointers_are_accepted_without_rows() {
    let forward = launches(|args: &mut ForwardArgs, _| {
        empty(args, FORWARD);
        args.rstd = Some(VectorView::f32(0, 0));
    });
    assert_eq!(forward, 0, "a forward without rows launches nothing");
    let backward = |args: &mut BackwardArgs| {
        empty(args, BACKWARD);
        args.rstd = Some(VectorView::f32(0, 0));
        args.workspace = Workspace {
            address: 0,
            bytes: 0,
        };
    };
    let calls = launches(|args: &mut BackwardArgs, _| backward(args));
    assert_eq!(calls, 1, "dw is set to zero");
    // dw has elements all the same.
    refused(|args: &mut BackwardArgs, _| {
        backward(args);
        there(&mut args.dw).dw.address = 0;
        Error::NullPointer {
            argument: Argument::Dw,
        }
    });
}

/// What an argument's address must be a multiple of: the fixture's matrices and weight are BF16.
fn alignment(argument: Argument) -> u64 {
    match argument {
        Argument::Rstd | Argument::Dw => 4,
        Argument::Workspace => 16,
        _ => 2,
    }
}

#[test]
fn misaligned_addresses_are_refused() {
    for offset in [1, 2, 4, 8] {
        let misaligned = |argument: &Argument| offset % alignment(*argument) != 0;
        for argument in FORWARD_ALL.into_iter().filter(misaligned) {
            refused(|args: &mut ForwardArgs, arena| {
                let (address, alignment) = (arena.at(argument) + offset, alignment(argument));
                *forward_address(args, argument) = address;
                Error::Misaligned {
                    argument,
                    address,
                    alignment,
                }
            });
        }
        for argument in BACKWARD_ALL.into_iter().filter(misaligned) {
            refused(|args: &mut BackwardArgs, arena| {
                let (address, alignment) = (arena.at(argument) + offset, alignment(argument));
                *backward_address(args, argument) = address;
                Error::Misaligned {
                    argument,
                    address,
                    alignment,
                }
            });
        }
    }
}

#[test]
fn addresses_of_the_element_type_are_accepted() {
    for argument in FORWARD_ALL {
        let calls = launches(|args: &mut ForwardArgs, _| {
            *forward_address(args, argument) += alignment(argument);
        });
        assert_eq!(calls, 1, "{argument}");
    }
    for argument in BACKWARD_ALL {
        let calls = launches(|args: &mut BackwardArgs, _| {
            *backward_address(args, argument) += alignment(argument);
        });
        assert_eq!(calls, 2, "{argument}");
    }
}

#[test]
fn elements_of_four_bytes_need_their_own_alignment() {
    let op = RmsNorm::builder(HIDDEN).input(Dtype::F32).build();
    let op = op.expect("a supported operator");
    let arena = Arena::poisoned();
    let recorder = Recorder::new(DeviceProperties::H200);
    let mut args = arena.forward();
    for argument in FORWARD {
        args.matrix(argument).dtype = Dtype::F32;
    }
    // SAFETY: the recorder touches nothing.
    let run = |args: &ForwardArgs| unsafe { recorder.forward(&op, args) };
    assert_eq!(run(&args), Ok(()));
    args.x.address += 2;
    let (argument, address, alignment) = (Argument::X, args.x.address, 4);
    assert_eq!(
        run(&args),
        Err(Error::Misaligned {
            argument,
            address,
            alignment
        })
    );
    args.x.address += 2;
    assert_eq!(run(&args), Ok(()));
    assert_eq!(recorder.calls.get(), 2);
}

/// A little behind the start of an argument: not in its place, element for element.
const ELSEWHERE: u64 = 16;

#[test]
fn outputs_over_any_other_argument_are_refused() {
    use Argument::{Dh, Dw, Dx, Dy, H, Residual, Rstd, W, Workspace, X, Y};
    for (output, others) in [
        (Y, &[X, Residual, W, H, Rstd][..]),
        (H, &[X, Residual, W, Rstd]),
        (Rstd, &[X, Residual, W]),
    ] {
        for &other in others {
            refused(|args: &mut ForwardArgs, arena| {
                *forward_address(args, output) = arena.at(other) + ELSEWHERE;
                Error::Overlap { output, other }
            });
        }
    }
    for (output, others) in [
        (Dx, &[Dy, X, Dh, W, Rstd, Dw, Workspace][..]),
        (Dw, &[Dy, X, Dh, W, Rstd, Workspace]),
        (Workspace, &[Dy, X, Dh, W, Rstd]),
    ] {
        for &other in others {
            refused(|args: &mut BackwardArgs, arena| {
                *backward_address(args, output) = arena.at(other) + ELSEWHERE;
                Error::Overlap { output, other }
            });
        }
    }
}

#[test]
fn sixteen_shared_bytes_are_refused_and_neighbours_accepted() {
    let (output, other) = (Argument::Dx, Argument::Dy);
    for from_start in [MATRIX - 16, 16_u64.wrapping_sub(MATRIX)] {
        refused(|args: &mut BackwardArgs, arena| {
            there(&mut args.dx).address = arena.at(other).wrapping_add(from_start);
            Error::Overlap { output, other }
        });
    }
    for from_start in [MATRIX, MATRIX.wrapping_neg()] {
        let change = |args: &mut BackwardArgs, arena: &Arena| {
            there(&mut args.dx).address = arena.at(other).wrapping_add(from_start);
        };
        assert_eq!(launches(change), 2);
    }
}

/// Puts y in the gaps of x, `columns` elements behind it.
fn interleave(args: &mut ForwardArgs, columns: u64, period: i64) {
    args.x.stride = period;
    args.y.stride = period;
    args.y.address = args.x.address + 2 * columns;
}

#[test]
fn rows_in_the_gaps_of_other_rows_are_accepted() {
    let period = 4 * HIDDEN as i64;
    for columns in [HIDDEN, 2 * HIDDEN, 3 * HIDDEN, 5 * HIDDEN] {
        assert_eq!(
            launches(|args: &mut ForwardArgs, _| interleave(args, columns, period)),
            1
        );
    }
    for columns in [8, HIDDEN - 8, 3 * HIDDEN + 8, 4 * HIDDEN, 4 * HIDDEN + 8] {
        refused(|args: &mut ForwardArgs, _| {
            interleave(args, columns, period);
            Error::Overlap {
                output: Argument::Y,
                other: Argument::X,
            }
        });
    }
    // Two outputs.
    let beside = launches(|args: &mut ForwardArgs, _| {
        let y = args.y.with_stride(2 * HIDDEN as i64);
        args.y = y;
        args.h = Some(RowsView {
            address: y.address + 2 * HIDDEN,
            ..y
        });
    });
    assert_eq!(beside, 1);
}

#[test]
fn a_workspace_that_is_too_small_is_refused() {
    let needed = needed();
    assert_ne!(needed, 0);
    for found in [0, 16, needed - 1] {
        refused_by_launcher(DeviceProperties::H200, |args: &mut BackwardArgs, _| {
            args.workspace.bytes = found;
            Error::WorkspaceTooSmall { found, needed }
        });
    }
    assert_eq!(
        launches(|args: &mut BackwardArgs, _| args.workspace.bytes = needed + 16),
        2
    );
    // Few rows need none.
    let calls = launches(|args: &mut BackwardArgs, _| {
        for argument in BACKWARD {
            args.matrix(argument).rows = 256;
        }
        there(&mut args.rstd).len = 256;
        args.workspace = Workspace {
            address: 0,
            bytes: 0,
        };
    });
    assert_eq!(calls, 1);
}
