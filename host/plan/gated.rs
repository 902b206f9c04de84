//! Plans of the gated form.

use super::backward::{REDUCE_THREADS, chunk_log2, fits};
use super::{DeviceProperties, Launch, LeafTable, Spacing, check_rows, entry};
use crate::error::Result;
use crate::gated::{GateOrder, GatedRmsNorm};
use cake_rmsnorm_kernels::arith::TILE;
use cake_rmsnorm_kernels::backward::{reduce, split};
use cake_rmsnorm_kernels::contract::Program;
use cake_rmsnorm_kernels::gated::backward::{block_shared_bytes, warp_shared_bytes};
use cake_rmsnorm_kernels::gated::backward_pairs::shared_bytes as pairs_shared_bytes;
use cake_rmsnorm_kernels::gated::gate::Table;
use cake_rmsnorm_kernels::leaf::gated_leaf_rows;
use cake_rmsnorm_kernels::row_sum::SCRATCH_BYTES;

/// What a gated forward launches.
#[derive(Clone, Copy, Debug)]
pub struct GatedForwardPlan {
    /// `None` when there are no rows.
    pub launch: Option<Launch>,
}

/// What a gated backward launches.
#[derive(Clone, Copy, Debug)]
pub struct GatedBackwardPlan {
    /// dx, dz and the nodes of dw; `None` when there are no rows.
    pub main: Option<Launch>,
    /// dw from the nodes; `None` where it is not wanted.
    pub reduce: Option<Launch>,
    /// Leaves and runs.
    pub leaf: LeafTable,
    /// log₂ of the nodes that one thread of the reduce folds.
    pub chunk_log2: u32,
    /// Bytes of scratch memory: 8·H for each node.
    pub workspace_bytes: u64,
}

/// Widest group of the programs in which lanes of a warp share a row: lanes and vectors of each.
const FORWARD_WARP: &[(u32, u32, u32)] = &[(64, 8, 1), (128, 16, 1), (256, 32, 1), (512, 32, 2)];
const BACKWARD_WARP: &[(u32, u32, u32)] = &[(64, 8, 1), (128, 16, 1), (256, 32, 1)];
/// Threads of their blocks.
const WARP_THREADS: u32 = 256;
/// Widest group of a block with one vector a thread; beyond, two.
const BLOCK_ONE_VECTOR: u32 = 4096;
/// Rows of a multiprocessor from which a table of sigmoids pays.
const FORWARD_PAIRS_FROM: u64 = 62;
const BACKWARD_PAIRS_FROM: u64 = 124;
/// Rows of a multiprocessor from which those of [`Program::GatedForwardFlat`] have no more to gain.
const FLAT_BELOW: u64 = 500;
/// Threads of the blocks that share one.
const FLAT_THREADS: u32 = 256;
const FORWARD_PAIRS_THREADS: u32 = 320;
const BACKWARD_PAIRS_THREADS: u32 = 512;
/// Rows of a multiprocessor from which blocks end before their share of all rows is done, and others
/// take over: those that stay drift apart, and memory is slower the wider their rows lie.
const SHORT_BLOCKS_FROM: u64 = 12_000;
/// How many of them follow each other.
const SHORT_BLOCKS: u32 = 16;
/// Threads of a multiprocessor, as far as registers go.
const FLAT_RESIDENT: u32 = 1024;
const FORWARD_THREADS: u32 = 768;
const BACKWARD_THREADS: u32 = 512;
/// What folding a block's positions costs, in rows of a position.
const FOLD_ROWS: u64 = 1;
/// Nodes that the reduce folds quickly, and on any device.
const MAX_NODES: u32 = 2048;
/// Most leaves of a position between two folds of a block (log₂).
const MAX_SHARE_LOG2: u32 = 3;
/// Most rows of a position between two folds with so many: an H200 reads longer shares no faster, or
/// more slowly.
const LONG_SHARE_ROWS: u64 = 128;

/// Threads and vectors of a block that has a row.
fn row_block(width: u32) -> (u32, u32) {
    let vectors = if width <= BLOCK_ONE_VECTOR { 1 } else { 2 };
    (32 * width.div_ceil(TILE * vectors), vectors)
}

/// Whether each multiprocessor of `device` has `some` of `rows` rows.
fn each_has(some: u64, rows: u64, device: &DeviceProperties) -> bool {
    rows >= some * u64::from(device.multiprocessors())
}

