//! A stream and a workspace a thread, different shapes at once.

use super::finding::Findings;
use super::{Opened, Stage, Where};
use crate::cli::bench_host::expected::{POISON, SETS, sets, step};
use crate::cli::check::execute::Execution;
use crate::cli::error::Result;
use cake_rmsnorm::{Dtype, RmsNorm};
use std::sync::Barrier;
use std::thread;

/// H, T and form: every program of a backward, with and without a workspace.
const SHAPES: [(u64, u64, bool); 8] = [
    (4096, 96, false),
    (512, 600, false),
    (512, 600, true),
    (1536, 1030, true),
    (256, 4100, false),
    (2048, 1200, false),
    (8200, 1030, true),
    (128, 7, true),
];
/// Under the simulator.
const SMALL_SHAPES: [(u64, u64, bool); 2] = [(64, 520, false), (264, 5, true)];
/// Steps in a row of a round.
const STEPS: u64 = 10;

/// Runs them.
pub fn run(stage: &Stage<'_>, findings: &mut Findings<'_>) -> Result<()> {
    let shapes = match stage.args.device {
        Where::Cuda => &SHAPES[..],
        _ => &SMALL_SHAPES,
    };
    let rounds = stage.count(200, 1);
    let steps = if stage.opened.is_gpu() { STEPS } else { 2 };
    let (ran, failures) = at_once(stage.opened, shapes, rounds, steps);
    findings.judge(
        "a thread, a stream and a workspace for each of as many shapes, all outputs of a round's \
         last step against golden",
        [
            ("threads", shapes.len() as u64),
            ("steps", ran * steps),
            ("compared", ran),
        ],
        &failures,
    )
}

/// The shapes at once: rounds that ran, and what is wrong with them.
pub fn at_once(
    opened: &Opened,
    shapes: &[(u64, u64, bool)],
    rounds: u64,
    steps: u64,
) -> (u64, Vec<String>) {
    let together = Barrier::new(shapes.len());
    let results: Vec<Result<u64>> = thread::scope(|scope| {
        let threads = shapes.iter().zip(1..).map(|(&shape, seed)| {
            let together = &together;
            scope.spawn(move || on_a_stream(opened, shape, seed, together, rounds, steps))
        });
        let threads: Vec<_> = threads.collect();
        let join = threads.into_iter().map(|thread| thread.join());
        join.map(|joined| joined.unwrap_or(Ok(rounds))).collect()
    });
    let (mut ran, mut failures) = (0, Vec::new());
    for ((hidden, rows, residual), result) in shapes.iter().zip(results) {
        let shape = format!("H {hidden}, T {rows}, residual {residual}");
        match result {
            Ok(0) => {}
            Ok(wrong) => failures.push(format!("{shape}: {wrong} rounds with other bits")),
            Err(error) => failures.push(format!("{shape}: {error}")),
        }
        ran += rounds;
    }
    (ran, failures)
}

/// Rounds of steps on a stream of its own: how many of them have other bits than golden.
fn on_a_stream(
    opened: &Opened,
    (hidden, rows, residual): (u64, u64, bool),
    seed: u64,
    together: &Barrier,
    rounds: u64,
    steps: u64,
) -> Result<u64> {
    let op = RmsNorm::new(hidden, Dtype::F32, 1e-6)?;
    let made = sets(&op, rows, residual, 100 * seed).and_then(|sets| Ok((opened.stream()?, sets)));
    // All wait, also for one that has nothing to run.
    together.wait();
    let (device, sets) = made?;
    let mut execution = Execution::new(&*device, op, &sets[0].0)?;
    let step = step(&execution);
    let mut wrong = 0;
    for round in 0..rounds {
        let (inputs, golden) = &sets[(round % SETS) as usize];
        execution.replace_inputs(inputs)?;
        execution.poison(POISON)?;
        for _ in 0..steps {
            // SAFETY: the buffers live, and nobody else uses them until the work has completed.
            unsafe { step.enqueue(&op, device.backend())? };
        }
        device.synchronize()?;
        wrong += u64::from(!golden.is(&mut execution)?);
    }
    Ok(wrong)
}
