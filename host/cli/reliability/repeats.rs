//! Backwards after one another on one workspace, whose inputs change and whose every output is
//! compared.

use super::finding::Findings;
use super::shape::{Form, GatedSet, Shape, gate_first, norm_first, plain, residual};
use super::{Stage, Where};
use crate::cli::bench_host::expected::inputs;
use crate::cli::device::{Buffer, Device};
use crate::cli::error::{CliError, Result};
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::gated::{GatedBackwardArgs, GatedRmsNorm, HeadsView};
use cake_rmsnorm::golden::{backward_slices, forward_slices};
use cake_rmsnorm::plan::Views;
use cake_rmsnorm::{BackwardArgs, Dtype, RmsNorm, RowsView, Update, VectorView, Workspace};

/// Shapes and backwards: one launch, warp and reduce, block and reduce, wide and reduce; a million
/// of the plain and the residual form.
const SHAPES: [(Shape, u64); 16] = [
    (plain(4096, 96), 250_000),
    (residual(512, 300), 200_000),
    (plain(256, 600), 200_000),
    (residual(512, 700), 150_000),
    (plain(1024, 1030), 100_000),
    (plain(2048, 1030), 60_000),
    (residual(4096, 1030), 30_000),
    (plain(8200, 1030), 10_000),
    (norm_first(128, 1, 300), 100_000),
    (gate_first(256, 2, 600), 100_000),
    (norm_first(64, 1, 16_400), 30_000),
    (gate_first(128, 1, 16_400), 20_000),
    (gate_first(512, 1, 1030), 20_000),
    (norm_first(4096, 1, 300), 20_000),
    (gate_first(8192, 1, 520), 10_000),
    (norm_first(16_384, 2, 96), 10_000),
];
/// Under the simulator.
const SMALL_SHAPES: [(Shape, u64); 3] = [
    (plain(264, 5), 8),
    (residual(64, 520), 8),
    (gate_first(128, 2, 9), 8),
];
/// Different inputs.
const SETS: usize = 4;
/// Backwards in a row, each with outputs of its own; even, for two places of inputs take turns.
const RUN: usize = 16;
/// Runs after which the flag is looked at.
const LOOK: u64 = 64;
const ALIGNMENT: usize = 256;

/// Runs them.
pub fn run(stage: &Stage<'_>, findings: &mut Findings<'_>) -> Result<()> {
    let shapes = match stage.args.device {
        Where::Cuda => &SHAPES[..],
        _ => &SMALL_SHAPES,
    };
    let run = if stage.opened.is_gpu() { RUN } else { 4 };
    let runs_of = |count| stage.count(count, count).div_ceil(run as u64);
    let all = shapes.iter().map(|(_, count)| runs_of(*count));
    stage.progress.expect(all.sum());
    let (mut ordinary, mut gated) = (0, 0);
    for &(shape, count) in shapes {
        let runs = runs_of(count);
        stage.progress.stage(shape.to_string());
        let device = stage.opened.stream()?;
        let mut repeats = Repeats::new(&*device, shape, run)?;
        let mut failures = Vec::new();
        if !repeats.notices()? {
            failures.push("the comparison notices no difference".to_owned());
        }
        for first in (0..runs).step_by(LOOK as usize) {
            let last = (first + LOOK).min(runs);
            for index in first..last {
                repeats.enqueue(index as usize)?;
            }
            device.synchronize()?;
            if repeats.take_flag()? {
                failures.push(format!("other bits in runs {first} to {}", last - 1));
            }
            stage.progress.advance(last - first);
        }
        if !repeats.last_is_golden(runs as usize - 1)? {
            failures.push("other bits at the end".to_owned());
        }
        let backwards = runs * run as u64;
        match shape.form {
            Form::Gated { .. } => gated += backwards,
            Form::Plain | Form::Residual => ordinary += backwards,
        }
        findings.judge(
            &format!(
                "{shape}: backwards in runs of {run} on one workspace of {} bytes, inputs changed \
                 before each run, every output compared",
                repeats.workspace_bytes,
            ),
            [
                ("backwards", backwards),
                ("launches", backwards * repeats.launches),
            ],
            &failures,
        )?;
    }
    let counts = [
        ("backwards, plain and residual", ordinary),
        ("backwards, gated", gated),
    ];
    findings.judge("all shapes", counts, &[])
}

