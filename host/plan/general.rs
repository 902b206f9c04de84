//! Plans of the kernels that take any type, alignment and width.

use super::backward::{BackwardPlan, LeafTable, fits, with_reduce};
use super::{DeviceProperties, Gradients, Launch, entry};
use crate::error::Result;
use cake_rmsnorm_kernels::arith::TILE;
use cake_rmsnorm_kernels::contract::Program;
use cake_rmsnorm_kernels::general::{self, SCRATCH_BYTES};

/// Warps of a block, at most, and threads that a multiprocessor's registers hold.
const FORWARD: (u32, u32) = (16, 1024);
const BACKWARD: (u32, u32) = (8, 768);
/// Longest runs of leaves, as log₂.
const MAX_RUN_LOG2: u32 = 5;
/// Runs that each resident block should have, so that they finish together.
const RUNS_PER_BLOCK: u64 = 2;

/// More runs are too many nodes for a reduce with little shared memory.
const MAX_RUNS: u64 = 2048;

/// Threads of a block: a warp a tile, or fewer warps that take as many tiles each.
fn threads(hidden: u32, max_warps: u32) -> u32 {
    let tiles = hidden.div_ceil(TILE);
    let turns = tiles.div_ceil(max_warps);
    32 * tiles.div_ceil(turns)
}

pub(super) fn forward(hidden: u32, rows: u64, device: &DeviceProperties) -> Result<Launch> {
    fits(SCRATCH_BYTES, device)?;
    let (max_warps, resident_threads) = FORWARD;
    let block = threads(hidden, max_warps);
    let resident = u64::from(device.multiprocessors() * (resident_threads / block));
    Ok(Launch {
        kernel: entry(Program::GeneralForward, None, false)?,
        grid: rows.min(resident) as u32,
        block,
        shared_bytes: SCRATCH_BYTES,
        dependent: true,
    })
}

pub(super) fn backward(
    hidden: u32,
    rows: u64,
    gradients: Gradients,
    device: &DeviceProperties,
) -> Result<BackwardPlan> {
    fits(SCRATCH_BYTES, device)?;
    let (max_warps, resident_threads) = BACKWARD;
    let block = threads(hidden, max_warps);
    let available = device.shared_bytes_per_block;
    let with_sums = |run_log2| general::backward::shared_bytes(hidden, block, run_log2);
    let sums_in_shared = with_sums(0) <= available;
    let shared = |run_log2| {
        if sums_in_shared {
            with_sums(run_log2)
        } else {
            SCRATCH_BYTES
        }
    };
    // Of a multiprocessor's shared memory a block may have nearly all.
    let blocks_per_sm = (resident_threads / block).min(available / shared(0));
    let resident = device.multiprocessors() * blocks_per_sm;
    let leaves = u64::from(LeafTable::new(rows, hidden, 0).leaves);
    let busy = |run_log2: u32| leaves >> run_log2 >= RUNS_PER_BLOCK * u64::from(resident);
    let roomy = |run_log2| blocks_per_sm * with_sums(run_log2) <= available;
    let many = |run_log2: u32| leaves >> run_log2 >= MAX_RUNS;
    let run_log2 = (1..=MAX_RUN_LOG2)
        .take_while(|&r| sums_in_shared && with_sums(r) <= available)
        .take_while(|&r| many(r - 1) || (busy(r) && roomy(r)))
        .last()
        .unwrap_or(0);
    let leaf = LeafTable::new(rows, hidden, run_log2);
    let main = Launch {
        kernel: entry(Program::GeneralBackward, None, false)?,
        grid: leaf.runs().min(resident),
        block,
        shared_bytes: shared(run_log2),
        dependent: true,
    };
    let plan = with_reduce(main, leaf, hidden, gradients, device)?;
    Ok(BackwardPlan {
        sums_in_shared,
        ..plan
    })
}
