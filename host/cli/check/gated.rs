//! `check --gate`: the gated form, every element against FP64, every bit against the golden
//! implementation.

use super::execute::Written;
use super::report::{OutputReport, table};
use super::{Args, POISONS};
use crate::cli::device::{self, Buffer, Device, Planning};
use crate::cli::error::{CliError, Result};
use crate::cli::output::{Output as Lines, thousands};
use crate::cli::progress::Progress;
use cake_rmsnorm::compare::{Accuracy, Differences, Output, Report};
use cake_rmsnorm::gated::{
    GateOrder, GatedBackward, GatedBackwardArgs, GatedForward, GatedForwardArgs, GatedRmsNorm,
    HeadsView, backward_slices, forward_slices,
};
use cake_rmsnorm::inputs::{Inputs, Spec};
use cake_rmsnorm::plan::Spacing;
use cake_rmsnorm::reference::gated::{Shape, backward, forward};
use cake_rmsnorm::reference::{WeightGradientSum, from_bf16, from_f32};
use cake_rmsnorm::{Dtype, Update, VectorView, Workspace, compare};
use clap::ValueEnum;
use half::bf16;
use serde::Serialize;

/// What comes first in the gated form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GateArg {
    /// y = norm(x)*w*silu(z).
    NormFirst,
    /// y = norm(x*silu(z))*w.
    GateFirst,
}

impl From<GateArg> for GateOrder {
    fn from(gate: GateArg) -> Self {
        match gate {
            GateArg::NormFirst => GateOrder::NormFirst,
            GateArg::GateFirst => GateOrder::GateFirst,
        }
    }
}

/// Elements of a block that is compared with FP64 at once.
const BLOCK: usize = 1 << 22;
const DEFAULT_TOKENS: u64 = 1024;
const DEFAULT_HIDDEN: u64 = 128;
const DEFAULT_EPS: f32 = 1e-6;

