//! Without memory: an error that names the bytes, after which everything works.

use super::finding::Findings;
use super::{Opened, Stage, opened};
use crate::cli::error::{CliError, Result};

/// Runs it.
pub fn run(stage: &Stage<'_>, findings: &mut Findings<'_>) -> Result<()> {
    match stage.opened {
        // The simulator's memory is the process's, whose allocator ends it.
        Opened::Sim => findings.skip("all of it", opened::NEEDS_GPU),
        Opened::Cpu => {
            let failures = too_much(stage, 1 << 62)?;
            findings.judge("2^62 bytes asked for", [("allocations", 1)], &failures)
        }
        #[cfg(feature = "cuda")]
        Opened::Cuda(device) | Opened::OneStream(device) => gpu::run(device, stage, findings),
    }
}

/// Asks for so many bytes, which there are not: what is wrong with the answer.
fn too_much(stage: &Stage<'_>, bytes: usize) -> Result<Vec<String>> {
    let device = stage.opened.stream()?;
    let mut failures = Vec::new();
    match device.alloc("workspace", bytes) {
        Ok(_) => failures.push(format!("{bytes} bytes were had")),
        Err(error) => complain(&error, bytes, &mut failures),
    }
    Ok(failures)
}

/// What is wrong with the error of an allocation of so many bytes.
pub fn complain(error: &CliError, bytes: usize, failures: &mut Vec<String>) {
    if !error.is_out_of_memory() {
        failures.push(format!("not an error of memory: {error}"));
    }
    if !error.to_string().contains(&format!("{bytes} bytes")) {
        failures.push(format!("{bytes} bytes are not named: {error}"));
    }
}

#[cfg(feature = "cuda")]
mod gpu {
    use super::*;
    use crate::cli::bench_host::expected::{Golden, POISON, inputs, step};
    use crate::cli::check::execute::Execution;
    use crate::cli::device::cuda::CudaDevice;
    use crate::cli::device::{Buffer, Device};
    use crate::cli::reliability::planted::memory;
    use cake_rmsnorm::{Dtype, RmsNorm};

    /// Smallest allocation that must fail before memory counts as used up.
    const LEAST: usize = 1 << 20;

    /// On a GPU: too much at once, then all of it, with calls in between.
    pub fn run(device: &CudaDevice, stage: &Stage<'_>, findings: &mut Findings<'_>) -> Result<()> {
        let (_, total) = memory(device.cuda().device())?;
        let mut failures = Vec::new();
        let sizes = [total + 1, 2 * total, 1 << 50, 1 << 62];
        for bytes in sizes {
            failures.extend(too_much(stage, bytes)?);
        }
        let allocations = sizes.len() as u64;
        let what = "more memory asked for than there is";
        findings.judge(what, [("allocations", allocations)], &failures)?;

        let op = RmsNorm::new(2048, Dtype::F32, 1e-6)?;
        let inputs = inputs(2048, 1030, true, 11)?;
        let golden = Golden::of(&op, &inputs)?;
        let mut execution = Execution::new(device, op, &inputs)?;
        let is_golden = |execution: &mut Execution<'_>| -> Result<bool> {
            execution.poison(POISON)?;
            // SAFETY: the buffers live, and nobody else uses them until the work has completed.
            unsafe { step(execution).enqueue(&op, device.backend())? };
            device.synchronize()?;
            golden.is(execution)
        };
        let (mut held, mut failures): (Vec<Box<dyn Buffer>>, _) = (Vec::new(), Vec::new());
        let (mut bytes, mut refused) = (total, 0);
        while bytes >= LEAST {
            match device.alloc("all memory", bytes) {
                Ok(buffer) => held.push(buffer),
                Err(error) => {
                    complain(&error, bytes, &mut failures);
                    refused += 1;
                    bytes /= 2;
                }
            }
        }
        let (left, _) = memory(device.cuda().device())?;
        match is_golden(&mut execution) {
            Ok(true) => {}
            Ok(false) => failures.push("other bits without memory".to_owned()),
            Err(error) => failures.push(format!("a call without memory: {error}")),
        }
        let count = held.len() as u64;
        drop(held);
        findings.judge(
            "all memory used up; an operator that is prepared runs, golden bits",
            [
                ("allocations", count),
                ("refused", refused),
                ("bytes left", left as u64),
            ],
            &failures,
        )?;

        let mut fresh = Execution::new(device, op, &inputs)?;
        let ok = is_golden(&mut fresh)?;
        let failures = (!ok).then(|| "other bits afterwards".to_owned());
        let failures: Vec<String> = failures.into_iter().collect();
        findings.judge(
            "memory given back: allocations and calls work",
            [],
            &failures,
        )
    }
}
