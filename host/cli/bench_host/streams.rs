//! Captured graphs, and two streams at once: every output's bits against golden.

use super::expected::{POISON, SETS, sets, step};
use super::report::Report;
use crate::cli::check::execute::Execution;
use crate::cli::device::cuda::CudaDevice;
use crate::cli::device::{Device, Planning};
use crate::cli::error::Result;
use crate::cli::output::Output;
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cuda::{Cuda, Graph};
use cake_rmsnorm::plan::Views;
use cake_rmsnorm::{Dtype, Error, RmsNorm};
use serde::Serialize;
use std::time::Instant;

/// One launch a backward, and two; both forms.
const SHAPES: [(u64, u64, bool); 4] = [
    (4096, 96, false),
    (512, 600, false),
    (512, 600, true),
    (1536, 520, true),
];

/// A captured step, replayed over changing inputs. Nothing of the operator ran before.
pub fn graphs(
    device: &CudaDevice,
    replays: u32,
    report: &mut Report,
    out: &mut Output,
) -> Result<()> {
    #[derive(Serialize)]
    struct Figures {
        hidden: u64,
        rows: u64,
        residual: bool,
        replays: u32,
        wrong: u32,
        capture_us: f64,
    }
    for (hidden, rows, residual) in SHAPES {
        let (wrong, capture_us) = replay(device, (hidden, rows, residual), replays)?;
        let text = format!(
            "H={hidden} T={rows} {}: a captured step, {replays} replays with changing inputs, \
             {wrong} with other bits than golden; captured in {capture_us:.0} us",
            if residual { "residual" } else { "plain" },
        );
        let figures = Figures {
            hidden,
            rows,
            residual,
            replays,
            wrong,
            capture_us,
        };
        report.target(out, "graphs", wrong == 0, text, figures)?;
    }
    Ok(())
}

/// A captured step of a shape, replayed over changing inputs: replays with other bits than golden,
/// and how long the capture took, µs.
fn replay(
    device: &CudaDevice,
    (hidden, rows, residual): (u64, u64, bool),
    replays: u32,
) -> Result<(u32, f64)> {
    let op = RmsNorm::new(hidden, Dtype::F32, 1e-6)?;
    let sets = sets(&op, rows, residual, 0)?;
    let mut execution = Execution::new(device, op, &sets[0].0)?;
    let start = Instant::now();
    let graph = Graph::of_step(device.cuda(), &op, &step(&execution))?;
    let capture_us = start.elapsed().as_secs_f64() * 1e6;
    let mut wrong = 0;
    for replay in 0..replays {
        let (inputs, golden) = &sets[replay as usize % sets.len()];
        execution.replace_inputs(inputs)?;
        execution.poison(POISON)?;
        // The copies went through the default stream.
        // SAFETY: the buffers live, and nobody uses them until the work has completed.
        unsafe { graph.launch(device.cuda())? };
        device.synchronize()?;
        wrong += u32::from(!golden.is(&mut execution)?);
    }
    Ok((wrong, capture_us))
}

/// Captures that cannot be: typed errors, after which the stream works as before.
pub fn refused_captures(device: &CudaDevice, report: &mut Report, out: &mut Output) -> Result<()> {
    // A device object of its own, with nothing loaded.
    let fresh = CudaDevice::on_new_stream(&Planning::default())?;
    let op = RmsNorm::new(4096, Dtype::F32, 1e-6)?;
    let (inputs, golden) = sets(&op, 96, false, 7)?.swap_remove(0);
    let mut execution = Execution::new(device, op, &inputs)?;
    let step = step(&execution);

    // SAFETY: nothing is enqueued.
    let capture = |cuda: &Cuda| Graph::capture(cuda, || unsafe { step.enqueue(&op, cuda) });
    let unprepared = capture(fresh.cuda());
    let ok = matches!(unprepared, Err(Error::NotPrepared { .. }));
    let text = format!(
        "of an operator that was not prepared: {}",
        said(&unprepared)
    );
    report.target(out, "graphs", ok, text, ())?;

    let default = Cuda::new(device.cuda().device().clone());
    let default = capture(&default);
    let ok = matches!(default, Err(Error::Cuda { .. }));
    let text = format!("of the default stream: {}", said(&default));
    report.target(out, "graphs", ok, text, ())?;

    execution.poison(POISON)?;
    fresh.cuda().prepare(&op, false, Views::Ordinary)?;
    // SAFETY: the buffers live, and nobody uses them until the work has completed.
    unsafe { step.enqueue(&op, fresh.cuda())? };
    fresh.synchronize()?;
    let ok = golden.is(&mut execution)?;
    let text = "the stream of a refused capture works as before".to_owned();
    report.target(out, "graphs", ok, text, ())
}

fn said<T>(result: &cake_rmsnorm::Result<T>) -> String {
    match result {
        Ok(_) => "accepted".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Two streams, each with its thread, its tensors and its workspace.
pub fn two_at_once(device: &CudaDevice, report: &mut Report, out: &mut Output) -> Result<()> {
    /// Rounds, each waited for, and steps in a row of a round.
    const ROUNDS: u64 = 50;
    const STEPS: u32 = 20;
    for (hidden, rows, residual) in SHAPES {
        let op = RmsNorm::new(hidden, Dtype::F32, 1e-6)?;
        let run = |seed: u64| -> Result<u32> {
            let device = device.beside()?;
            let sets = sets(&op, rows, residual, seed)?;
            let mut execution = Execution::new(&device, op, &sets[0].0)?;
            let step = step(&execution);
            let mut wrong = 0;
            for round in 0..ROUNDS {
                let (inputs, golden) = &sets[(round % SETS) as usize];
                execution.replace_inputs(inputs)?;
                execution.poison(POISON)?;
                for _ in 0..STEPS {
                    // SAFETY: the buffers live, and nobody else uses them until the work has
                    // completed.
                    unsafe { step.enqueue(&op, device.cuda())? };
                }
                device.synchronize()?;
                wrong += u32::from(!golden.is(&mut execution)?);
            }
            Ok(wrong)
        };
        let (first, second) = std::thread::scope(|scope| {
            let other = scope.spawn(|| run(100));
            let first = run(200);
            let panicked = |_| unreachable!("nothing panics on the way");
            (first, other.join().unwrap_or_else(panicked))
        });
        let wrong = first? + second?;
        let text = format!(
            "H={hidden} T={rows} {}: two streams with a thread each, {} steps each, {wrong} rounds \
             with other bits than golden",
            if residual { "residual" } else { "plain" },
            ROUNDS * u64::from(STEPS),
        );
        report.target(out, "streams", wrong == 0, text, wrong)?;
    }
    Ok(())
}