/// Runs the check; whether all is well.
pub fn run(args: &Args, gate: GateArg, out: &mut Lines, progress: &Progress) -> Result<bool> {
    let tokens = args.rows.unwrap_or(DEFAULT_TOKENS);
    let rows = tokens.saturating_mul(args.heads);
    let hidden = args.hidden.unwrap_or(DEFAULT_HIDDEN);
    let weight = args.weight.map_or(Dtype::F32, Dtype::from);
    let eps = args.eps.unwrap_or(DEFAULT_EPS);
    let op = GatedRmsNorm::with_groups(gate.into(), hidden, args.groups, weight, eps)?;
    let elements = rows.saturating_mul(hidden);
    let planning = Planning::new(args.sm_count, args.routes.as_deref())?;
    let (device, fallback) = device::open(args.device, &planning, elements, progress)?;
    // Refuses a shape before memory is allocated for it.
    let properties = device.backend().properties();
    op.forward_plan(rows, Spacing::Even, properties)?;
    op.backward_plan(rows, true, properties)?;
    let seed = args.seed.unwrap_or(0);
    if !args.json {
        out.line(format!("device  {}", device.name()))?;
        if let Some(why) = fallback {
            out.line(format!("        {why}"))?;
        }
        out.line(format!(
            "inputs  seed {seed} (ordinary, large-outlier and tiny rows)\n\
             shape   {} tokens x {} heads x {} in {} group(s), weight {weight}, eps {eps:e}, {}\n",
            thousands(tokens),
            args.heads,
            thousands(hidden),
            args.groups,
            match op.order() {
                GateOrder::NormFirst => "norm before gate",
                GateOrder::GateFirst => "gate before norm",
            },
        ))?;
    }

    progress.expect(elements.saturating_mul(8));
    progress.stage("making inputs");
    let none = |_| CliError::Memory {
        purpose: "one input tensor",
        bytes: elements.saturating_mul(2),
    };
    let spec = Spec {
        rows: rows as usize,
        hidden: hidden as usize,
        weight,
        residual: false,
        seed,
    };
    let inputs = spec.generate().map_err(none)?;
    let z = spec.generate_gate().map_err(none)?;
    progress.advance(elements);

    let mut execution = Execution::new(&*device, op, &inputs, &z, [tokens, args.heads])?;
    progress.stage("forward");
    let found = execution.forward(POISONS[0])?;
    progress.advance(elements);
    progress.stage("backward");
    let gradients = execution.backward(POISONS[0], false)?;
    progress.advance(elements);
    // The forward's rstd, and the recomputed one, give the same bits.
    let mut repeats = [true; 3];
    for (poison, kept) in [(POISONS[1], true), (POISONS[2], false)] {
        let again = execution.backward(poison, kept)?;
        let same = |a: &[u8], b: &[u8]| a == b;
        let bytes = bytemuck::cast_slice::<bf16, u8>;
        repeats[0] &= same(bytes(&gradients.dx), bytes(&again.dx));
        repeats[1] &= same(bytes(&gradients.dz), bytes(&again.dz));
        let bytes = bytemuck::cast_slice::<f32, u8>;
        repeats[2] &= same(bytes(&gradients.dw), bytes(&again.dw));
        progress.advance(elements);
    }
    let overrun = execution.overrun();
    drop(execution);

    let results = Results {
        op,
        inputs: &inputs,
        z: &z,
        found: &found,
        gradients: &gradients,
    };
    let outputs = results.verify(repeats, progress)?;
    progress.finish();
    let mut failures: Vec<String> = outputs.iter().flat_map(Compared::complaints).collect();
    failures.extend(
        overrun
            .iter()
            .map(|name| format!("{name}: written behind its end")),
    );
    let ok = failures.is_empty();
    if args.json {
        let json = Json {
            device: device.kind(),
            tokens,
            heads: args.heads,
            hidden,
            groups: args.groups,
            gate_first: op.order() == GateOrder::GateFirst,
            ok,
            failures,
            outputs,
        };
        let text = serde_json::to_string_pretty(&json);
        out.line(text.map_err(|error| CliError::Stdout(error.into()))?)?;
    } else {
        let lines: Vec<_> = outputs.iter().map(|it| (it.name, it.line())).collect();
        let lines = lines.iter().map(|(name, line)| (*name, line));
        out.line(table(lines).join("\n"))?;
        out.line("")?;
        for failure in &failures {
            out.line(failure)?;
        }
        out.line(if ok { "OK" } else { "FAILED" })?;
    }
    Ok(ok)
}

/// The operator with its arguments in the memory of a device.
pub struct Execution<'a> {
    device: &'a dyn Device,
    op: GatedRmsNorm,
    leading: [u64; 2],
    /// dy, x, z and w.
    inputs: [Box<dyn Buffer>; 4],
    y: Written,
    rstd: Written,
    dx: Written,
    dz: Written,
    dw: Written,
    workspace: Written,
    workspace_bytes: u64,
}

impl<'a> Execution<'a> {
    /// Prepares the operator, copies the inputs to the device and allocates the outputs; `leading`
    /// are tokens and heads.
    pub fn new(
        device: &'a dyn Device,
        op: GatedRmsNorm,
        inputs: &Inputs,
        z: &[bf16],
        leading: [u64; 2],
    ) -> Result<Self> {
        device.backend().prepare_gated(&op)?;
        let rows = inputs.rows as u64;
        let plan = op.backward_plan(rows, true, device.backend().properties())?;
        let upload = |name, bytes: &[u8]| -> Result<Box<dyn Buffer>> {
            let mut buffer = device.alloc(name, bytes.len())?;
            buffer.write(bytes)?;
            Ok(buffer)
        };
        let written = |name, bytes: u64| -> Result<Written> {
            let length = usize::try_from(bytes).map_err(|_| CliError::Memory {
                purpose: name,
                bytes,
            })?;
            Written::new(device, name, length)
        };
        let matrix = 2 * rows * op.hidden();
        Ok(Self {
            device,
            op,
            leading,
            inputs: [
                upload("dy", bytemuck::cast_slice(&inputs.dy))?,
                upload("x", bytemuck::cast_slice(&inputs.x))?,
                upload("z", bytemuck::cast_slice(z))?,
                upload("w", inputs.w.as_bytes())?,
            ],
            y: written("y", matrix)?,
            rstd: written("rstd", 4 * rows * op.groups())?,
            dx: written("dx", matrix)?,
            dz: written("dz", matrix)?,
            dw: written("dw", 4 * op.hidden())?,
            workspace: written("workspace", plan.workspace_bytes)?,
            workspace_bytes: plan.workspace_bytes,
        })
    }

