//! Small calls that launch every kernel.

use crate::cli::bench_host::expected::{Golden, POISON, step};
use crate::cli::cases::Reached;
use crate::cli::check::{execute, gated};
use crate::cli::device::Device;
use crate::cli::error::{CliError, Result};
use cake_rmsnorm::backend::Bound;
use cake_rmsnorm::cases::Case;
use cake_rmsnorm::gated::{GateOrder, GatedRmsNorm, backward_slices, forward_slices};
use cake_rmsnorm::inputs::Spec;
use cake_rmsnorm::kernels::KERNELS;
use cake_rmsnorm::kernels::bench::copied_words;
use cake_rmsnorm::kernels::contract::{Kernel, Program};
use cake_rmsnorm::kernels::device::Words4;
use cake_rmsnorm::kernels::params::{CompareParams, CopyParams, FlushParams};
use cake_rmsnorm::plan::{Choice, DeviceProperties, Launch, Routes, Spacing};
use cake_rmsnorm::{Dtype, RmsNorm};
use half::bf16;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// A few calls.
#[derive(Clone, Copy, Debug)]
pub enum Task {
    /// A step of the plain or the residual form, by these choices.
    Step {
        hidden: u64,
        rows: u64,
        weight: Dtype,
        residual: bool,
        sm_count: u32,
        forward: Choice,
        backward: Choice,
    },
    /// A forward and two backwards of the gated form.
    Gated {
        order: GateOrder,
        hidden: u64,
        groups: u64,
        weight: Dtype,
        tokens: u64,
        heads: u64,
        sm_count: u32,
    },
    /// Drawn cases.
    Cases { seed: u64, count: u64 },
    /// The kernels of measurements.
    Bench,
}

/// H and T of steps, the narrowest first: every class of widths that programs are made for, ragged
/// ones, few rows and as many as go around a ring.
const STEPS: [(u64, u64); 26] = [
    (8, 5),
    (256, 37),
    (264, 9),
    (512, 37),
    (520, 21),
    (1024, 37),
    (1032, 21),
    (2048, 37),
    (2056, 21),
    (4096, 21),
    (4104, 13),
    (5128, 13),
    (5632, 13),
    (5640, 7),
    (6144, 7),
    (6152, 7),
    (8192, 13),
    (8200, 7),
    (16_384, 13),
    (16_392, 3),
    (40_000, 2),
    (256, 530),
    (512, 530),
    (1024, 130),
    (2056, 70),
    (4104, 70),
];
/// Steps that launch a kernel, at most.
const STEPS_EACH: u32 = 3;
/// Multiprocessors that plans are made for: so few that blocks take several tasks.
const SM_COUNT: u32 = 3;
/// H, groups, tokens and heads of the gated form; more than 2048 rows on two multiprocessors for
/// the programs that take rows in pairs.
const GATED: [(u64, u64, u64, u64); 17] = [
    (56, 1, 7, 3),
    (64, 1, 7, 3),
    (64, 1, 2053, 1),
    (72, 1, 11, 2),
    (128, 1, 41, 3),
    (128, 1, 2053, 1),
    (248, 1, 19, 1),
    (256, 2, 33, 1),
    (200, 1, 2053, 1),
    (256, 1, 37, 1),
    (512, 1, 21, 1),
    (520, 1, 9, 1),
    (4096, 1, 7, 1),
    (4104, 1, 5, 1),
    (8192, 1, 5, 1),
    (16_384, 2, 3, 1),
    (256, 1, 2050, 1),
];
const GATED_SM_COUNT: u32 = 2;
const CASES: u64 = 48;
/// Drawn cases of a task.
const CASES_EACH: u64 = 8;
const CASE_ELEMENTS: usize = 2000;
/// Bytes that the kernels of measurements work on.
const BENCH_BYTES: usize = 100_016;

/// Every task, the costliest first.
pub fn tasks(device: &DeviceProperties) -> Vec<Task> {
    let mut tasks = vec![Task::Bench];
    steps(device, &mut tasks);
    for order in [GateOrder::NormFirst, GateOrder::GateFirst] {
        for weight in [Dtype::F32, Dtype::Bf16] {
            for (hidden, groups, tokens, heads) in GATED {
                tasks.push(Task::Gated {
                    order,
                    hidden,
                    groups,
                    weight,
                    tokens,
                    heads,
                    sm_count: GATED_SM_COUNT,
                });
            }
        }
    }
    let seeds = (0..CASES).step_by(CASES_EACH as usize);
    tasks.extend(seeds.map(|seed| Task::Cases {
        seed,
        count: CASES_EACH,
    }));
    tasks.sort_by_key(|task| std::cmp::Reverse(task.elements()));
    tasks
}