/// Plans a forward of `op` over `rows` rows that lie as `spacing` says.
///
/// # Errors
/// - [`crate::Error::TooManyRows`]; [`crate::Error::UnsupportedDevice`].
pub fn gated_forward(
    op: &GatedRmsNorm,
    rows: u64,
    spacing: Spacing,
    device: &DeviceProperties,
) -> Result<GatedForwardPlan> {
    check_rows(rows)?;
    device.check()?;
    if rows == 0 {
        return Ok(GatedForwardPlan { launch: None });
    }
    let (width, order) = (op.width() as u32, op.order());
    let warp = FORWARD_WARP.iter().find(|(widest, ..)| width <= *widest);
    let flat = spacing == Spacing::Even && op.groups() == 1 && !each_has(FLAT_BELOW, rows, device);
    let (program, block, rows_of_block, shared_bytes) = match warp {
        Some(&(widest, lanes, 1)) if flat && width == widest => {
            let program = Program::GatedForwardFlat { order, lanes };
            (
                program,
                FLAT_THREADS,
                2 * (FLAT_THREADS / lanes),
                Table::BYTES,
            )
        }
        Some(&(_, lanes, 1)) if each_has(FORWARD_PAIRS_FROM, rows, device) => {
            let program = Program::GatedForwardPairs { order, lanes };
            let pairs = FORWARD_PAIRS_THREADS / lanes;
            (program, FORWARD_PAIRS_THREADS, 2 * pairs, Table::BYTES)
        }
        Some(&(_, lanes, vectors)) => {
            let program = Program::GatedForwardWarp {
                order,
                lanes,
                vectors,
            };
            (program, WARP_THREADS, WARP_THREADS / lanes, 0)
        }
        None => {
            let (threads, vectors) = row_block(width);
            let program = Program::GatedForwardBlock { order, vectors };
            (program, threads, 1, SCRATCH_BYTES)
        }
    };
    let units = rows.div_ceil(u64::from(rows_of_block));
    let pairs = matches!(program, Program::GatedForwardPairs { .. });
    let following = if pairs && each_has(SHORT_BLOCKS_FROM, rows, device) {
        SHORT_BLOCKS
    } else {
        1
    };
    let threads = match program {
        Program::GatedForwardFlat { .. } => FLAT_RESIDENT,
        _ => FORWARD_THREADS,
    };
    let resident = device.multiprocessors() * (threads / block).max(1);
    // Blocks that share a group.
    let share = (following * resident).div_ceil(op.groups() as u32);
    let grid = units.clamp(1, u64::from(share)) as u32 * op.groups() as u32;
    let launch = Launch {
        kernel: entry(program, Some(op.weight_type()), false)?,
        grid,
        block,
        shared_bytes,
        dependent: true,
    };
    Ok(GatedForwardPlan {
        launch: Some(launch),
    })
}

/// Plans a backward of `op` over `rows` rows; `dw` says whether dw is wanted.
///
/// # Errors
/// - [`crate::Error::TooManyRows`]; [`crate::Error::UnsupportedDevice`];
///   [`crate::Error::SharedMemory`].
pub fn gated_backward(
    op: &GatedRmsNorm,
    rows: u64,
    dw: bool,
    device: &DeviceProperties,
) -> Result<GatedBackwardPlan> {
    check_rows(rows)?;
    device.check()?;
    let (width, order) = (op.width() as u32, op.order());
    let leaf_rows = gated_leaf_rows(rows, width);
    let mut leaf = LeafTable {
        leaf_log2: leaf_rows.trailing_zeros(),
        leaves: rows.div_ceil(leaf_rows) as u32,
        run_log2: 0,
    };
    let main = match rows {
        0 => None,
        _ => Some(main(op, order, width, rows, &mut leaf, device)?),
    };
    let hidden = op.hidden() as u32;
    // A thread loads four nodes at once: with eight for each, twice the threads spare a wait.
    let reduce_threads = if chunk_log2(leaf.runs(), REDUCE_THREADS) == 3 {
        2 * REDUCE_THREADS
    } else {
        REDUCE_THREADS
    };
    let chunk_log2 = chunk_log2(leaf.runs(), reduce_threads);
    let reduce = Launch {
        kernel: entry(Program::Reduce, None, false)?,
        grid: split::column_tasks(hidden),
        block: reduce_threads,
        shared_bytes: reduce::shared_bytes(reduce_threads, chunk_log2),
        dependent: true,
    };
    fits(reduce.shared_bytes, device)?;
    let nodes = if dw { u64::from(leaf.runs()) } else { 0 };
    Ok(GatedBackwardPlan {
        main,
        reduce: dw.then_some(reduce),
        leaf,
        chunk_log2,
        workspace_bytes: nodes * 8 * u64::from(hidden),
    })
}

