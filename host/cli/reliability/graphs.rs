//! Graphs that are captured once and replayed over changing contents.

use super::Stage;
use super::finding::Findings;
use crate::cli::bench_host::streams::{SHAPES, replay};
use crate::cli::device::cuda::CudaDevice;
use crate::cli::error::Result;

/// Replays of each graph.
const REPLAYS: u64 = 1000;

/// Runs them.
pub fn run(device: &CudaDevice, stage: &Stage<'_>, findings: &mut Findings<'_>) -> Result<()> {
    let replays = stage.count(REPLAYS, 1) as u32;
    for shape in SHAPES {
        let (hidden, rows, residual) = shape;
        let (wrong, _) = replay(device, shape, replays)?;
        let failures = (wrong > 0).then(|| format!("{wrong} replays with other bits than golden"));
        findings.judge(
            &format!(
                "a captured step (two forwards, a backward), H {hidden}, T {rows}, residual \
                 {residual}, replayed over changing inputs"
            ),
            [("replays", u64::from(replays))],
            &failures.into_iter().collect::<Vec<_>>(),
        )?;
    }
    Ok(())
}