/// An operator.
#[derive(Clone, Copy)]
enum Operator {
    Plain(RmsNorm),
    Residual(RmsNorm),
    Gated(GatedRmsNorm),
}

/// What a backward reads: dy, x, dh or z, rstd and w.
const INPUTS: usize = 5;
/// What it writes: dx, dz and dw.
const OUTPUTS: usize = 3;

/// Inputs of a backward, and its right outputs; empty where a form has none.
struct Set {
    inputs: [Vec<u8>; INPUTS],
    outputs: [Vec<u8>; OUTPUTS],
}

fn bytes_of<T: bytemuck::NoUninit>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

impl Operator {
    fn new(shape: Shape) -> Result<Self> {
        let ordinary = RmsNorm::new(shape.hidden, Dtype::F32, 1e-6);
        Ok(match shape.form {
            Form::Plain => Operator::Plain(ordinary?),
            Form::Residual => Operator::Residual(ordinary?),
            Form::Gated {
                order,
                groups,
                weight,
            } => Operator::Gated(GatedRmsNorm::with_groups(
                order,
                shape.hidden,
                groups,
                weight,
                1e-6,
            )?),
        })
    }

    /// Loads its kernels: how many a backward launches, and the bytes of its workspace.
    fn prepare(&self, backend: &dyn Backend, rows: u64) -> Result<(u64, u64)> {
        let properties = backend.properties();
        let (launches, bytes) = match self {
            Operator::Plain(op) | Operator::Residual(op) => {
                let residual = matches!(self, Operator::Residual(_));
                backend.prepare(op, residual, Views::Ordinary)?;
                let plan = op.backward_plan(rows, residual, properties)?;
                ([plan.main, plan.reduce], plan.workspace_bytes)
            }
            Operator::Gated(op) => {
                backend.prepare_gated(op)?;
                let plan = op.backward_plan(rows, true, properties)?;
                ([plan.main, plan.reduce], plan.workspace_bytes)
            }
        };
        Ok((launches.iter().flatten().count() as u64, bytes))
    }

    fn set(&self, rows: u64, seed: u64) -> Result<Set> {
        match self {
            Operator::Plain(op) | Operator::Residual(op) => {
                let residual = matches!(self, Operator::Residual(_));
                let inputs = inputs(op.hidden(), rows, residual, seed)?;
                let w = inputs.w.as_golden();
                let forward = forward_slices(op, &inputs.x, inputs.residual.as_deref(), w)?;
                let x = forward.h.as_deref().unwrap_or(&inputs.x);
                let dh = inputs.dh.as_deref();
                let backward = backward_slices(op, &inputs.dy, x, dh, w, &forward.rstd)?;
                Ok(Set {
                    inputs: [
                        bytes_of(&inputs.dy),
                        bytes_of(x),
                        bytes_of(dh.unwrap_or_default()),
                        bytes_of(&forward.rstd),
                        inputs.w.as_bytes().to_vec(),
                    ],
                    outputs: [bytes_of(&backward.dx), Vec::new(), bytes_of(&backward.dw)],
                })
            }
            Operator::Gated(op) => {
                let set = GatedSet::new(op, rows, seed)?;
                Ok(Set {
                    inputs: [
                        bytes_of(&set.inputs.dy),
                        bytes_of(&set.inputs.x),
                        bytes_of(&set.z),
                        bytes_of(&set.forward.rstd),
                        set.inputs.w.as_bytes().to_vec(),
                    ],
                    outputs: [
                        bytes_of(&set.backward.dx),
                        bytes_of(&set.backward.dz),
                        bytes_of(&set.backward.dw),
                    ],
                })
            }
        }
    }

