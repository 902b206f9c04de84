//! Beside other contexts, processes and GPUs.

use super::finding::Findings;
use super::planted::check;
use super::shape::{Shape, norm_first, plain, residual};
use super::{Opened, Stage, command, launches, process, streams};
use crate::cli::bench_host::expected::{Golden, POISON, inputs, step};
use crate::cli::check::execute::Execution;
use crate::cli::device::Device as _;
use crate::cli::device::cuda::CudaDevice;
use crate::cli::error::Result;
use cake_rmsnorm::{Dtype, RmsNorm};
use cust::sys;
use std::thread;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
/// Slices of the launches that two processes run.
const SLICES: u64 = 12;
/// On each of two GPUs.
const SHAPES: [Shape; 4] = [
    plain(4096, 96),
    residual(512, 700),
    plain(2048, 1200),
    norm_first(256, 1, 600),
];

/// Runs all three.
pub fn run(device: &CudaDevice, stage: &Stage<'_>, findings: &mut Findings<'_>) -> Result<()> {
    let failures = beside_a_context(device)?;
    let what = "calls while another context, made by the program, is current; it stays current";
    findings.judge(what, [("steps", STEPS)], &failures)?;
    two_processes(stage, findings)?;
    two_gpus(stage, findings)
}

const STEPS: u64 = 20;

/// A context of the program's own that is current on this thread.
struct Own(sys::CUcontext);

impl Own {
    fn new() -> cake_rmsnorm::Result<Self> {
        let (mut gpu, mut context) = (0, std::ptr::null_mut());
        // SAFETY: the driver was initialised; the out pointers are live.
        unsafe {
            check("cuDeviceGet", sys::cuDeviceGet(&raw mut gpu, 0))?;
            check("cuCtxCreate", sys::cuCtxCreate_v2(&raw mut context, 0, gpu))?;
        }
        Ok(Own(context))
    }

    fn is_current(&self) -> cake_rmsnorm::Result<bool> {
        let mut current = std::ptr::null_mut();
        // SAFETY: the out pointer is live.
        check("cuCtxGetCurrent", unsafe {
            sys::cuCtxGetCurrent(&raw mut current)
        })?;
        Ok(current == self.0)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: made above, and nothing of it is used any more. An error leaves nothing to do.
        let _ = unsafe { sys::cuCtxDestroy_v2(self.0) };
    }
}

/// What is wrong with steps beside a context of the program's own.
fn beside_a_context(device: &CudaDevice) -> Result<Vec<String>> {
    let own = Own::new()?;
    let op = RmsNorm::new(2048, Dtype::F32, 1e-6)?;
    let inputs = inputs(2048, 1030, true, 21)?;
    let golden = Golden::of(&op, &inputs)?;
    let mut failures = Vec::new();
    let mut execution = Execution::new(device, op, &inputs)?;
    for round in 0..STEPS {
        execution.poison(POISON)?;
        // SAFETY: the buffers live, and nobody else uses them until the work has completed.
        unsafe { step(&execution).enqueue(&op, device.cuda())? };
        device.synchronize()?;
        if !golden.is(&mut execution)? {
            failures.push(format!("step {round}: other bits"));
        }
        if !own.is_current()? {
            failures.push(format!("step {round}: another context is current"));
        }
    }
    Ok(failures)
}

/// Two processes at once.
fn two_processes(stage: &Stage<'_>, findings: &mut Findings<'_>) -> Result<()> {
    let one = |slice: u64| -> Result<Option<String>> {
        let mut command = command(stage.args, launches::JOB)?;
        let ended = process::run(
            command.args(["--slice", &format!("{slice}/{SLICES}")]),
            LIMIT,
        )?;
        let text = [&*ended.stdout, &*ended.stderr].concat();
        let failure = || format!("{:?}: {}", ended.status, process::last_lines(&text));
        Ok((ended.status != Some(0)).then(failure))
    };
    let (first, second) = thread::scope(|scope| {
        let other = scope.spawn(|| one(1));
        (one(0), other.join())
    });
    let second = second.unwrap_or_else(|_| Ok(Some("a thread panicked".to_owned())));
    let failures: Vec<String> = [first?, second?].into_iter().flatten().collect();
    let what = "two processes at once, a context each, golden bits";
    findings.judge(what, [("processes", 2)], &failures)
}

/// Two GPUs at once, threads on each.
fn two_gpus(stage: &Stage<'_>, findings: &mut Findings<'_>) -> Result<()> {
    let what = "two GPUs at once, threads and streams on each, golden bits";
    let mut gpus = 0;
    // SAFETY: the driver was initialised; the out pointer is live.
    check("cuDeviceGetCount", unsafe {
        sys::cuDeviceGetCount(&raw mut gpus)
    })?;
    if gpus < 2 {
        return findings.skip(what, &format!("there is {gpus} GPU"));
    }
    let rounds = stage.count(100, 1);
    let (first, second) = (
        Opened::Cuda(CudaDevice::of(0)?),
        Opened::Cuda(CudaDevice::of(1)?),
    );
    let (one, other) = thread::scope(|scope| {
        let other = scope.spawn(|| streams::at_once(&second, &SHAPES, rounds, 4));
        (streams::at_once(&first, &SHAPES, rounds, 4), other.join())
    });
    let other = other.unwrap_or_else(|_| (0, vec!["a thread panicked".to_owned()]));
    let failures = [one.1, other.1].concat();
    let counts = [("GPUs", 2), ("compared", one.0 + other.0)];
    findings.judge(what, counts, &failures)
}
