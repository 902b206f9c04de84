//! The backward's plan.

use super::{
    Alignment, BackwardForm, DeviceProperties, Gradients, Launch, Rstd, check_rows, entry, forward,
    general, routes,
};
use crate::error::{Error, Result};
use crate::op::RmsNorm;
use cake_rmsnorm_kernels::arith::TILE;
use cake_rmsnorm_kernels::backward::{block, reduce, split, warp, wide};
use cake_rmsnorm_kernels::contract::{Program, WeightType};
use cake_rmsnorm_kernels::leaf;
use cake_rmsnorm_kernels::row_sum::SCRATCH_BYTES;
use cake_rmsnorm_kernels::tree;

/// How dw is summed: leaves of rows, runs of leaves. The leaves are part of the numerics contract
/// and depend on T and H alone; runs are a choice that changes no bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafTable {
    /// log₂ of the rows of a leaf.
    pub leaf_log2: u32,
    /// Leaves.
    pub leaves: u32,
    /// log₂ of the leaves that one worker folds before it stores a node.
    pub run_log2: u32,
}

impl LeafTable {
    pub(super) fn new(rows: u64, hidden: u32, run_log2: u32) -> Self {
        Self {
            leaf_log2: leaf::leaf_rows(rows, hidden).trailing_zeros(),
            leaves: leaf::leaf_count(rows, hidden) as u32,
            run_log2,
        }
    }

    /// Rows of a leaf.
    #[must_use]
    pub fn leaf_rows(&self) -> u64 {
        1 << self.leaf_log2
    }

    /// Runs, the last one perhaps incomplete: as many nodes are stored.
    #[must_use]
    pub fn runs(&self) -> u32 {
        self.leaves.div_ceil(1 << self.run_log2)
    }
}

/// What a backward launches.
#[derive(Clone, Copy, Debug)]
pub struct BackwardPlan {
    /// rstd, where it was not kept: a forward without y, whose rstd goes to the workspace.
    pub statistics: Option<Launch>,
    /// dx, and dw or its nodes; `None` when there are no rows.
    pub main: Option<Launch>,
    /// dw from the nodes; `None` where `main` writes dw, or it is not wanted.
    pub reduce: Option<Launch>,
    /// Leaves and runs.
    pub leaf: LeafTable,
    /// log₂ of the nodes that one thread of the reduce folds.
    pub chunk_log2: u32,
    /// Bytes of scratch memory: 8·H for each node (H rounded up to a multiple of 8), and 4·T for
    /// rstd where it was not kept.
    pub workspace_bytes: u64,
    /// Bytes of the nodes, behind which rstd lies.
    pub node_bytes: u64,
    /// Whether [`Program::GeneralBackward`] keeps its running sums in shared memory.
    pub sums_in_shared: bool,
}

impl BackwardPlan {
    /// Nothing to launch.
    const EMPTY: BackwardPlan = BackwardPlan {
        statistics: None,
        main: None,
        reduce: None,
        leaf: LeafTable {
            leaf_log2: 0,
            leaves: 0,
            run_log2: 0,
        },
        chunk_log2: 0,
        workspace_bytes: 0,
        node_bytes: 0,
        sums_in_shared: false,
    };
}

/// Plans a backward of `op` over `rows` rows.
///
/// # Errors
/// - [`Error::TooManyRows`]; [`Error::UnsupportedDevice`]; [`Error::SharedMemory`].
pub fn backward(
    op: &RmsNorm,
    rows: u64,
    form: BackwardForm,
    device: &DeviceProperties,
) -> Result<BackwardPlan> {
    check_rows(rows)?;
    device.check()?;
    let mut plan = if rows == 0 {
        without_rows(op.hidden() as u32, form.gradients, device)?
    } else {
        let mut plan = gradients(op, rows, form, device)?;
        if form.rstd == Rstd::Recomputed {
            plan.statistics = Some(forward::statistics(op, rows, form.alignment, device)?);
        }
        plan
    };
    plan.node_bytes = match plan.reduce {
        Some(_) => {
            u64::from(plan.leaf.runs()) * 8 * u64::from(tree::node_columns(op.hidden() as u32))
        }
        None => 0,
    };
    let rstd_bytes = match plan.statistics {
        Some(_) => 4 * rows,
        None => 0,
    };
    plan.workspace_bytes = plan.node_bytes + rstd_bytes;
    Ok(plan)
}

/// dw of no rows: the reduce of no nodes.
fn without_rows(
    hidden: u32,
    gradients: Gradients,
    device: &DeviceProperties,
) -> Result<BackwardPlan> {
    if gradients == Gradients::Input {
        return Ok(BackwardPlan::EMPTY);
    }
    let reduce = Launch {
        dependent: false,
        ..reduce_launch(hidden, 0, device)?
    };
    Ok(BackwardPlan {
        reduce: Some(reduce),
        ..BackwardPlan::EMPTY
    })
}