    /// Enqueues a backward from and to these addresses.
    ///
    /// # Safety
    /// - The addresses are those of a set's parts in memory of the backend, which lives, and which
    ///   nobody else uses, until the work has completed; so is the workspace's, of at least the
    ///   plan's bytes.
    unsafe fn backward(
        &self,
        backend: &dyn Backend,
        rows: u64,
        [dy, x, third, rstd, w]: [u64; INPUTS],
        [dx, dz, dw]: [u64; OUTPUTS],
        workspace: Workspace,
    ) -> Result<()> {
        match self {
            Operator::Plain(op) | Operator::Residual(op) => {
                let matrix = |address| RowsView::packed(address, rows, op.hidden());
                let residual = matches!(self, Operator::Residual(_));
                let args = BackwardArgs {
                    dy: matrix(dy),
                    x: matrix(x),
                    dh: residual.then(|| matrix(third)),
                    w: Some(VectorView::f32(w, op.hidden())),
                    rstd: Some(VectorView::f32(rstd, rows)),
                    dx: Some(matrix(dx)),
                    dw: Some(VectorView::f32(dw, op.hidden()).into()),
                    workspace,
                };
                // SAFETY: the caller's obligations.
                unsafe { backend.backward(op, &args) }
            }
            Operator::Gated(op) => {
                let matrix = |address| HeadsView::packed(address, rows, 1, op.hidden());
                let args = GatedBackwardArgs {
                    dy: matrix(dy),
                    x: matrix(x),
                    z: matrix(third),
                    w: VectorView {
                        address: w,
                        dtype: op.weight(),
                        len: op.hidden(),
                    },
                    rstd: Some(VectorView::f32(rstd, rows * op.groups())),
                    dx: matrix(dx),
                    dz: matrix(dz),
                    dw: Some((VectorView::f32(dw, op.hidden()), Update::Overwrite)),
                    workspace,
                };
                // SAFETY: the caller's obligations.
                unsafe { backend.gated_backward(op, &args) }
            }
        }
        .map_err(CliError::from)
    }
}

/// An operator, its memory, and what it must write.
struct Repeats<'a> {
    device: &'a dyn Device,
    op: Operator,
    rows: u64,
    run: usize,
    /// The inputs, set by set.
    sets: Vec<Box<dyn Buffer>>,
    /// Two places whose contents calls read.
    places: [Box<dyn Buffer>; 2],
    /// Where in a place each input lies.
    input_offsets: [u64; INPUTS],
    input_bytes: usize,
    /// The outputs of a run's backwards.
    outputs: Box<dyn Buffer>,
    poison: Box<dyn Buffer>,
    /// What a run must write that begins with a set.
    expected: Vec<Box<dyn Buffer>>,
    golden: Vec<Vec<u8>>,
    /// Bytes of a backward's outputs, and where among them each lies.
    slot: usize,
    output_offsets: [u64; OUTPUTS],
    flag: Box<dyn Buffer>,
    workspace: Box<dyn Buffer>,
    workspace_bytes: u64,
    /// Kernels of a backward.
    launches: u64,
}

/// The parts after one another, each at a multiple of the alignment, and where they lie.
fn lay_out<const N: usize>(parts: &[Vec<u8>; N]) -> (Vec<u8>, [u64; N]) {
    let mut bytes = Vec::new();
    let offsets = parts.each_ref().map(|part| {
        let at = bytes.len() as u64;
        bytes.extend_from_slice(part);
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0xff);
        at
    });
    (bytes, offsets)
}

