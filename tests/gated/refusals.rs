//! What is refused, by name, before anything is launched or written.

use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cpu::Cpu;
use cake_rmsnorm::gated::{
    GateOrder, GatedBackwardArgs, GatedForwardArgs, GatedRmsNorm, HeadsView,
};
use cake_rmsnorm::{Argument, Dtype, Error, Update, VectorView, Workspace};

const ORDER: GateOrder = GateOrder::NormFirst;
const TOKENS: u64 = 4;
const HEADS: u64 = 2;
const HIDDEN: u64 = 64;
/// Bytes between the arguments.
const APART: usize = 8192;

/// Poisoned memory, and arguments in it that are right.
struct Fixture {
    memory: Vec<u128>,
}

impl Fixture {
    fn new() -> Self {
        Self {
            memory: vec![u128::MAX; 16 * APART / 16],
        }
    }

    fn address(&self, number: usize) -> u64 {
        (self.memory.as_ptr() as usize + number * APART) as u64
    }

    fn matrix(&self, number: usize) -> HeadsView {
        HeadsView::packed(self.address(number), TOKENS, HEADS, HIDDEN)
    }

    fn forward(&self) -> GatedForwardArgs {
        GatedForwardArgs {
            x: self.matrix(0),
            z: self.matrix(1),
            w: VectorView::f32(self.address(2), HIDDEN),
            y: self.matrix(3),
            rstd: Some(VectorView::f32(self.address(4), TOKENS * HEADS)),
        }
    }

    fn backward(&self) -> GatedBackwardArgs {
        GatedBackwardArgs {
            dy: self.matrix(5),
            x: self.matrix(0),
            z: self.matrix(1),
            w: VectorView::f32(self.address(2), HIDDEN),
            rstd: Some(VectorView::f32(self.address(4), TOKENS * HEADS)),
            dx: self.matrix(6),
            dz: self.matrix(7),
            dw: Some((VectorView::f32(self.address(8), HIDDEN), Update::Overwrite)),
            workspace: Workspace {
                address: self.address(9),
                bytes: 4096,
            },
        }
    }

    fn refuse_forward(&self, change: impl Fn(&mut GatedForwardArgs), error: Error) {
        let mut args = self.forward();
        change(&mut args);
        let op = GatedRmsNorm::new(ORDER, HIDDEN, Dtype::F32, 1e-6).expect("supported");
        // SAFETY: the memory lives; what is wrong is refused.
        let found = unsafe { Cpu.gated_forward(&op, &args) };
        assert_eq!(found, Err(error));
        assert!(self.memory.iter().all(|word| *word == u128::MAX), "written");
    }

    fn refuse_backward(&self, change: impl Fn(&mut GatedBackwardArgs), error: Error) {
        let mut args = self.backward();
        change(&mut args);
        let op = GatedRmsNorm::new(ORDER, HIDDEN, Dtype::F32, 1e-6).expect("supported");
        // SAFETY: the memory lives; what is wrong is refused.
        let found = unsafe { Cpu.gated_backward(&op, &args) };
        assert_eq!(found, Err(error));
        assert!(self.memory.iter().all(|word| *word == u128::MAX), "written");
    }
}

#[test]
fn widths_and_groups_without_a_kernel() {
    for (hidden, groups) in [
        (0, 1),
        (12, 1),
        (8200, 1),
        (64, 0),
        (64, 3),
        (64, 16),
        (65_544, 9),
    ] {
        assert_eq!(
            GatedRmsNorm::with_groups(ORDER, hidden, groups, Dtype::F32, 1e-6),
            Err(Error::UnsupportedWidth { hidden, groups })
        );
    }
    assert!(GatedRmsNorm::with_groups(ORDER, 65_536, 8, Dtype::Bf16, 0.0).is_ok());
    let eps = GatedRmsNorm::new(ORDER, 64, Dtype::F32, -1.0);
    assert_eq!(eps, Err(Error::InvalidEps { eps: -1.0 }));
    let weight = GatedRmsNorm::new(ORDER, 64, Dtype::F16, 1e-6);
    assert!(matches!(
        weight,
        Err(Error::Dtype {
            argument: Argument::W,
            ..
        })
    ));
}

#[test]
fn shapes_and_types() {
    let fixture = Fixture::new();
    let dtype = |argument, found, accepted| Error::Dtype {
        argument,
        found,
        accepted,
    };
    fixture.refuse_forward(
        |args| args.z.dtype = Dtype::F32,
        dtype(Argument::Z, Dtype::F32, Dtype::Bf16),
    );
    fixture.refuse_forward(
        |args| args.w.dtype = Dtype::Bf16,
        dtype(Argument::W, Dtype::Bf16, Dtype::F32),
    );
    fixture.refuse_forward(
        |args| args.y.hidden = 56,
        Error::Length {
            argument: Argument::Y,
            found: 56,
            expected: 64,
        },
    );
    fixture.refuse_backward(
        |args| args.dz.tokens = 3,
        Error::Rows {
            argument: Argument::Dz,
            found: 3,
            expected: 4,
        },
    );
    fixture.refuse_backward(
        |args| args.z.heads = 1,
        Error::Heads {
            argument: Argument::Z,
            found: 1,
            expected: 2,
        },
    );
    fixture.refuse_backward(
        |args| args.rstd = Some(VectorView::f32(fixture.address(4), 4)),
        Error::Length {
            argument: Argument::Rstd,
            found: 4,
            expected: 8,
        },
    );
    fixture.refuse_forward(
        |args| {
            args.x.tokens = 1 << 40;
        },
        Error::TooManyRows { rows: 1 << 41 },
    );
}

