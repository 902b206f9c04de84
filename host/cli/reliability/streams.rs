//! A stream and a workspace a thread, different shapes at once.

use super::finding::Findings;
use super::shape::{Sets, Shape, Steps, gate_first, norm_first, plain, residual};
use super::{Opened, Stage, Where};
use crate::cli::error::Result;
use std::sync::Barrier;
use std::thread;

/// Every family of programs of a backward, with and without a workspace.
const SHAPES: [Shape; 12] = [
    plain(4096, 96),
    plain(512, 600),
    residual(512, 600),
    residual(1536, 1030),
    plain(256, 4100),
    plain(2048, 1200),
    residual(8200, 1030),
    residual(128, 7),
    norm_first(128, 1, 16_400),
    gate_first(256, 2, 600),
    gate_first(4096, 1, 300),
    norm_first(8192, 1, 520),
];
/// Under the simulator.
const SMALL_SHAPES: [Shape; 3] = [plain(64, 520), residual(264, 5), gate_first(128, 2, 9)];
/// Steps in a row of a round.
const STEPS: u64 = 10;

/// Runs them.
pub(super) fn run(stage: &Stage<'_>, findings: &mut Findings<'_>) -> Result<()> {
    let shapes = match stage.args.device {
        Where::Cuda => &SHAPES[..],
        _ => &SMALL_SHAPES,
    };
    let rounds = stage.count(200, 1);
    let steps = if stage.opened.is_gpu() { STEPS } else { 2 };
    let mut run = |opened: &Opened, what: &str| {
        let (ran, failures) = at_once(opened, shapes, rounds, steps);
        let of_each =
            "of each of as many shapes, all outputs of a round's last step against golden";
        findings.judge(
            &format!("{what} {of_each}"),
            [
                ("threads", shapes.len() as u64),
                ("steps", ran * steps),
                ("compared", ran),
            ],
            &failures,
        )
    };
    run(stage.opened, "a thread, a stream and a workspace")?;
    #[cfg(feature = "cuda")]
    if let Opened::Cuda(device) = stage.opened {
        let graphs = device.beside()?.with_graph_launches();
        let one_stream = Opened::OneStream(graphs.clone());
        run(
            &Opened::Cuda(graphs),
            "launched by graphs: a thread, a stream and a workspace",
        )?;
        run(
            &one_stream,
            "launched by the graphs of one stream: a thread and a workspace",
        )?;
    }
    Ok(())
}

/// The shapes at once: rounds that ran, and what is wrong with them.
pub fn at_once(opened: &Opened, shapes: &[Shape], rounds: u64, steps: u64) -> (u64, Vec<String>) {
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
    for (shape, result) in shapes.iter().zip(results) {
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
    shape: Shape,
    seed: u64,
    together: &Barrier,
    rounds: u64,
    steps: u64,
) -> Result<u64> {
    let made = Sets::new(shape, 100 * seed).and_then(|sets| Ok((opened.stream()?, sets)));
    // All wait, also for one that has nothing to run.
    together.wait();
    let (device, sets) = made?;
    let mut execution = Steps::new(&*device, &sets)?;
    let mut wrong = 0;
    for round in 0..rounds {
        execution.begin(round)?;
        for _ in 0..steps {
            // SAFETY: the buffers live, and nobody else uses them until the work has completed.
            unsafe { execution.enqueue(device.backend())? };
        }
        device.synchronize()?;
        wrong += u64::from(!execution.is_golden(round)?);
    }
    Ok(wrong)
}
