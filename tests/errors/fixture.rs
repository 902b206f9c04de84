//! Arguments that are accepted, in memory of their own, and what refuses them after a change.

use cake_rmsnorm::backend::cpu::Cpu;
use cake_rmsnorm::backend::{Backend, Bound, Launcher};
use cake_rmsnorm::kernels::device::Words4;
use cake_rmsnorm::plan::DeviceProperties;
use cake_rmsnorm::{
    Argument, BackwardArgs, Dtype, Error, ForwardArgs, Result, RmsNorm, RowsView, VectorView,
    Workspace,
};
use std::cell::Cell;

/// More rows than the programs without a workspace serve.
pub const ROWS: u64 = 520;
pub const HIDDEN: u64 = 64;
/// Bytes between the starts of two tensors, several times what each needs.
const SLOT: u64 = 1 << 19;

/// Counts what it is asked to run, and runs nothing.
pub struct Recorder {
    properties: DeviceProperties,
    pub calls: Cell<usize>,
}

impl Recorder {
    pub fn new(properties: DeviceProperties) -> Self {
        let calls = Cell::new(0);
        Self { properties, calls }
    }

    fn record(&self, calls: usize) -> Result<()> {
        self.calls.set(self.calls.get() + calls);
        Ok(())
    }
}

impl Launcher for Recorder {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    unsafe fn launch(&self, launches: &[Bound]) -> Result<()> {
        self.record(launches.len())
    }
}

/// NaN, whether read as BF16 or as FP32.
const POISON: Words4 = Words4(!0, !0, !0, !0);

/// Memory for every argument, each far from the others.
pub struct Arena {
    words: Vec<Words4>,
    base: u64,
}

/// The order of the arguments in the arena.
const SLOTS: [Argument; 12] = [
    Argument::X,
    Argument::Residual,
    Argument::W,
    Argument::H,
    Argument::Y,
    Argument::Rstd,
    Argument::Dy,
    Argument::Dh,
    Argument::Dx,
    Argument::Dw,
    Argument::DwBf16,
    Argument::Workspace,
];

impl Arena {
    pub fn poisoned() -> Self {
        let words = SLOT as usize * SLOTS.len() / size_of::<Words4>();
        let mut words = vec![POISON; words];
        let base = words.as_mut_ptr().expose_provenance() as u64;
        Self { words, base }
    }

    pub fn at(&self, argument: Argument) -> u64 {
        let slot = SLOTS.iter().position(|slot| *slot == argument);
        self.base + SLOT * slot.expect("every argument has a slot") as u64
    }

    fn matrix(&self, argument: Argument) -> RowsView {
        RowsView::packed(self.at(argument), ROWS, HIDDEN)
    }

    pub fn forward(&self) -> ForwardArgs {
        ForwardArgs {
            x: self.matrix(Argument::X),
            residual: Some(self.matrix(Argument::Residual)),
            w: Some(VectorView::bf16(self.at(Argument::W), HIDDEN)),
            h: Some(self.matrix(Argument::H)),
            y: self.matrix(Argument::Y),
            rstd: Some(VectorView::f32(self.at(Argument::Rstd), ROWS)),
        }
    }

    pub fn backward(&self) -> BackwardArgs {
        BackwardArgs {
            dy: self.matrix(Argument::Dy),
            x: self.matrix(Argument::X),
            dh: Some(self.matrix(Argument::Dh)),
            w: Some(VectorView::bf16(self.at(Argument::W), HIDDEN)),
            rstd: Some(VectorView::f32(self.at(Argument::Rstd), ROWS)),
            dx: Some(self.matrix(Argument::Dx)),
            dw: Some(VectorView::f32(self.at(Argument::Dw), HIDDEN).into()),
            workspace: Workspace {
                address: self.at(Argument::Workspace),
                bytes: enough(),
            },
        }
    }
}

pub fn operator() -> RmsNorm {
    RmsNorm::new(HIDDEN, Dtype::Bf16, 1e-6).expect("a supported operator")
}

/// Bytes of workspace that the fixture's backward needs.
pub fn needed() -> u64 {
    let plan = operator().backward_plan(ROWS, true, &DeviceProperties::H200);
    plan.expect("a plan").workspace_bytes
}

/// Bytes that it needs for arguments of any alignment.
fn enough() -> u64 {
    let bytes = operator().workspace_bytes(ROWS, true, &DeviceProperties::H200);
    bytes.expect("a plan")
}