    fn matrix(&self, buffer: &dyn Buffer) -> HeadsView {
        let [tokens, heads] = self.leading;
        HeadsView::packed(buffer.address(), tokens, heads, self.op.hidden())
    }

    fn weight(&self) -> VectorView {
        VectorView {
            address: self.inputs[3].address(),
            dtype: self.op.weight(),
            len: self.op.hidden(),
        }
    }

    fn rstd(&self) -> VectorView {
        let len = self.leading[0] * self.leading[1] * self.op.groups();
        VectorView::f32(self.rstd.buffer.address(), len)
    }

    /// Replaces the inputs by others of the same shapes, in the same memory, while nothing runs.
    pub fn replace_inputs(&mut self, inputs: &Inputs, z: &[bf16]) -> Result<()> {
        let [dy, x, gate, w] = &mut self.inputs;
        dy.write(bytemuck::cast_slice(&inputs.dy))?;
        x.write(bytemuck::cast_slice(&inputs.x))?;
        gate.write(bytemuck::cast_slice(z))?;
        w.write(inputs.w.as_bytes())
    }

    /// Makes every byte of outputs and workspace `poison`, while nothing runs.
    pub fn poison(&mut self, poison: u8) -> Result<()> {
        self.y.poison(poison)?;
        self.rstd.poison(poison)?;
        self.poison_gradients(poison)
    }

    fn poison_gradients(&mut self, poison: u8) -> Result<()> {
        let gradients = [&mut self.dx, &mut self.dz, &mut self.dw];
        let mut outputs = gradients.into_iter().chain([&mut self.workspace]);
        outputs.try_for_each(|output| output.poison(poison))
    }

    /// Runs the forward over outputs that hold `poison` in every byte.
    pub fn forward(&mut self, poison: u8) -> Result<GatedForward> {
        self.y.poison(poison)?;
        self.rstd.poison(poison)?;
        let args = self.forward_args();
        // SAFETY: every address is that of a live buffer of this device that holds the view; the
        // buffers are borrowed for writing until the work has completed.
        unsafe { self.device.backend().gated_forward(&self.op, &args)? };
        self.device.synchronize()?;
        self.forward_outputs()
    }

    /// After [`Execution::forward`]; `kept` says whether its rstd is passed in.
    pub fn backward(&mut self, poison: u8, kept: bool) -> Result<GatedBackward> {
        self.poison_gradients(poison)?;
        let args = self.backward_args(kept);
        // SAFETY: as in `forward`.
        unsafe { self.device.backend().gated_backward(&self.op, &args)? };
        self.device.synchronize()?;
        self.backward_outputs()
    }

    /// What the last forward wrote, all of whose work has completed.
    pub fn forward_outputs(&mut self) -> Result<GatedForward> {
        Ok(GatedForward {
            y: self.y.download()?,
            rstd: self.rstd.download()?,
        })
    }

    /// What the last backward wrote, all of whose work has completed.
    pub fn backward_outputs(&mut self) -> Result<GatedBackward> {
        self.workspace.look_behind()?;
        Ok(GatedBackward {
            dx: self.dx.download()?,
            dz: self.dz.download()?,
            dw: self.dw.download()?,
        })
    }

