//! PTX that is damaged or too new: a typed error with the driver's log, nothing stays loaded, and
//! the right PTX loads afterwards.

use super::Stage;
use super::finding::Findings;
use super::planted::memory;
use crate::cli::bench_host::expected::{Golden, POISON, inputs, step};
use crate::cli::check::execute::Execution;
use crate::cli::device::Device as _;
use crate::cli::device::cuda::CudaDevice;
use crate::cli::error::Result;
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cuda::Device;
use cake_rmsnorm::kernels::contract::Kernel;
use cake_rmsnorm::plan::Views;
use cake_rmsnorm::{Dtype, Error, RmsNorm, ptx};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Copies of the PTX with bytes that no PTX holds.
const DAMAGED: u64 = 32;
/// Bytes that may stay allocated after modules were refused: the driver's own.
const KEPT_BYTES: usize = 64 << 20;

/// Runs it.
pub fn run(device: &CudaDevice, _: &Stage<'_>, findings: &mut Findings<'_>) -> Result<()> {
    let op = RmsNorm::new(2048, Dtype::F32, 1e-6)?;
    // With a table of kernels of its own.
    let gpu = Device::open(0)?;
    let (major, minor) = gpu.properties().compute_capability;
    let plan = op.backward_plan(1030, true, gpu.properties())?;
    let kernel = plan
        .main
        .unwrap_or_else(|| unreachable!("there are rows"))
        .kernel;
    let module = ptx::Module::best(kernel.module, 10 * major + minor)
        .ok_or(Error::UnsupportedDevice { major, minor })?;
    let right = module
        .entry(kernel.name)
        .unwrap_or_else(|| module.ptx.to_owned());

    let (before, _) = memory(&gpu)?;
    let kinds = [
        ("cut off", cut_off(&right), false),
        ("with damaged bytes", damaged(&right), true),
        (
            ".version 99.0",
            vec![newer(&right, ".version ", "99.0")],
            true,
        ),
        (
            ".target sm_999",
            vec![newer(&right, ".target ", "sm_999")],
            true,
        ),
    ];
    for (what, texts, logged) in kinds {
        let mut failures = Vec::new();
        let mut first = String::new();
        for text in &texts {
            let answer = refusal(&gpu, kernel, text, logged);
            match answer {
                Ok(message) if first.is_empty() => first = message,
                Ok(_) => {}
                Err(failure) => failures.push(failure),
            }
        }
        let first: String = first.split_whitespace().collect::<Vec<_>>().join(" ");
        findings.judge(
            &format!("PTX {what}, refused by name: \"{first}\""),
            [("modules", texts.len() as u64)],
            &failures,
        )?;
    }

    let mut failures = Vec::new();
    let (after, _) = memory(&gpu)?;
    if before.saturating_sub(after) > KEPT_BYTES {
        failures.push(format!("{} bytes stay allocated", before - after));
    }
    // SAFETY: the kernel's own PTX.
    if let Err(error) = unsafe { gpu.load_from(kernel, &right) } {
        failures.push(format!("the right PTX afterwards: {error}"));
    }
    let fresh = CudaDevice::on(gpu)?;
    fresh.cuda().prepare(&op, true, Views::Any)?;
    let inputs = inputs(2048, 1030, true, 31)?;
    let golden = Golden::of(&op, &inputs)?;
    for (name, device) in [("that device", &fresh), ("another object of it", device)] {
        let mut execution = Execution::new(device, op, &inputs)?;
        execution.poison(POISON)?;
        // SAFETY: the buffers live, and nobody else uses them until the work has completed.
        unsafe { step(&execution).enqueue(&op, device.cuda())? };
        device.synchronize()?;
        if !golden.is(&mut execution)? {
            failures.push(format!("{name}: other bits"));
        }
    }
    let what = "nothing stays loaded; the right PTX loads afterwards, golden bits";
    findings.judge(what, [], &failures)
}

/// The message with which PTX is refused, or what is wrong.
fn refusal(
    gpu: &Device,
    kernel: &'static Kernel,
    text: &str,
    logged: bool,
) -> std::result::Result<String, String> {
    // SAFETY: the driver accepts none of these, or it is not launched.
    let answer = unsafe { gpu.load_from(kernel, text) };
    if gpu.kernel_attributes(kernel).is_ok() {
        return Err("it stays loaded".to_owned());
    }
    match answer {
        Ok(()) => Err("it was accepted".to_owned()),
        Err(error @ Error::Cuda { .. }) => {
            let message = error.to_string();
            match message.contains(kernel.name) && (!logged || message.contains("JIT log")) {
                true => Ok(message),
                false => Err(format!("kernel and log are not named: {message}")),
            }
        }
        Err(error) => Err(format!("another error: {error}")),
    }
}

/// Without its end, from nothing to all but its last brace.
fn cut_off(right: &str) -> Vec<String> {
    let last = right.rfind('}').unwrap_or(0);
    let ends = [0, 1, 40, last / 4, last / 2, last * 3 / 4, last - 1, last];
    ends.map(|end| right[..end].to_owned()).to_vec()
}

/// With some bytes replaced by what no PTX holds, outside of comments.
fn damaged(right: &str) -> Vec<String> {
    let code = right.find(".version").unwrap_or(0);
    let one = |seed| {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut bytes = right.as_bytes().to_vec();
        for _ in 0..=seed {
            let at = code + rng.next_u64() as usize % (bytes.len() - code);
            bytes[at] = b'`';
        }
        String::from_utf8_lossy(&bytes).into_owned()
    };
    (0..DAMAGED).map(one).collect()
}

/// With another word behind a directive.
fn newer(right: &str, directive: &str, word: &str) -> String {
    let lines = right.lines().map(|line| match line.starts_with(directive) {
        true => format!("{directive}{word}\n"),
        false => format!("{line}\n"),
    });
    lines.collect()
}
