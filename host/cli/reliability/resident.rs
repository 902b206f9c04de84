//! Beside a kernel that holds multiprocessors.

use super::Stage;
use super::finding::Findings;
use super::planted::{HOLD, Planted, Shared};
use crate::cli::bench_host::expected::{POISON, SETS, sets, step};
use crate::cli::check::execute::Execution;
use crate::cli::device::Device as _;
use crate::cli::device::cuda::CudaDevice;
use crate::cli::error::Result;
use cake_rmsnorm::backend::cuda::Cuda;
use cake_rmsnorm::{Dtype, RmsNorm};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// H, T and form: one launch, and two.
const SHAPES: [(u64, u64, bool); 5] = [
    (4096, 96, false),
    (512, 700, true),
    (2048, 1200, false),
    (8200, 1030, true),
    (4096, 4096, false),
];
const ROUNDS: u64 = 20;
/// How long the kernel holds on when nobody lets it go.
const DEADLINE: Duration = Duration::from_secs(60);
/// How long its blocks may take to start.
const START: Duration = Duration::from_secs(5);

/// Runs the shapes with half of the multiprocessors held, and with all but one.
pub fn run(device: &CudaDevice, stage: &Stage<'_>, findings: &mut Findings<'_>) -> Result<()> {
    let properties = *device.cuda().device().properties();
    let rounds = stage.count(ROUNDS, 1);
    for held in [properties.sm_count / 2, properties.sm_count - 1] {
        let (mut failures, mut steps, mut least) = (Vec::new(), 0, held);
        for shape in SHAPES {
            let beside = one(device, shape, held, rounds)?;
            steps += rounds;
            least = least.min(beside.multiprocessors);
            let shape = format!("{shape:?}");
            if beside.multiprocessors < held {
                let found = beside.multiprocessors;
                failures.push(format!("{shape}: {found} multiprocessors were held"));
            }
            if beside.ended_early {
                failures.push(format!(
                    "{shape}: the steps waited for the kernel beside them"
                ));
            }
            if beside.wrong > 0 {
                failures.push(format!("{shape}: {} steps with other bits", beside.wrong));
            }
        }
        findings.judge(
            &format!(
                "steps beside a kernel that holds {held} of {} multiprocessors from before the \
                 first to after the last, golden bits",
                properties.sm_count
            ),
            [("steps", steps), ("multiprocessors held", u64::from(least))],
            &failures,
        )?;
    }
    Ok(())
}

/// What came of steps beside the kernel.
struct Beside {
    /// That it held.
    multiprocessors: u32,
    /// A block of it ended before the steps did.
    ended_early: bool,
    /// Steps with other bits than golden.
    wrong: u64,
}

/// Steps of a shape while the kernel holds so many multiprocessors.
fn one(
    device: &CudaDevice,
    (hidden, rows, residual): (u64, u64, bool),
    held: u32,
    rounds: u64,
) -> Result<Beside> {
    let gpu = device.cuda().device();
    let op = RmsNorm::new(hidden, Dtype::F32, 1e-6)?;
    let sets = sets(&op, rows, residual, 40)?;
    // Loading and freeing wait for what runs: all of it comes before or after.
    let mut execution = Execution::new(device, op, &sets[0].0)?;
    let planted = Planted::load(gpu, HOLD)?;
    // All of the shared memory: no second block, and none of ours that needs any.
    let shared_bytes = gpu.properties().shared_bytes_per_block;
    planted.allow_shared(shared_bytes)?;
    let beside = Cuda::on_new_stream(gpu.clone())?;
    let said = Shared::new(gpu, 4 * held as usize)?;
    let word = Shared::new(gpu, 1)?;
    let mut parameters = [said.address, word.address, DEADLINE.as_nanos() as u64];
    // SAFETY: the parameters are the kernel's: 16 bytes a block, a word, nanoseconds. Both live
    // until the kernel has ended, below.
    unsafe { planted.launch(&beside, (held, 1024, shared_bytes), &mut parameters)? };
    let result = steps(device, &mut execution, &op, &sets, rounds, || {
        let begin = Instant::now();
        let started = || (0..held as usize).all(|block| said.get(4 * block) != 0);
        while !started() && begin.elapsed() < START {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let blocks = 0..held as usize;
    let ended_early = blocks.clone().any(|block| said.get(4 * block + 1) != 0);
    let multiprocessors: BTreeSet<u32> = blocks.map(|block| said.get(4 * block)).collect();
    // Let go, whatever came of the steps.
    word.set(0, 1);
    beside.synchronize()?;
    Ok(Beside {
        multiprocessors: multiprocessors.iter().filter(|&&it| it != 0).count() as u32,
        ended_early,
        wrong: result?,
    })
}

/// Steps over changing inputs, once `started`: how many have other bits than golden.
fn steps(
    device: &CudaDevice,
    execution: &mut Execution<'_>,
    op: &RmsNorm,
    sets: &[(
        cake_rmsnorm::inputs::Inputs,
        crate::cli::bench_host::expected::Golden,
    )],
    rounds: u64,
    started: impl FnOnce(),
) -> Result<u64> {
    started();
    let step = step(execution);
    let mut wrong = 0;
    for round in 0..rounds {
        let (inputs, golden) = &sets[(round % SETS) as usize];
        execution.replace_inputs(inputs)?;
        execution.poison(POISON)?;
        // SAFETY: the buffers live, and nobody else uses them until the work has completed.
        unsafe { step.enqueue(op, device.cuda())? };
        device.synchronize()?;
        wrong += u64::from(!golden.is(execution)?);
    }
    Ok(wrong)
}