/// The launch that reads dy, x and z; chooses the size of runs.
fn main(
    op: &GatedRmsNorm,
    order: GateOrder,
    width: u32,
    rows: u64,
    leaf: &mut LeafTable,
    device: &DeviceProperties,
) -> Result<Launch> {
    let room = |lanes: u32| {
        let positions = BACKWARD_PAIRS_THREADS / lanes;
        let bytes = pairs_shared_bytes(BACKWARD_PAIRS_THREADS, positions, positions.ilog2());
        bytes <= device.shared_bytes_per_block
    };
    let warp = BACKWARD_WARP.iter().find(|(widest, ..)| width <= *widest);
    let (program, block, positions, shared) = match warp {
        Some(&(_, lanes, _))
            if leaf.leaf_log2 > 0 && each_has(BACKWARD_PAIRS_FROM, rows, device) && room(lanes) =>
        {
            let program = Program::GatedBackwardPairs { order, lanes };
            let positions = BACKWARD_PAIRS_THREADS / lanes;
            let shared: Box<dyn Fn(u32) -> u32> =
                Box::new(move |r| pairs_shared_bytes(BACKWARD_PAIRS_THREADS, positions, r));
            (program, BACKWARD_PAIRS_THREADS, positions, shared)
        }
        Some(&(_, lanes, vectors)) => {
            let program = Program::GatedBackwardWarp {
                order,
                lanes,
                vectors,
            };
            let positions = WARP_THREADS / lanes;
            let shared: Box<dyn Fn(u32) -> u32> =
                Box::new(move |r| warp_shared_bytes(vectors, WARP_THREADS, positions, r));
            (program, WARP_THREADS, positions, shared)
        }
        None => {
            let (threads, vectors) = row_block(width);
            let program = Program::GatedBackwardBlock { order, vectors };
            let shared: Box<dyn Fn(u32) -> u32> =
                Box::new(move |r| block_shared_bytes(vectors, threads, r));
            (program, threads, 1, shared)
        }
    };
    let resident = device.multiprocessors() * (BACKWARD_THREADS / block).max(1);
    let share = resident.div_ceil(op.groups() as u32);
    // Larger runs mean fewer folds and fewer nodes, but a last round in which blocks idle.
    let smallest = positions.ilog2();
    let fits_in = |run_log2: u32| shared(run_log2) <= device.shared_bytes_per_block;
    let with = |run_log2: u32| LeafTable { run_log2, ..*leaf };
    let few_enough = |run_log2: u32| with(run_log2).runs() <= MAX_NODES;
    let share_rows = |run_log2: u32| 1u64 << (run_log2 - smallest + leaf.leaf_log2);
    let cost = |run_log2: u32| {
        let rounds = u64::from(with(run_log2).runs().div_ceil(share));
        rounds * (share_rows(run_log2) + FOLD_ROWS)
    };
    let short = |size: u32| size < smallest + MAX_SHARE_LOG2 || share_rows(size) <= LONG_SHARE_ROWS;
    let sizes = smallest..=smallest + MAX_SHARE_LOG2;
    let best = sizes
        .filter(|&size| fits_in(size) && few_enough(size) && short(size))
        .min_by_key(|&size| cost(size));
    let mut run_log2 = best.unwrap_or(smallest);
    while !few_enough(run_log2) && fits_in(run_log2 + 1) {
        run_log2 += 1;
    }
    leaf.run_log2 = run_log2;
    let shared_bytes = shared(leaf.run_log2);
    fits(shared_bytes, device)?;
    Ok(Launch {
        kernel: entry(program, Some(op.weight_type()), false)?,
        grid: leaf.runs().min(share) * op.groups() as u32,
        block,
        shared_bytes,
        dependent: true,
    })
}
