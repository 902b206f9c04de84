//! Graphs that are captured once and replayed over changing contents.

use super::Stage;
use super::finding::Findings;
use super::shape::{Sets, Shape, Steps, gate_first, norm_first, plain, residual};
use crate::cli::device::Device as _;
use crate::cli::device::cuda::CudaDevice;
use crate::cli::error::Result;
use std::time::{Duration, Instant};

/// Every family of programs of a backward: warp, block and wide, with and without a reduce.
const SHAPES: [Shape; 12] = [
    plain(4096, 96),
    plain(512, 600),
    residual(512, 600),
    residual(1536, 520),
    plain(256, 4100),
    residual(5632, 300),
    residual(8200, 520),
    norm_first(128, 1, 16_400),
    gate_first(256, 2, 600),
    norm_first(512, 1, 1030),
    gate_first(4096, 1, 300),
    norm_first(8192, 1, 96),
];
/// Replays of each graph.
const REPLAYS: u64 = 1000;

/// Runs them.
pub(super) fn run(
    device: &CudaDevice,
    stage: &Stage<'_>,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let replays = stage.count(REPLAYS, 1);
    stage.progress.expect(replays * SHAPES.len() as u64);
    for shape in SHAPES {
        let (wrong, _) = replay(device, shape, replays, || stage.progress.advance(1))?;
        let failures = (wrong > 0).then(|| format!("{wrong} replays with other bits than golden"));
        findings.judge(
            &format!(
                "a captured step (two forwards, a backward), {shape}, replayed over changing inputs"
            ),
            [("replays", replays)],
            &Vec::from_iter(failures),
        )?;
    }
    Ok(())
}

/// A step of a shape, captured before anything of it ran, and replayed over changing inputs: replays
/// with other bits than golden, and how long the capture took.
pub fn replay(
    device: &CudaDevice,
    shape: Shape,
    replays: u64,
    replayed: impl Fn(),
) -> Result<(u64, Duration)> {
    let sets = Sets::new(shape, 0)?;
    // Prepares the operator: a capture loads nothing.
    let mut steps = Steps::new(device, &sets)?;
    let start = Instant::now();
    let graph = steps.capture(device.cuda())?;
    let captured = start.elapsed();
    let mut wrong = 0;
    for replay in 0..replays {
        // Copies of the inputs go through the default stream.
        steps.begin(replay)?;
        // SAFETY: the buffers live, and nobody uses them until the work has completed.
        unsafe { graph.launch(device.cuda())? };
        device.synchronize()?;
        wrong += u64::from(!steps.is_golden(replay)?);
        replayed();
    }
    Ok((wrong, captured))
}