/// Steps until every kernel is launched by a few, where a shape of the list allows it.
fn steps(device: &DeviceProperties, tasks: &mut Vec<Task>) {
    let mut launched: BTreeMap<&'static str, u32> = BTreeMap::new();
    let properties = device.with_sm_count(SM_COUNT);
    for (hidden, rows) in STEPS {
        for weight in [Dtype::F32, Dtype::Bf16] {
            for residual in [false, true] {
                let Ok(op) = RmsNorm::new(hidden, weight, 1e-6) else {
                    continue;
                };
                let mut wanted = |choices: Vec<Choice>, kernel: &dyn Fn(&Choice) -> _| {
                    let (mut first, mut here) = (None, Vec::new());
                    for choice in choices {
                        let Some(name) = kernel(&choice) else {
                            continue;
                        };
                        first = first.or(Some(choice));
                        let count = launched.entry(name).or_default();
                        if *count < STEPS_EACH && !here.contains(&(name, choice)) {
                            *count += 1;
                            here.push((name, choice));
                        }
                    }
                    let choices = here.into_iter().map(|(_, choice)| choice);
                    (first, choices.collect::<Vec<Choice>>())
                };
                let choices = op.forward_candidates(rows, residual, &properties);
                let (first_forward, forwards) = wanted(choices, &|choice| {
                    let plan = op.forward_plan_of(choice, rows, residual, &properties);
                    plan.ok()?.launch.map(|launch| launch.kernel.name)
                });
                let choices = op.backward_candidates(rows, residual, &properties);
                let (first_backward, backwards) = wanted(choices, &|choice| {
                    let plan = op.backward_plan_of(choice, rows, residual, &properties);
                    plan.ok()?.main.map(|launch| launch.kernel.name)
                });
                for i in 0..forwards.len().max(backwards.len()) {
                    let forward = forwards.get(i).copied().or(first_forward);
                    let backward = backwards.get(i).copied().or(first_backward);
                    if let (Some(forward), Some(backward)) = (forward, backward) {
                        tasks.push(Task::Step {
                            hidden,
                            rows,
                            weight,
                            residual,
                            sm_count: SM_COUNT,
                            forward,
                            backward,
                        });
                    }
                }
            }
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Task::Step {
                hidden,
                rows,
                weight,
                residual,
                forward,
                backward,
                ..
            } => write!(
                f,
                "H {hidden}, T {rows}, weight {weight}, residual {residual}, {forward:?}, \
                 {backward:?}"
            ),
            Task::Gated {
                order,
                hidden,
                groups,
                weight,
                tokens,
                heads,
                ..
            } => write!(
                f,
                "gated {order:?}, H {hidden} in {groups}, {tokens} x {heads}, weight {weight}"
            ),
            Task::Cases { seed, count } => write!(f, "{count} cases from seed {seed} on"),
            Task::Bench => f.write_str("kernels of measurements"),
        }
    }
}

impl Task {
    /// Elements of a matrix.
    fn elements(&self) -> u64 {
        match *self {
            Task::Step { hidden, rows, .. } => hidden * rows,
            Task::Gated {
                hidden,
                tokens,
                heads,
                ..
            } => hidden * tokens * heads,
            Task::Cases { count, .. } => count * CASE_ELEMENTS as u64,
            Task::Bench => BENCH_BYTES as u64,
        }
    }

    /// The device that its plans are made for.
    pub fn properties(&self, device: &DeviceProperties) -> DeviceProperties {
        match *self {
            Task::Step { sm_count, .. } | Task::Gated { sm_count, .. } => {
                device.with_sm_count(sm_count)
            }
            Task::Cases { .. } | Task::Bench => *device,
        }
    }

    /// The routes that its plans are made by.
    pub fn routes(&self) -> Arc<Routes> {
        Arc::new(match *self {
            Task::Step {
                forward, backward, ..
            } => Routes::only(Some(forward), Some(backward)),
            _ => Routes::built_in().clone(),
        })
    }