/// An argument that the fixture has.
pub fn there<T>(argument: &mut Option<T>) -> &mut T {
    argument.as_mut().expect("the fixture has every argument")
}

/// The arguments of a forward or a backward.
pub trait Arguments: Sized {
    /// Arguments that are accepted.
    fn valid(arena: &Arena) -> Self;
    /// The tensor of that name; only matrices have one.
    fn matrix(&mut self, argument: Argument) -> &mut RowsView;
    fn run(&self, op: &RmsNorm, backend: &dyn Backend) -> Result<()>;
}

impl Arguments for ForwardArgs {
    fn valid(arena: &Arena) -> Self {
        arena.forward()
    }

    fn matrix(&mut self, argument: Argument) -> &mut RowsView {
        match argument {
            Argument::X => &mut self.x,
            Argument::Residual => self.residual.as_mut().expect("the residual form"),
            Argument::H => self.h.as_mut().expect("the residual form"),
            Argument::Y => &mut self.y,
            other => panic!("{other} is no matrix of the forward"),
        }
    }

    fn run(&self, op: &RmsNorm, backend: &dyn Backend) -> Result<()> {
        // SAFETY: a refused call touches nothing, the recorder never does, and whatever else is
        // run describes memory of the arena.
        unsafe { backend.forward(op, self) }
    }
}

impl Arguments for BackwardArgs {
    fn valid(arena: &Arena) -> Self {
        arena.backward()
    }

    fn matrix(&mut self, argument: Argument) -> &mut RowsView {
        match argument {
            Argument::Dy => &mut self.dy,
            Argument::X => &mut self.x,
            Argument::Dh => self.dh.as_mut().expect("the residual form"),
            Argument::Dx => there(&mut self.dx),
            other => panic!("{other} is no matrix of the backward"),
        }
    }

    fn run(&self, op: &RmsNorm, backend: &dyn Backend) -> Result<()> {
        // SAFETY: as for the forward.
        unsafe { backend.backward(op, self) }
    }
}

pub const FORWARD: [Argument; 4] = [Argument::X, Argument::Residual, Argument::Y, Argument::H];
pub const BACKWARD: [Argument; 4] = [Argument::Dy, Argument::X, Argument::Dh, Argument::Dx];

/// Asserts that valid arguments are refused after `change`, with the error that it returns, that
/// nothing is launched and that no byte changes.
#[track_caller]
pub fn refused<A: Arguments>(change: impl Fn(&mut A, &Arena) -> Error) {
    refused_with(&operator(), change);
}

/// As [`refused`], for another operator.
#[track_caller]
pub fn refused_with<A: Arguments>(op: &RmsNorm, change: impl Fn(&mut A, &Arena) -> Error) {
    let arena = Arena::poisoned();
    let mut args = A::valid(&arena);
    let expected = change(&mut args, &arena);
    let recorder = Recorder::new(DeviceProperties::H200);
    assert_eq!(args.run(op, &recorder), Err(expected));
    assert_eq!(recorder.calls.get(), 0, "something was launched");
    let arena = Arena::poisoned();
    let mut args = A::valid(&arena);
    let expected = change(&mut args, &arena);
    assert_eq!(args.run(op, &Cpu), Err(expected), "the CPU backend");
    assert!(
        arena.words.iter().all(|words| *words == POISON),
        "the CPU backend wrote"
    );
}

/// As [`refused`], for what the CPU backend has no use for.
#[track_caller]
pub fn refused_by_launcher<A: Arguments>(
    properties: DeviceProperties,
    change: impl Fn(&mut A, &Arena) -> Error,
) {
    let arena = Arena::poisoned();
    let mut args = A::valid(&arena);
    let expected = change(&mut args, &arena);
    let recorder = Recorder::new(properties);
    assert_eq!(args.run(&operator(), &recorder), Err(expected));
    assert_eq!(recorder.calls.get(), 0, "something was launched");
}

/// Asserts that valid arguments are accepted after `change`; returns the calls to the device.
#[track_caller]
pub fn launches<A: Arguments>(change: impl Fn(&mut A, &Arena)) -> usize {
    launches_with(&operator(), change)
}

/// As [`launches`], for another operator.
#[track_caller]
pub fn launches_with<A: Arguments>(op: &RmsNorm, change: impl Fn(&mut A, &Arena)) -> usize {
    let arena = Arena::poisoned();
    let mut args = A::valid(&arena);
    change(&mut args, &arena);
    let recorder = Recorder::new(DeviceProperties::H200);
    assert_eq!(args.run(op, &recorder), Ok(()));
    recorder.calls.get()
}