#[test]
fn addresses_and_strides() {
    let fixture = Fixture::new();
    fixture.refuse_forward(
        |args| args.x.address = 0,
        Error::NullPointer {
            argument: Argument::X,
        },
    );
    fixture.refuse_forward(
        |args| args.z.address += 8,
        Error::Misaligned {
            argument: Argument::Z,
            address: fixture.address(1) + 8,
            alignment: 16,
        },
    );
    fixture.refuse_forward(
        |args| args.x.head_stride = 68,
        Error::StrideMultiple {
            argument: Argument::X,
            stride: 68,
            multiple: 8,
        },
    );
    fixture.refuse_forward(
        |args| args.x.token_stride = 1 << 34,
        Error::StrideTooLarge {
            argument: Argument::X,
            stride: 1 << 34,
        },
    );
    let overlapping = |argument, token_stride, head_stride| Error::OutputStrides {
        argument,
        token_stride,
        head_stride,
        hidden: 64,
    };
    for (token, head) in [(128, 56), (120, 64), (-128, 64), (128, -64), (0, 64)] {
        fixture.refuse_forward(
            |args| args.y = args.y.with_strides(token, head),
            overlapping(Argument::Y, token, head),
        );
    }
    fixture.refuse_backward(
        |args| args.dz = args.dz.with_strides(64, 64),
        overlapping(Argument::Dz, 64, 64),
    );
}

#[test]
fn outputs_over_other_arguments() {
    let fixture = Fixture::new();
    let overlap = |output, other| Error::Overlap { output, other };
    fixture.refuse_forward(
        |args| args.y.address = args.z.address,
        overlap(Argument::Y, Argument::Z),
    );
    fixture.refuse_backward(
        |args| args.dx.address = args.dz.address + 16,
        overlap(Argument::Dx, Argument::Dz),
    );
    fixture.refuse_backward(
        |args| args.workspace.address = args.dy.address,
        overlap(Argument::Workspace, Argument::Dy),
    );
}

/// dx and dz of interleaved storage lie in each other's gaps; heads may be the outer dimension.
#[test]
fn interleaved_and_transposed_tensors_are_accepted() {
    let mut memory = vec![0u128; 16 * APART / 16];
    let base = memory.as_mut_ptr() as usize as u64;
    let at = |number: usize| base + (number * APART) as u64;
    let interleaved = |number: usize, part: u64| {
        let address = at(number) + 2 * HIDDEN * part;
        let head = 2 * HIDDEN as i64;
        HeadsView::packed(address, TOKENS, HEADS, HIDDEN).with_strides(HEADS as i64 * head, head)
    };
    let transposed = |number: usize| {
        let token = HIDDEN as i64;
        HeadsView::packed(at(number), TOKENS, HEADS, HIDDEN)
            .with_strides(token, TOKENS as i64 * token)
    };
    let args = GatedBackwardArgs {
        dy: transposed(0),
        x: interleaved(1, 0),
        z: interleaved(1, 1),
        w: VectorView::f32(at(2), HIDDEN),
        rstd: None,
        dx: interleaved(3, 0),
        dz: interleaved(3, 1),
        dw: None,
        workspace: Workspace {
            address: 0,
            bytes: 0,
        },
    };
    let op = GatedRmsNorm::new(ORDER, HIDDEN, Dtype::F32, 1e-6).expect("supported");
    // SAFETY: the memory holds the views.
    assert_eq!(unsafe { Cpu.gated_backward(&op, &args) }, Ok(()));
    let forward = GatedForwardArgs {
        x: interleaved(1, 0),
        z: interleaved(1, 1),
        w: VectorView::f32(at(2), HIDDEN),
        y: transposed(5),
        rstd: None,
    };
    // SAFETY: as above.
    assert_eq!(unsafe { Cpu.gated_forward(&op, &forward) }, Ok(()));
}

/// Nothing overlaps where there is nothing, however many tokens have no heads.
#[test]
fn strides_of_tensors_without_rows_do_not_matter() {
    let fixture = Fixture::new();
    let op = GatedRmsNorm::new(ORDER, HIDDEN, Dtype::F32, 1e-6).expect("supported");
    for (tokens, heads) in [(0, 0), (0, 5), (7, 0), (u64::MAX, 0), (0, u64::MAX)] {
        let matrix = |number| {
            HeadsView::packed(fixture.address(number), tokens, heads, HIDDEN)
                .with_strides(number as i64 - 3, i64::MAX - 6)
        };
        let forward = GatedForwardArgs {
            x: matrix(0),
            z: matrix(1),
            y: matrix(3),
            rstd: None,
            ..fixture.forward()
        };
        // SAFETY: there are no rows.
        assert_eq!(unsafe { Cpu.gated_forward(&op, &forward) }, Ok(()));
        let backward = GatedBackwardArgs {
            dy: matrix(5),
            x: matrix(0),
            z: matrix(1),
            dx: matrix(6),
            dz: matrix(7),
            rstd: None,
            dw: None,
            ..fixture.backward()
        };
        // SAFETY: as above.
        assert_eq!(unsafe { Cpu.gated_backward(&op, &backward) }, Ok(()));
    }
}

#[test]
fn a_workspace_that_is_too_small() {
    use cake_rmsnorm::backend::sim::Sim;
    let fixture = Fixture::new();
    let op = GatedRmsNorm::new(ORDER, HIDDEN, Dtype::F32, 1e-6).expect("supported");
    let mut args = fixture.backward();
    args.workspace.bytes = 16;
    // SAFETY: nothing is launched.
    let found = unsafe { Sim::new().gated_backward(&op, &args) };
    assert_eq!(
        found,
        Err(Error::WorkspaceTooSmall {
            found: 16,
            needed: 512,
        })
    );
    assert!(
        fixture.memory.iter().all(|word| *word == u128::MAX),
        "written"
    );
}