impl<'a> Repeats<'a> {
    fn new(device: &'a dyn Device, shape: Shape, run: usize) -> Result<Self> {
        let (op, rows) = (Operator::new(shape)?, shape.rows);
        let (launches, workspace_bytes) = op.prepare(device.backend(), rows)?;
        let upload = |name, bytes: &[u8]| -> Result<Box<dyn Buffer>> {
            let mut buffer = device.alloc(name, bytes.len())?;
            buffer.write(bytes)?;
            Ok(buffer)
        };
        let (mut sets, mut slots) = (Vec::new(), Vec::new());
        let (mut input_bytes, mut input_offsets) = (0, [0; INPUTS]);
        let mut output_offsets = [0; OUTPUTS];
        for seed in 0..SETS as u64 {
            let set = op.set(rows, 1000 + seed)?;
            let (bytes, offsets) = lay_out(&set.inputs);
            (input_bytes, input_offsets) = (bytes.len(), offsets);
            sets.push(upload("inputs", &bytes)?);
            let (slot, offsets) = lay_out(&set.outputs);
            output_offsets = offsets;
            slots.push(slot);
        }
        let slot = slots[0].len();
        let golden: Vec<Vec<u8>> = (0..SETS)
            .map(|set| {
                [&slots[set][..], &slots[(set + 1) % SETS]]
                    .concat()
                    .repeat(run / 2)
            })
            .collect();
        let expected = golden.iter().map(|bytes| upload("expected", bytes));
        let expected = expected.collect::<Result<Vec<_>>>()?;
        let nothing = vec![0xff; input_bytes];
        let mut workspace = device.alloc("workspace", workspace_bytes as usize)?;
        workspace.poison(0xff)?;
        Ok(Self {
            device,
            op,
            rows,
            run,
            sets,
            places: [upload("inputs", &nothing)?, upload("inputs", &nothing)?],
            input_offsets,
            input_bytes,
            outputs: upload("outputs", &vec![0xff; slot * run])?,
            poison: upload("poison", &vec![0xff; slot * run])?,
            expected,
            golden,
            slot,
            output_offsets,
            flag: upload("flag", &[0; 16])?,
            workspace,
            workspace_bytes,
            launches,
        })
    }

    /// Whether the comparison notices outputs that were not written.
    fn notices(&mut self) -> Result<bool> {
        let bytes = self.slot * self.run;
        let Self {
            outputs,
            poison,
            expected,
            flag,
            device,
            ..
        } = self;
        device.copy(&mut **outputs, &**poison, bytes)?;
        device.compare(&**outputs, &*expected[0], bytes, &mut **flag)?;
        device.synchronize()?;
        self.take_flag()
    }

    /// Enqueues a run: inputs, NaN in its outputs, its backwards, and a comparison.
    fn enqueue(&mut self, index: usize) -> Result<()> {
        let bytes = self.slot * self.run;
        let Self {
            outputs,
            poison,
            expected,
            flag,
            device,
            places,
            sets,
            ..
        } = self;
        for (place, buffer) in places.iter_mut().enumerate() {
            let set = &sets[(index + place) % SETS];
            device.copy(&mut **buffer, &**set, self.input_bytes)?;
        }
        device.copy(&mut **outputs, &**poison, bytes)?;
        let workspace = Workspace {
            address: self.workspace.address(),
            bytes: self.workspace_bytes,
        };
        for call in 0..self.run {
            let (from, to) = (places[call % 2].address(), outputs.address());
            let to = to + (call * self.slot) as u64;
            let inputs = self.input_offsets.map(|at| from + at);
            let outputs = self.output_offsets.map(|at| to + at);
            let backend = device.backend();
            // SAFETY: the addresses are those of live buffers of the device, whose work on them
            // follows one after the other on one stream, and which is waited for before they go.
            unsafe { (self.op).backward(backend, self.rows, inputs, outputs, workspace)? };
        }
        device.compare(&**outputs, &*expected[index % SETS], bytes, &mut **flag)
    }

    /// Whether a difference was noticed since the last time; nothing runs now.
    fn take_flag(&mut self) -> Result<bool> {
        let mut flag = [0; 4];
        self.flag.read(&mut flag)?;
        self.flag.write(&[0; 4])?;
        Ok(flag != [0; 4])
    }

    /// Whether the outputs of the last run have golden bits, compared on the host.
    fn last_is_golden(&self, index: usize) -> Result<bool> {
        let mut bytes = vec![0; self.slot * self.run];
        self.outputs.read(&mut bytes)?;
        Ok(bytes == self.golden[index % SETS])
    }
}
