//! Backwards after one another on one workspace, whose inputs change and whose every output is
//! compared.

use super::finding::Findings;
use super::{Stage, Where};
use crate::cli::bench_host::expected::inputs;
use crate::cli::device::{Buffer, Device};
use crate::cli::error::{CliError, Result};
use cake_rmsnorm::golden::{backward_slices, forward_slices};
use cake_rmsnorm::plan::Views;
use cake_rmsnorm::{BackwardArgs, Dtype, RmsNorm, RowsView, VectorView, Workspace};

/// H, T, form, and backwards: one launch, warp and reduce, block and reduce, wide and reduce.
const SHAPES: [(u64, u64, bool, u64); 8] = [
    (4096, 96, false, 250_000),
    (512, 300, true, 200_000),
    (256, 600, false, 200_000),
    (512, 700, true, 150_000),
    (1024, 1030, false, 100_000),
    (2048, 1030, false, 60_000),
    (4096, 1030, true, 30_000),
    (8200, 1030, false, 10_000),
];
/// Under the simulator.
const SMALL_SHAPES: [(u64, u64, bool, u64); 2] = [(264, 5, false, 8), (64, 520, true, 8)];
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
    let all = shapes.iter().map(|(.., count)| runs_of(*count));
    stage.progress.expect(all.sum());
    let mut total = 0;
    for &(hidden, rows, residual, count) in shapes {
        let runs = runs_of(count);
        stage.progress.stage(format!("H {hidden}, T {rows}"));
        let device = stage.opened.stream()?;
        let mut repeats = Repeats::new(&*device, hidden, rows, residual, run)?;
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
        total += backwards;
        findings.judge(
            &format!(
                "H {hidden}, T {rows}, residual {residual}: backwards in runs of {run} on one \
                 workspace of {} bytes, inputs changed before each run, every output compared",
                repeats.workspace_bytes,
            ),
            [
                ("backwards", backwards),
                ("launches", backwards * repeats.launches),
            ],
            &failures,
        )?;
    }
    findings.judge("all shapes", [("backwards", total)], &[])
}

/// Where things lie in a piece of memory.
#[derive(Clone, Copy)]
struct Inputs {
    dy: u64,
    x: u64,
    dh: u64,
    rstd: u64,
    w: u64,
}

/// An operator, its memory, and what it must write.
struct Repeats<'a> {
    device: &'a dyn Device,
    op: RmsNorm,
    rows: u64,
    residual: bool,
    run: usize,
    /// The inputs, set by set.
    sets: Vec<Box<dyn Buffer>>,
    /// Two places whose contents calls read.
    places: [Box<dyn Buffer>; 2],
    offsets: Inputs,
    input_bytes: usize,
    /// dx and dw of a run's backwards.
    outputs: Box<dyn Buffer>,
    poison: Box<dyn Buffer>,
    /// What a run must write that begins with a set.
    expected: Vec<Box<dyn Buffer>>,
    golden: Vec<Vec<u8>>,
    slot: usize,
    dw_offset: u64,
    flag: Box<dyn Buffer>,
    workspace: Box<dyn Buffer>,
    workspace_bytes: u64,
    /// Kernels of a backward.
    launches: u64,
}

/// Appends a part at a multiple of the alignment, and says where.
fn append(bytes: &mut Vec<u8>, part: &[u8]) -> u64 {
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0xff);
    let at = bytes.len() as u64;
    bytes.extend_from_slice(part);
    at
}