    /// The forward's arguments.
    pub fn forward_args(&self) -> GatedForwardArgs {
        GatedForwardArgs {
            x: self.matrix(&*self.inputs[1]),
            z: self.matrix(&*self.inputs[2]),
            w: self.weight(),
            y: self.matrix(&*self.y.buffer),
            rstd: Some(self.rstd()),
        }
    }

    /// The backward's arguments; `kept` says whether the forward's rstd is among them.
    pub fn backward_args(&self, kept: bool) -> GatedBackwardArgs {
        let dw = VectorView::f32(self.dw.buffer.address(), self.op.hidden());
        GatedBackwardArgs {
            dy: self.matrix(&*self.inputs[0]),
            x: self.matrix(&*self.inputs[1]),
            z: self.matrix(&*self.inputs[2]),
            w: self.weight(),
            rstd: kept.then(|| self.rstd()),
            dx: self.matrix(&*self.dx.buffer),
            dz: self.matrix(&*self.dz.buffer),
            dw: Some((dw, Update::Overwrite)),
            workspace: Workspace {
                address: self.workspace.buffer.address(),
                bytes: self.workspace_bytes,
            },
        }
    }

    /// The outputs behind whose end something was written in a run so far.
    pub fn overrun(&self) -> Vec<&'static str> {
        let outputs = [
            &self.y,
            &self.rstd,
            &self.dx,
            &self.dz,
            &self.dw,
            &self.workspace,
        ];
        let outputs = outputs.into_iter().filter(|output| output.overrun);
        outputs.map(|output| output.name).collect()
    }
}

/// Inputs, and what a device made of them.
struct Results<'a> {
    op: GatedRmsNorm,
    inputs: &'a Inputs,
    z: &'a [bf16],
    found: &'a GatedForward,
    gradients: &'a GatedBackward,
}

impl Results<'_> {
    /// y, rstd, dx, dz and dw, compared with golden and with FP64.
    fn verify(&self, repeats: [bool; 3], progress: &Progress) -> Result<Vec<Compared>> {
        let (op, inputs, elements) = (&self.op, self.inputs, self.inputs.x.len() as u64);
        let w = inputs.w.as_golden();
        progress.stage("golden forward");
        let golden = forward_slices(op, &inputs.x, self.z, w)?;
        let y = differences(Output::Y, &self.found.y, &golden.y)?;
        let rstd = differences(Output::Rstd, &self.found.rstd, &golden.rstd)?;
        drop(golden);
        progress.advance(elements);
        progress.stage("golden backward");
        let golden = backward_slices(op, &inputs.dy, &inputs.x, self.z, w, None)?;
        let dx = differences(Output::Dx, &self.gradients.dx, &golden.dx)?;
        let dz = differences(Output::Dz, &self.gradients.dz, &golden.dz)?;
        let dw = differences(Output::Dw, &self.gradients.dw, &golden.dw)?;
        drop(golden);
        progress.advance(elements);
        let reports = self.accuracy(progress)?;
        let names = ["y", "rstd", "dx", "dz", "dw"];
        let differences = [y, rstd, dx, dz, dw];
        let repeats = [None, None].into_iter().chain(repeats.map(Some));
        let all = names.into_iter().zip(reports).zip(differences).zip(repeats);
        let all = all.map(|(((name, report), differences), repeated)| Compared {
            name,
            report: Report {
                bits_match_golden: Some(differences.count == 0),
                ..report
            },
            different: differences.count,
            first_different: differences.first,
            repeated,
        });
        Ok(all.collect())
    }

    /// y, rstd, dx, dz and dw against FP64, block by block.
    fn accuracy(&self, progress: &Progress) -> Result<[Report; 5]> {
        let Results {
            op,
            inputs,
            z,
            found,
            gradients,
        } = *self;
        let (hidden, groups) = (inputs.hidden, op.groups() as usize);
        let shape = Shape {
            order: op.order(),
            hidden,
            groups,
        };
        let w = from_f32(&inputs.w.to_f32());
        let accuracy = |output: Output| Accuracy::with_bound(output, output.gated_bound());
        let [mut y, mut rstd, mut dx, mut dz, mut dw] =
            [Output::Y, Output::Rstd, Output::Dx, Output::Dz, Output::Dw].map(accuracy);
        let mut sum = WeightGradientSum::new(hidden);
        progress.stage("FP64");
        let block = (BLOCK / hidden).max(1);
        for first in (0..inputs.rows).step_by(block) {
            let rows = first..(first + block).min(inputs.rows);
            let all = rows.start * hidden..rows.end * hidden;
            let parts = rows.start * groups..rows.end * groups;
            let of = |values: &[bf16]| from_bf16(&values[all.clone()]);
            let (x, z, dy) = (of(&inputs.x), of(z), of(&inputs.dy));
            let exact = forward(shape, &x, &z, &w, f64::from(op.eps()))?;
            let sizes: Vec<f64> = exact.y.iter().map(|y| y.abs()).collect();
            y.add(&found.y[all.clone()], &exact.y, Some(&sizes))?;
            rstd.add(&found.rstd[parts.clone()], &exact.rstd, None)?;
            let kept = from_f32(&found.rstd[parts]);
            let exact = backward(shape, &dy, &x, &z, &w, &kept, &mut sum)?;
            dx.add(
                &gradients.dx[all.clone()],
                &exact.dx.dx,
                Some(&exact.dx.terms),
            )?;
            dz.add(
                &gradients.dz[all.clone()],
                &exact.dz.dx,
                Some(&exact.dz.terms),
            )?;
            progress.advance(all.len() as u64);
        }
        let exact = sum.finish();
        dw.add(&gradients.dw, &exact.dw, Some(&exact.terms))?;
        Ok([y, rstd, dx, dz, dw].map(|accuracy| accuracy.report()))
    }
}