    /// The kernels that it launches for certain.
    pub fn kernels(&self, device: &DeviceProperties) -> Result<BTreeSet<&'static str>> {
        let properties = self.properties(device);
        let launches = match *self {
            Task::Step {
                hidden,
                rows,
                weight,
                residual,
                forward,
                backward,
                ..
            } => {
                let op = RmsNorm::new(hidden, weight, 1e-6)?;
                let forward = op.forward_plan_of(&forward, rows, residual, &properties)?;
                let backward = op.backward_plan_of(&backward, rows, residual, &properties)?;
                vec![forward.launch, backward.main, backward.reduce]
            }
            Task::Gated { .. } => {
                let (op, rows) = self.gated()?;
                let backward = op.backward_plan(rows, true, &properties)?;
                let forward = op.forward_plan(rows, Spacing::Even, &properties)?;
                vec![forward.launch, backward.main, backward.reduce]
            }
            Task::Cases { seed, count } => {
                // General kernels alone take other matrices than BF16.
                let mut cases = cases(seed, count).map(|(_, case)| case);
                let general = cases.any(|case| case.rows > 0 && case.input != Dtype::Bf16);
                let programs = [Program::GeneralForward, Program::GeneralBackward];
                let names = programs.map(|program| kernel(program).name);
                return Ok(names.into_iter().filter(|_| general).collect());
            }
            Task::Bench => {
                let names = [Program::Copy, Program::Flush, Program::Compare].map(kernel);
                return Ok(names.iter().map(|kernel| kernel.name).collect());
            }
        };
        let names = launches.iter().flatten().map(|launch| launch.kernel.name);
        Ok(names.collect())
    }

    /// The operator of a gated task, and its rows.
    fn gated(&self) -> Result<(GatedRmsNorm, u64)> {
        match *self {
            Task::Gated {
                order,
                hidden,
                groups,
                weight,
                tokens,
                heads,
                ..
            } => {
                let op = GatedRmsNorm::with_groups(order, hidden, groups, weight, 1e-6)?;
                Ok((op, tokens * heads))
            }
            _ => unreachable!("asked of gated tasks alone"),
        }
    }

    /// Runs it on a device that plans as it says: what is wrong with what was written.
    pub fn run(&self, device: &dyn Device) -> Result<Vec<String>> {
        match *self {
            Task::Step {
                hidden,
                rows,
                weight,
                residual,
                ..
            } => run_step(device, (hidden, rows), weight, residual),
            Task::Gated {
                hidden,
                weight,
                tokens,
                heads,
                ..
            } => {
                let (op, rows) = self.gated()?;
                let spec = Spec {
                    rows: rows as usize,
                    hidden: hidden as usize,
                    weight,
                    residual: false,
                    seed: hidden,
                };
                run_gated(device, op, &spec, [tokens, heads])
            }
            Task::Cases { seed, count } => run_cases(device, seed, count),
            Task::Bench => run_bench(device),
        }
    }
}

fn no_memory(bytes: u64) -> CliError {
    CliError::Memory {
        purpose: "inputs",
        bytes,
    }
}

fn run_step(
    device: &dyn Device,
    (hidden, rows): (u64, u64),
    weight: Dtype,
    residual: bool,
) -> Result<Vec<String>> {
    let op = RmsNorm::new(hidden, weight, 1e-6)?;
    let spec = Spec {
        rows: rows as usize,
        hidden: hidden as usize,
        weight,
        residual,
        seed: rows,
    };
    let inputs = spec.generate().map_err(|_| no_memory(2 * rows * hidden))?;
    let golden = Golden::of(&op, &inputs)?;
    let mut execution = execute::Execution::new(device, op, &inputs)?;
    execution.poison(POISON)?;
    // SAFETY: the buffers live, and nobody else uses them until the work has completed.
    unsafe { step(&execution).enqueue(&op, device.backend())? };
    device.synchronize()?;
    let is = golden.is(&mut execution)?;
    Ok(Vec::from_iter((!is).then(|| "other bits".to_owned())))
}