impl<'a> Repeats<'a> {
    fn new(
        device: &'a dyn Device,
        hidden: u64,
        rows: u64,
        residual: bool,
        run: usize,
    ) -> Result<Self> {
        let op = RmsNorm::new(hidden, Dtype::F32, 1e-6)?;
        device.backend().prepare(&op, residual, Views::Ordinary)?;
        let plan = op.backward_plan(rows, residual, device.backend().properties())?;
        let upload = |name, bytes: &[u8]| -> Result<Box<dyn Buffer>> {
            let mut buffer = device.alloc(name, bytes.len())?;
            buffer.write(bytes)?;
            Ok(buffer)
        };
        let (mut sets, mut slots) = (Vec::new(), Vec::new());
        let (mut offsets, mut input_bytes, mut dw_offset) = (None, 0, 0);
        for seed in 0..SETS as u64 {
            let inputs = inputs(hidden, rows, residual, 1000 + seed)?;
            let w = inputs.w.as_golden();
            let forward = forward_slices(&op, &inputs.x, inputs.residual.as_deref(), w)?;
            let x = forward.h.as_deref().unwrap_or(&inputs.x);
            let dh = inputs.dh.as_deref();
            let backward = backward_slices(&op, &inputs.dy, x, dh, w, &forward.rstd)?;
            let mut bytes = Vec::new();
            offsets = Some(Inputs {
                dy: append(&mut bytes, bytemuck::cast_slice(&inputs.dy)),
                x: append(&mut bytes, bytemuck::cast_slice(x)),
                dh: append(&mut bytes, bytemuck::cast_slice(dh.unwrap_or_default())),
                rstd: append(&mut bytes, bytemuck::cast_slice(&forward.rstd)),
                w: append(&mut bytes, inputs.w.as_bytes()),
            });
            append(&mut bytes, &[]);
            input_bytes = bytes.len();
            sets.push(upload("inputs", &bytes)?);
            let mut slot = Vec::new();
            append(&mut slot, bytemuck::cast_slice(&backward.dx));
            dw_offset = append(&mut slot, bytemuck::cast_slice(&backward.dw));
            append(&mut slot, &[]);
            slots.push(slot);
        }
        let offsets = offsets.unwrap_or_else(|| unreachable!("there are sets"));
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
        let mut workspace = device.alloc("workspace", plan.workspace_bytes as usize)?;
        workspace.poison(0xff)?;
        Ok(Self {
            device,
            op,
            rows,
            residual,
            run,
            sets,
            places: [upload("inputs", &nothing)?, upload("inputs", &nothing)?],
            offsets,
            input_bytes,
            outputs: upload("outputs", &vec![0xff; slot * run])?,
            poison: upload("poison", &vec![0xff; slot * run])?,
            expected,
            golden,
            slot,
            dw_offset,
            flag: upload("flag", &[0; 16])?,
            workspace,
            workspace_bytes: plan.workspace_bytes,
            launches: [plan.main, plan.reduce].iter().flatten().count() as u64,
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
        for call in 0..self.run {
            let args = args(
                (&self.op, self.rows, self.residual),
                (places[call % 2].address(), self.offsets),
                (
                    outputs.address() + (call * self.slot) as u64,
                    self.dw_offset,
                ),
                Workspace {
                    address: self.workspace.address(),
                    bytes: self.workspace_bytes,
                },
            );
            // SAFETY: the views lie in live buffers of the device, whose work on them follows one
            // after the other on one stream, and which is waited for before they go.
            unsafe { device.backend().backward(&self.op, &args) }.map_err(CliError::from)?;
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

/// A backward of inputs at an address, to an address.
fn args(
    (op, rows, residual): (&RmsNorm, u64, bool),
    (from, offsets): (u64, Inputs),
    (to, dw): (u64, u64),
    workspace: Workspace,
) -> BackwardArgs {
    let matrix = |address| RowsView::packed(address, rows, op.hidden());
    BackwardArgs {
        dy: matrix(from + offsets.dy),
        x: matrix(from + offsets.x),
        dh: residual.then(|| matrix(from + offsets.dh)),
        w: Some(VectorView::f32(from + offsets.w, op.hidden())),
        rstd: Some(VectorView::f32(from + offsets.rstd, rows)),
        dx: Some(matrix(to)),
        dw: Some(VectorView::f32(to + dw, op.hidden()).into()),
        workspace,
    }
}