/// dx and dw from rstd.
fn gradients(
    op: &RmsNorm,
    rows: u64,
    form: BackwardForm,
    device: &DeviceProperties,
) -> Result<BackwardPlan> {
    let hidden = op.hidden() as u32;
    let general = || general::backward(hidden, rows, form.gradients, device);
    let (Some(weight), Alignment::Vector) = (op.fast_weight(), form.alignment) else {
        return general();
    };
    // In place, dw must not be summed from rows that others have overwritten.
    let beside = form.gradients != Gradients::Both || !form.in_place;
    // In the window the split program's column tasks have a leaf a position, and their second read
    // comes from L2.
    if rows > leaf::window_rows(hidden) || !beside {
        let serves = |max_hidden: u32, program: Program| {
            let warp = matches!(program, Program::BackwardWarp { .. });
            hidden <= max_hidden && (warp || !form.grouped && form.gradients != Gradients::Input)
        };
        // The first is meant for the width; a device with little shared memory takes a wider one.
        let plan = routes::BACKWARD.iter().find_map(|&(max_hidden, program)| {
            let plan = |()| single_read(hidden, weight, rows, form, device, program).ok();
            serves(max_hidden, program).then_some(()).and_then(plan)
        });
        if let Some(plan) = plan {
            return Ok(plan);
        }
        // Reading rows twice or thrice for dw is worse than what takes everything.
        if !beside || form.grouped && form.gradients != Gradients::Input {
            return general();
        }
    }
    split_plan(hidden, weight, rows, form, device)
}

/// One launch: column tasks beside row tasks, or either alone.
fn split_plan(
    hidden: u32,
    weight: WeightType,
    rows: u64,
    form: BackwardForm,
    device: &DeviceProperties,
) -> Result<BackwardPlan> {
    let tiles = hidden.div_ceil(TILE);
    let small = rows <= routes::SPLIT_SMALL_BLOCK_MAX_ROWS && hidden <= 4096;
    let threads = match form.gradients {
        // As many as the row has work for.
        Gradients::Input if tiles <= 16 => 32 * tiles,
        Gradients::Input if tiles <= 32 => 16 * tiles.next_multiple_of(2),
        _ if small => 256,
        _ => 512,
    };
    let leaves = LeafTable::new(rows, hidden, 0).leaves;
    let leaf_a_position = form.gradients == Gradients::Input || leaves <= threads / tree::WIDTH;
    let program = match tiles.div_ceil(threads / 32) {
        1 if leaf_a_position => Program::BackwardSplit { vectors: 1 },
        2 if leaf_a_position => Program::BackwardSplit { vectors: 2 },
        _ => Program::BackwardSplitWide,
    };
    let leaf = LeafTable::new(rows, hidden, chunk_log2(leaves, threads));
    let shared_bytes = match form.gradients {
        Gradients::Input => SCRATCH_BYTES,
        _ => reduce::shared_bytes(threads, leaf.run_log2).max(SCRATCH_BYTES),
    };
    fits(shared_bytes, device)?;
    let row_blocks = match (form.gradients, program) {
        (Gradients::Weight, _) => 0,
        // Row tasks beyond what is resident are taken in turns.
        (_, Program::BackwardSplitWide) => rows.min(u64::from(device.multiprocessors()) * 8),
        _ => rows,
    };
    let column_blocks = match form.gradients {
        Gradients::Input => 0,
        _ => split::column_tasks(hidden),
    };
    let main = Launch {
        kernel: entry(program, Some(weight), form.residual),
        grid: column_blocks + row_blocks as u32,
        block: threads,
        shared_bytes,
        dependent: false,
    };
    Ok(BackwardPlan {
        main: Some(main),
        leaf,
        ..BackwardPlan::EMPTY
    })
}

