//! After a launch that was aborted: whatever it left in the workspace changes no bit, and a process
//! whose context it broke is told so by every call.

#[cfg(feature = "cuda")]
pub mod trap;

use super::finding::Findings;
use super::{Stage, Where, opened};
use crate::cli::bench_host::expected::{Golden, POISON, inputs, step};
use crate::cli::check::execute::Execution;
use crate::cli::error::Result;
use cake_rmsnorm::{Dtype, RmsNorm};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// The job that breaks its context.
#[cfg(feature = "cuda")]
pub const TRAP_JOB: &str = "trap";

/// H, T and form, each with a workspace.
const SHAPES: [(u64, u64, bool); 5] = [
    (256, 600, false),
    (512, 700, true),
    (2048, 1030, false),
    (8192, 1030, true),
    (8200, 1030, false),
];
/// Under the simulator.
const SMALL_SHAPES: [(u64, u64, bool); 1] = [(64, 520, false)];

/// Runs both.
pub fn run(stage: &Stage<'_>, findings: &mut Findings<'_>) -> Result<()> {
    let (mut compared, mut failures) = (0, Vec::new());
    let shapes = match stage.args.device {
        Where::Cuda => &SHAPES[..],
        _ => &SMALL_SHAPES,
    };
    for &shape in shapes {
        for (name, contents) in left_behind() {
            compared += 1;
            if !is_golden_with(stage, shape, &contents)? {
                failures.push(format!("{shape:?}: other bits with a workspace of {name}"));
            }
        }
    }
    findings.judge(
        "workspaces of zeros, ones, NaN, numbers and random bytes, steps against golden",
        [("steps", compared)],
        &failures,
    )?;
    #[cfg(feature = "cuda")]
    if stage.opened.is_gpu() {
        return trap::judge(stage, findings);
    }
    findings.skip("a kernel that traps", opened::NEEDS_GPU)
}

/// What an aborted launch may leave in a workspace.
fn left_behind() -> Vec<(&'static str, Vec<u8>)> {
    let mut random = vec![0; 4093];
    ChaCha8Rng::seed_from_u64(9).fill_bytes(&mut random);
    vec![
        ("zeros", vec![0]),
        ("ones and NaN", vec![0xff]),
        ("quiet NaN", 0x7fc0_0000_u32.to_le_bytes().to_vec()),
        ("signalling NaN", 0x7f80_0001_u32.to_le_bytes().to_vec()),
        ("infinities", f32::INFINITY.to_le_bytes().to_vec()),
        ("numbers", 3.5f32.to_le_bytes().to_vec()),
        ("random bytes", random),
    ]
}

/// Whether a step has golden bits whose workspace held that.
fn is_golden_with(
    stage: &Stage<'_>,
    (hidden, rows, residual): (u64, u64, bool),
    contents: &[u8],
) -> Result<bool> {
    let op = RmsNorm::new(hidden, Dtype::F32, 1e-6)?;
    let inputs = inputs(hidden, rows, residual, 5)?;
    let golden = Golden::of(&op, &inputs)?;
    let device = stage.opened.stream()?;
    let mut execution = Execution::new(&*device, op, &inputs)?;
    execution.poison(POISON)?;
    execution.fill_workspace(contents)?;
    // SAFETY: the buffers live, and nobody else uses them until the work has completed.
    unsafe { step(&execution).enqueue(&op, device.backend())? };
    device.synchronize()?;
    golden.is(&mut execution)
}