fn run_gated(
    device: &dyn Device,
    op: GatedRmsNorm,
    spec: &Spec,
    leading: [u64; 2],
) -> Result<Vec<String>> {
    let none = |_| no_memory(2 * (spec.rows * spec.hidden) as u64);
    let inputs = spec.generate().map_err(none)?;
    let z = spec.generate_gate().map_err(none)?;
    let mut execution = gated::Execution::new(device, op, &inputs, &z, leading)?;
    let w = inputs.w.as_golden();
    let bits = bytemuck::cast_slice::<bf16, u8>;
    let words = bytemuck::cast_slice::<f32, u8>;
    let mut failures = Vec::new();
    let mut compare = |outputs: &[(&str, &[u8], &[u8])]| {
        let other = outputs.iter().filter(|(_, found, golden)| found != golden);
        failures.extend(other.map(|(name, ..)| format!("other bits in {name}")));
    };
    let golden = forward_slices(&op, &inputs.x, &z, w)?;
    let found = execution.forward(POISON)?;
    compare(&[
        ("y", bits(&found.y), bits(&golden.y)),
        ("rstd", words(&found.rstd), words(&golden.rstd)),
    ]);
    let golden = backward_slices(&op, &inputs.dy, &inputs.x, &z, w, None)?;
    for kept in [true, false] {
        let found = execution.backward(POISON, kept)?;
        compare(&[
            ("dx", bits(&found.dx), bits(&golden.dx)),
            ("dz", bits(&found.dz), bits(&golden.dz)),
            ("dw", words(&found.dw), words(&golden.dw)),
        ]);
    }
    Ok(failures)
}

/// Drawn cases with their seeds.
fn cases(seed: u64, count: u64) -> impl Iterator<Item = (u64, Case)> {
    (seed..seed + count).map(|seed| (seed, Case::from_seed(seed, CASE_ELEMENTS)))
}

fn run_cases(device: &dyn Device, seed: u64, count: u64) -> Result<Vec<String>> {
    let mut failures = Vec::new();
    for (seed, case) in cases(seed, count) {
        let wrong = case.run(&Reached(device))?;
        failures.extend(
            wrong
                .into_iter()
                .map(|wrong| format!("seed {seed}: {wrong}")),
        );
    }
    Ok(failures)
}

fn kernel(program: Program) -> &'static Kernel {
    let found = KERNELS.iter().find(|kernel| kernel.program == program);
    found.unwrap_or_else(|| unreachable!("{program:?} is in the table"))
}

/// A copy, a read of it and a comparison.
fn run_bench(device: &dyn Device) -> Result<Vec<String>> {
    const THREADS: u32 = 256;
    let Some(launcher) = device.launcher() else {
        return Ok(vec!["the device launches no kernels".to_owned()]);
    };
    let zeros = vec![0; BENCH_BYTES];
    let (mut from, mut to) = (
        device.alloc("from", BENCH_BYTES)?,
        device.alloc("to", BENCH_BYTES)?,
    );
    let (mut sink, mut flag) = (device.alloc("sink", 4)?, device.alloc("flag", 4)?);
    from.write(&zeros)?;
    to.poison(POISON)?;
    sink.write(&[0; 4])?;
    flag.write(&[0; 4])?;
    let words = (BENCH_BYTES / size_of::<Words4>()) as u32;
    let copy = CopyParams {
        from: from.address() as *const Words4,
        to: to.address() as *mut Words4,
        words,
    };
    let flush = FlushParams {
        from: to.address() as *const Words4,
        sink: sink.address() as *mut f32,
        words,
    };
    let compare = CompareParams {
        a: from.address() as *const Words4,
        b: to.address() as *const Words4,
        flag: flag.address() as *mut f32,
        words,
    };
    let copies = words.div_ceil(copied_words(THREADS));
    let launch = |program, grid, params: *const u8| {
        let launch = Launch {
            kernel: kernel(program),
            grid,
            block: THREADS,
            shared_bytes: 0,
            dependent: false,
        };
        // SAFETY: the parameters are the kernel's, with buffers that live until the work has
        // completed, below.
        unsafe { launcher.launch(&[Bound { launch, params }]) }
    };
    launch(Program::Copy, copies, (&raw const copy).cast())?;
    launch(Program::Flush, 5, (&raw const flush).cast())?;
    launch(Program::Compare, 5, (&raw const compare).cast())?;
    device.synchronize()?;
    let mut found = vec![1; BENCH_BYTES];
    to.read(&mut found)?;
    let mut raised = [1; 4];
    flag.read(&mut raised)?;
    let mut failures = Vec::new();
    if found != zeros {
        failures.push("the copy is another".to_owned());
    }
    if raised != [0; 4] {
        failures.push("the comparison finds a difference".to_owned());
    }
    Ok(failures)
}
