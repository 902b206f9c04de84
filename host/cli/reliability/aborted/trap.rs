//! A kernel that traps while a backward is in flight, in a process of its own.

use super::TRAP_JOB;
use crate::cli::bench_host::expected::{Golden, POISON, inputs, step};
use crate::cli::check::execute::Execution;
use crate::cli::device::cuda::CudaDevice;
use crate::cli::error::{CliError, Result};
use crate::cli::output::Output;
use crate::cli::reliability::finding::Findings;
use crate::cli::reliability::planted::{Planted, TRAP};
use crate::cli::reliability::{Stage, command, process};
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cuda::{Cuda, Device, DeviceBuffer, Graph};
use cake_rmsnorm::plan::Views;
use cake_rmsnorm::{Dtype, Error, RmsNorm};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A process that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// Backwards that are enqueued before the trap, and after it.
const IN_FLIGHT: usize = 64;
/// Large enough that they do not end before the trap.
const SHAPE: (u64, u64) = (4096, 8192);

/// What a call answered.
#[derive(Serialize, Deserialize)]
struct Answer {
    call: String,
    /// It was an error of the driver.
    refused: bool,
    text: String,
}

/// Breaks this process's context, and prints what every call answers from then on.
pub fn run(out: &mut Output) -> Result<bool> {
    let device = CudaDevice::of(0)?;
    let (hidden, rows) = SHAPE;
    let op = RmsNorm::new(hidden, Dtype::F32, 1e-6)?;
    let other = RmsNorm::new(256, Dtype::Bf16, 1e-6)?;
    let inputs = inputs(hidden, rows, false, 3)?;
    let mut execution = Execution::new(&device, op, &inputs)?;
    let step = step(&execution);
    let cuda = device.cuda();
    let gpu = cuda.device().clone();
    let beside = Cuda::on_new_stream(gpu.clone())?;
    let planted = Planted::load(&gpu, TRAP)?;
    let mut buffer = DeviceBuffer::new(&gpu, 1024)?;
    let backward = || {
        // SAFETY: the buffers live, and nobody uses what the calls write.
        unsafe { cuda.backward(&op, &step.backward) }
    };
    // SAFETY: as above.
    unsafe { cuda.forward(&op, &step.forward)? };
    for _ in 0..IN_FLIGHT {
        backward()?;
    }
    // SAFETY: the kernel has one parameter, which it does not read.
    unsafe { planted.launch(&beside, (1, 1, 0), &mut [0])? };

    let mut answers = Vec::new();
    let mut note = |call: &str, answer: cake_rmsnorm::Result<()>| {
        answers.push(Answer {
            call: call.to_owned(),
            refused: matches!(answer, Err(Error::Cuda { .. })),
            text: answer.map_or_else(|error| error.to_string(), |()| "accepted".to_owned()),
        });
    };
    // Calls that are enqueued before the driver knows may be accepted.
    for _ in 0..IN_FLIGHT {
        let _ = backward();
    }
    note("synchronize", cuda.synchronize());
    note("synchronize the other stream", beside.synchronize());
    note("backward", backward());
    // SAFETY: as above.
    note("forward", unsafe { cuda.forward(&op, &step.forward) });
    note("prepare", cuda.prepare(&other, false, Views::Any));
    note("allocate", DeviceBuffer::new(&gpu, 1 << 20).map(drop));
    note("write", buffer.write(&[1; 1024]));
    note("fill", buffer.set(1));
    note("read", buffer.read(&mut [0; 1024]));
    note("new stream", Cuda::on_new_stream(gpu.clone()).map(drop));
    note("capture", Graph::capture(cuda, backward).map(drop));
    note("synchronize again", cuda.synchronize());
    let read = execution.backward(POISON);
    note(
        "a backward of the program",
        match read {
            Err(CliError::Library(error)) => Err(error),
            _ => Ok(()),
        },
    );
    drop((execution, buffer, beside, gpu));
    drop(device);
    // For the record: the driver keeps a process's broken context until the process ends.
    let reopened = Device::open(0).and_then(|gpu| DeviceBuffer::new(&gpu, 1024).map(drop));
    let text = reopened.map_or_else(|error| error.to_string(), |()| "accepted".to_owned());
    let answers = (answers, text);
    let text = serde_json::to_string(&answers);
    out.line(text.map_err(|error| CliError::Stdout(error.into()))?)?;
    Ok(true)
}

/// What the process said, and whether this one and a new one work on.
pub fn judge(stage: &Stage<'_>, findings: &mut Findings<'_>) -> Result<()> {
    let op = RmsNorm::new(2048, Dtype::F32, 1e-6)?;
    let inputs = inputs(2048, 1030, false, 4)?;
    let golden = Golden::of(&op, &inputs)?;
    let device = stage.opened.stream()?;
    let mut execution = Execution::new(&*device, op, &inputs)?;
    let mut works = || -> Result<bool> {
        execution.poison(POISON)?;
        // SAFETY: the buffers live, and nobody else uses them until the work has completed.
        unsafe { step(&execution).enqueue(&op, device.backend())? };
        device.synchronize()?;
        golden.is(&mut execution)
    };
    let before = works()?;

    let ended = process::run(&mut command(stage.args, TRAP_JOB)?, LIMIT)?;
    let mut failures = Vec::new();
    let said: Option<(Vec<Answer>, String)> = serde_json::from_str(ended.stdout.trim()).ok();
    let (answers, reopened) = said.unwrap_or_default();
    match ended.status {
        None => failures.push(format!("it hung: ended after {} s", ended.seconds)),
        Some(0) if !answers.is_empty() => {}
        status => failures.push(format!(
            "exit status {status:?}: {}",
            process::last_lines(&ended.stderr)
        )),
    }
    let wrong = answers.iter().filter(|answer| !answer.refused);
    failures.extend(wrong.map(|answer| format!("{}: {}", answer.call, answer.text)));
    let first = answers.first().map_or("-", |answer| answer.text.as_str());
    findings.judge(
        &format!(
            "a kernel that traps beside backwards in flight, every later call a typed error \
             (\"{first}\"); the device opened anew in that process: \"{reopened}\""
        ),
        [("calls", answers.len() as u64)],
        &failures,
    )?;

    let mut failures = Vec::new();
    if !before || !works()? {
        failures.push("other bits in the process beside it".to_owned());
    }
    let mut fresh = command(stage.args, crate::cli::reliability::launches::JOB)?;
    let ended = process::run(fresh.args(["--slice", "0/40"]), LIMIT)?;
    if ended.status != Some(0) {
        failures.push(format!(
            "a new process: exit status {:?}: {}",
            ended.status,
            process::last_lines(&[&*ended.stdout, &*ended.stderr].concat())
        ));
    }
    let what = "afterwards: the process beside it, and a new one, golden bits";
    findings.judge(what, [], &failures)
}