fn differences<T: compare::Element>(
    output: Output,
    found: &[T],
    golden: &[T],
) -> Result<Differences> {
    let mut accuracy = Accuracy::new(output);
    accuracy.add_golden(found, golden)?;
    Ok(accuracy.differences().unwrap_or_default())
}

/// An output, compared.
#[derive(Serialize)]
struct Compared {
    name: &'static str,
    #[serde(flatten)]
    report: Report,
    /// Elements whose bits are not golden's.
    different: u64,
    first_different: Option<u64>,
    /// Whether repeated backwards, with and without the forward's rstd, gave the same bits.
    repeated: Option<bool>,
}

impl Compared {
    fn complaints(&self) -> Vec<String> {
        let name = self.name;
        let mut complaints = Vec::new();
        if self.report.out_of_bound > 0 {
            let (count, worst) = (self.report.out_of_bound, self.report.worst);
            complaints.push(format!("{name}: {count} beyond the bound; worst {worst:?}"));
        }
        if self.different > 0 {
            let (count, first) = (self.different, self.first_different.unwrap_or(0));
            complaints.push(format!("{name}: {count} differ from golden, first {first}"));
        }
        // A factor of every term of dw is rounded.
        let rounded = self.name != "dw" && self.name != "rstd";
        if rounded && self.report.ok() && !self.report.ok_for_ordinary_inputs() {
            let count = self.report.uncancelled_misrounded;
            let of = self.report.uncancelled;
            complaints.push(format!("{name}: {count} of {of} are not correctly rounded"));
        }
        if self.repeated == Some(false) {
            complaints.push(format!("{name}: repeated runs differ in their bits"));
        }
        complaints
    }

    fn line(&self) -> OutputReport {
        OutputReport {
            max_ulp: self.report.max_ulp,
            correctly_rounded: self.report.correctly_rounded,
            within_bound: self.report.out_of_bound == 0,
            bits_match_golden: self.different == 0,
            repeat_bits: self.repeated,
            elements: self.report.elements,
        }
    }
}

#[derive(Serialize)]
struct Json {
    device: &'static str,
    tokens: u64,
    heads: u64,
    hidden: u64,
    groups: u64,
    gate_first: bool,
    ok: bool,
    failures: Vec<String>,
    outputs: Vec<Compared>,
}