/// A main launch that reads x and dy once, then the reduce.
fn single_read(
    hidden: u32,
    weight: WeightType,
    rows: u64,
    form: BackwardForm,
    device: &DeviceProperties,
    program: Program,
) -> Result<BackwardPlan> {
    let residual = form.residual;
    let program = match program {
        Program::BackwardWarp {
            vectors, stages, ..
        } => Program::BackwardWarp {
            vectors,
            stages,
            grouped: form.grouped,
        },
        other => other,
    };
    let workers = device.multiprocessors();
    let (block, smallest_run) = match program {
        Program::BackwardWarp { vectors, .. } => {
            let (warps, _) = routes::backward_warps(vectors);
            (32 * warps, warps.ilog2())
        }
        Program::BackwardBlock { vectors, .. } => {
            let group = block::group_threads(vectors, hidden);
            let groups_log2 = (routes::BACKWARD_BLOCK_THREADS / group).clamp(1, 8).ilog2();
            (group << groups_log2, groups_log2)
        }
        _ => (32 * hidden.div_ceil(TILE * wide::VECTORS as u32), 0),
    };
    let shared = |run_log2| shared_bytes(program, residual, hidden, block, run_log2);
    let run_log2 = match program {
        Program::BackwardBlock { .. } => {
            let available = device.shared_bytes_per_block;
            best_run(rows, hidden, workers, smallest_run, |r| {
                shared(r) <= available
            })
        }
        _ => smallest_run,
    };
    fits(shared(run_log2), device)?;
    let leaf = LeafTable::new(rows, hidden, run_log2);
    let blocks = match program {
        Program::BackwardWarp { vectors, .. } => routes::backward_warps(vectors).1,
        _ => 1,
    };
    let main = Launch {
        kernel: entry(program, Some(weight), residual),
        grid: leaf.runs().min(workers * blocks),
        block,
        shared_bytes: shared(run_log2),
        dependent: false,
    };

    with_reduce(main, leaf, hidden, form.gradients, device)
}

/// `main`, which stores a node for each run, and the reduce, if dw is wanted.
pub(super) fn with_reduce(
    main: Launch,
    leaf: LeafTable,
    hidden: u32,
    gradients: Gradients,
    device: &DeviceProperties,
) -> Result<BackwardPlan> {
    let plan = BackwardPlan {
        main: Some(main),
        leaf,
        ..BackwardPlan::EMPTY
    };
    if gradients == Gradients::Input {
        return Ok(plan);
    }
    Ok(BackwardPlan {
        reduce: Some(reduce_launch(hidden, leaf.runs(), device)?),
        chunk_log2: chunk_log2(leaf.runs(), REDUCE_THREADS),
        ..plan
    })
}

/// dw from `nodes` nodes.
fn reduce_launch(hidden: u32, nodes: u32, device: &DeviceProperties) -> Result<Launch> {
    let shared_bytes = reduce::shared_bytes(REDUCE_THREADS, chunk_log2(nodes, REDUCE_THREADS));
    fits(shared_bytes, device)?;
    Ok(Launch {
        kernel: entry(Program::Reduce, None, false),
        grid: split::column_tasks(hidden),
        block: REDUCE_THREADS,
        shared_bytes,
        dependent: true,
    })
}

/// Threads of the reduce.
pub(super) const REDUCE_THREADS: u32 = 256;

fn shared_bytes(program: Program, residual: bool, hidden: u32, block: u32, run_log2: u32) -> u32 {
    match program {
        Program::BackwardWarp {
            vectors, stages, ..
        } => warp::shared_bytes(vectors, stages, residual, block),
        Program::BackwardBlock {
            vectors,
            rows,
            stages,
        } => {
            let group = block::group_threads(vectors, hidden);
            block::shared_bytes(
                vectors,
                rows,
                stages,
                residual,
                group,
                block / group,
                run_log2,
            )
        }
        _ => wide::shared_bytes(block),
    }
}

pub(super) fn fits(needed: u32, device: &DeviceProperties) -> Result<()> {
    let found = device.shared_bytes_per_block;
    if needed > found {
        Err(Error::SharedMemory { needed, found })
    } else {
        Ok(())
    }
}

/// Chunks such that the positions of a block of `threads` threads cover `nodes` nodes.
pub(super) fn chunk_log2(nodes: u32, threads: u32) -> u32 {
    let positions = threads / tree::WIDTH;
    nodes
        .div_ceil(positions)
        .next_power_of_two()
        .trailing_zeros()
}

/// The run size that finishes first: the rows of the busiest worker, and the traffic of the
/// nodes (written and read, mostly within L2: half weight).
fn best_run(
    rows: u64,
    hidden: u32,
    workers: u32,
    smallest: u32,
    fits: impl Fn(u32) -> bool,
) -> u32 {
    let cost = |run_log2: u32| {
        let leaf = LeafTable::new(rows, hidden, run_log2);
        let rounds = u64::from(leaf.runs().div_ceil(workers));
        let busiest = rounds << (run_log2 + leaf.leaf_log2);
        6 * busiest * u64::from(workers) + 8 * u64::from(leaf.runs())
    };
    let candidates = (smallest..=smallest + 4).filter(|&r| r == smallest || fits(r));
    candidates.min_by_key(|&r| cost(r)).unwrap_or(smallest)
}
