//! Captured graphs, and two streams at once: every output's bits against golden.

use super::expected::{POISON, sets, step};
use super::report::Report;
use crate::cli::check::execute::Execution;
use crate::cli::device::cuda::CudaDevice;
use crate::cli::device::{Device, Planning};
use crate::cli::error::Result;
use crate::cli::output::Output;
use crate::cli::reliability::graphs::replay;
use crate::cli::reliability::opened::Opened;
use crate::cli::reliability::shape::{Shape, plain, residual};
use crate::cli::reliability::streams::at_once;
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cuda::{Cuda, Graph};
use cake_rmsnorm::plan::Views;
use cake_rmsnorm::{Dtype, Error, RmsNorm};
use serde::Serialize;

/// One launch a backward, and two; both forms.
const SHAPES: [Shape; 4] = [
    plain(4096, 96),
    plain(512, 600),
    residual(512, 600),
    residual(1536, 520),
];

/// A captured step, replayed over changing inputs. Nothing of the operator ran before.
pub fn graphs(
    device: &CudaDevice,
    replays: u64,
    report: &mut Report,
    out: &mut Output,
) -> Result<()> {
    #[derive(Serialize)]
    struct Figures {
        shape: String,
        replays: u64,
        wrong: u64,
        capture_us: f64,
    }
    for shape in SHAPES {
        let (wrong, captured) = replay(device, shape, replays, || ())?;
        let capture_us = captured.as_secs_f64() * 1e6;
        let text = format!(
            "{shape}: a captured step, {replays} replays with changing inputs, {wrong} with other \
             bits than golden; captured in {capture_us:.0} us",
        );
        let figures = Figures {
            shape: shape.to_string(),
            replays,
            wrong,
            capture_us,
        };
        report.target(out, "graphs", wrong == 0, text, figures)?;
    }
    Ok(())
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

/// Two threads, each with its tensors and its workspace: on streams of their own, and on one.
pub fn two_at_once(device: &CudaDevice, report: &mut Report, out: &mut Output) -> Result<()> {
    /// Rounds, each waited for, and steps in a row of a round.
    const ROUNDS: u64 = 50;
    const STEPS: u64 = 20;
    let graphs = device.beside()?.with_graph_launches();
    let places = [
        ("two streams", Opened::Cuda(device.beside()?)),
        (
            "two streams, launched by graphs",
            Opened::Cuda(graphs.clone()),
        ),
        ("one stream, launched by graphs", Opened::OneStream(graphs)),
    ];
    for (place, opened) in places {
        for shape in SHAPES {
            let (_, failures) = at_once(&opened, &[shape, shape], ROUNDS, STEPS);
            let text = format!(
                "{shape}: two threads, {place}, {} steps each, all outputs of a round's last step \
                 against golden; failures: {failures:?}",
                ROUNDS * STEPS,
            );
            report.target(out, "streams", failures.is_empty(), text, failures)?;
        }
    }
    Ok(())
}
