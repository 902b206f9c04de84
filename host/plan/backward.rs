//! The backward's plan.

use super::choice::Choice;
use super::routes::{Call, Origin, Route, Routes};
use super::{
    Alignment, BackwardForm, DeviceProperties, Gradients, Launch, Rstd, check_launch, check_rows,
    entry, forward, general, keeps, not_kept, routes,
};
use crate::error::{Error, Result};
use crate::op::RmsNorm;
use cake_rmsnorm_kernels::arith::TILE;
use cake_rmsnorm_kernels::backward::{block, reduce, split, warp, wide};
use cake_rmsnorm_kernels::contract::Program;
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
        let leaf_rows = leaf::leaf_rows(rows, hidden);
        Self {
            leaf_log2: leaf_rows.trailing_zeros(),
            leaves: rows.div_ceil(leaf_rows) as u32,
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
    pub(super) const EMPTY: BackwardPlan = BackwardPlan {
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

    fn size_workspace(&mut self, hidden: u32, rows: u64) {
        self.node_bytes = match self.reduce {
            Some(_) => u64::from(self.leaf.runs()) * 8 * u64::from(tree::node_columns(hidden)),
            None => 0,
        };
        let rstd_bytes = match self.statistics {
            Some(_) => 4 * rows,
            None => 0,
        };
        self.workspace_bytes = self.node_bytes + rstd_bytes;
    }
}

/// Plans a backward of `op` over `rows` rows by the built-in routes.
///
/// # Errors
/// - [`Error::TooManyRows`]; [`Error::UnsupportedDevice`]; [`Error::SharedMemory`].
pub fn backward(
    op: &RmsNorm,
    rows: u64,
    form: BackwardForm,
    device: &DeviceProperties,
) -> Result<BackwardPlan> {
    backward_by(Routes::built_in(), op, rows, form, device)
}

/// As [`backward`], by other routes. They are for rows whose types, width and alignment the fast
/// kernels take; one gradient alone, rows in groups and dx in place of an input leave fewer
/// programs.
///
/// # Errors
/// - As [`backward`].
pub fn backward_by(
    routes: &Routes,
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
        let mut plan = gradients(routes, op, rows, form, device)?;
        if form.rstd == Rstd::Recomputed {
            plan.statistics = forward::statistics(op, rows, form.alignment, device)?;
        }
        plan
    };
    plan.size_workspace(op.hidden() as u32, rows);
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
    routes: &Routes,
    op: &RmsNorm,
    rows: u64,
    form: BackwardForm,
    device: &DeviceProperties,
) -> Result<BackwardPlan> {
    let hidden = op.hidden() as u32;
    let general = || general::backward(hidden, rows, form.gradients, device);
    let (Ok(call), Alignment::Vector) = (op.call(rows, form.residual), form.alignment) else {
        return general();
    };
    if form.gradients == Gradients::Both && !form.in_place && !form.grouped {
        let (plan, ..) = route(routes, &call, device)?;
        return Ok(plan);
    }
    // In place, dw must not be summed from rows that others have overwritten.
    let beside = form.gradients != Gradients::Both || !form.in_place;
    // In the window the split program's column tasks have a leaf a position, and their second read
    // comes from L2.
    if rows > leaf::window_rows(hidden) || !beside {
        let serves = |program: Program| match program {
            Program::BackwardWarp { .. } => true,
            Program::BackwardBlock { .. } | Program::BackwardWide => {
                !form.grouped && form.gradients != Gradients::Input
            }
            _ => false,
        };
        // The first is meant for the width; a device with little shared memory takes a wider one.
        let held = routes
            .backwards()
            .filter(|(route, _)| route.window.holds_shape(&call) && serves(route.choice.program));
        let mut plans = held.map(|(route, _)| {
            single_read(
                &in_form(route.choice, form.grouped),
                &call,
                form.gradients,
                device,
            )
        });
        if let Some(plan) = plans.find_map(Result::ok) {
            return Ok(plan);
        }
        // Reading rows twice or thrice for dw is worse than what takes everything.
        if !beside || form.grouped && form.gradients != Gradients::Input {
            return general();
        }
    }
    split_plan(&call, form, device)
}

/// The choice whose program takes rows in groups, if they come so.
fn in_form(choice: Choice, grouped: bool) -> Choice {
    let program = match choice.program {
        Program::BackwardWarp {
            vectors, stages, ..
        } => Program::BackwardWarp {
            vectors,
            stages,
            grouped,
        },
        other => other,
    };
    Choice { program, ..choice }
}

/// The plan of a call with rows, and the route that made it.
pub(super) fn route<'a>(
    routes: &'a Routes,
    call: &Call,
    device: &DeviceProperties,
) -> Result<(BackwardPlan, &'a Route, Origin<'a>)> {
    routes::first(routes.backwards(), call, device, chosen)
}

/// The plan of a choice, if call and device keep its contract.
pub(super) fn chosen(
    choice: &Choice,
    call: &Call,
    device: &DeviceProperties,
) -> Result<BackwardPlan> {
    let mut plan = match choice.program {
        Program::BackwardSplit { .. } | Program::BackwardSplitWide => split(choice, call, device)?,
        Program::BackwardWarp { .. } | Program::BackwardBlock { .. } | Program::BackwardWide => {
            single_read(choice, call, Gradients::Both, device)?
        }
        _ => return Err(not_kept(choice, "it is no backward")),
    };
    plan.size_workspace(call.hidden, call.rows);
    Ok(plan)
}

/// One launch: column tasks beside row tasks.
fn split(choice: &Choice, call: &Call, device: &DeviceProperties) -> Result<BackwardPlan> {
    let Call { hidden, rows, .. } = *call;
    let keeps = |condition, reason| keeps(choice, condition, reason);
    keeps(
        (1..=16).contains(&choice.warps),
        "a block has 1 to 16 warps",
    )?;
    let threads = 32 * choice.warps;
    let mut leaf = LeafTable::new(rows, hidden, 0);
    leaf.run_log2 = chunk_log2(leaf.leaves, threads);
    let row_blocks = match choice.program {
        Program::BackwardSplit { vectors } => {
            let covered = TILE * vectors * choice.warps;
            keeps(hidden <= covered, "a block holds no row of this width")?;
            let leaf_a_position = leaf.run_log2 == 0;
            keeps(leaf_a_position, "a block has fewer positions than leaves")?;
            rows
        }
        // Row tasks beyond what is resident are taken in turns.
        _ => rows.min(choice.resident(threads, device.multiprocessors())),
    };
    let grid = u64::from(split::column_tasks(hidden)) + row_blocks;
    keeps(
        grid <= MAX_GRID,
        "the grid has more blocks than a launch can",
    )?;
    let main = Launch {
        kernel: entry(choice.program, Some(call.weight), call.residual)?,
        grid: grid as u32,
        block: threads,
        shared_bytes: reduce::shared_bytes(threads, leaf.run_log2).max(SCRATCH_BYTES),
        dependent: true,
    };
    check_launch(choice.program, &main, device)?;
    Ok(BackwardPlan {
        main: Some(main),
        leaf,
        ..BackwardPlan::EMPTY
    })
}

/// One launch for forms that routes are not for: column tasks beside row tasks, or either alone.
fn split_plan(call: &Call, form: BackwardForm, device: &DeviceProperties) -> Result<BackwardPlan> {
    let Call {
        hidden,
        rows,
        weight,
        ..
    } = *call;
    let tiles = hidden.div_ceil(TILE);
    let small = rows <= routes::SPLIT_SMALL_BLOCK_MAX_ROWS && hidden <= 4096;
    let threads = match form.gradients {
        // As many as the row has work for.
        Gradients::Input if tiles <= 16 => 32 * tiles,
        Gradients::Input if tiles <= 32 => 16 * tiles.next_multiple_of(2),
        _ if small => 256,
        _ => 512,
    };
    let mut leaf = LeafTable::new(rows, hidden, 0);
    let leaf_a_position =
        form.gradients == Gradients::Input || leaf.leaves <= threads / tree::WIDTH;
    let program = match tiles.div_ceil(threads / 32) {
        1 if leaf_a_position => Program::BackwardSplit { vectors: 1 },
        2 if leaf_a_position => Program::BackwardSplit { vectors: 2 },
        _ => Program::BackwardSplitWide,
    };
    leaf.run_log2 = chunk_log2(leaf.leaves, threads);
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
        kernel: entry(program, Some(weight), form.residual)?,
        grid: column_blocks + row_blocks as u32,
        block: threads,
        shared_bytes,
        dependent: true,
    };
    Ok(BackwardPlan {
        main: Some(main),
        leaf,
        ..BackwardPlan::EMPTY
    })
}

/// A main launch that reads x and dy once, then the reduce.
fn single_read(
    choice: &Choice,
    call: &Call,
    gradients: Gradients,
    device: &DeviceProperties,
) -> Result<BackwardPlan> {
    let Call {
        hidden,
        rows,
        residual,
        ..
    } = *call;
    let keeps = |condition, reason| keeps(choice, condition, reason);
    let (block, smallest_run) = match choice.program {
        Program::BackwardWarp { vectors, .. } => {
            keeps(
                hidden <= TILE * vectors,
                "a warp holds no row of this width",
            )?;
            let warps = choice.warps;
            keeps(
                warps.is_power_of_two(),
                "a block has a power of two of warps",
            )?;
            (choice.block(), warps.ilog2())
        }
        Program::BackwardBlock { vectors, .. } => {
            keeps(hidden <= 16_384, "rows have at most 16,384 elements")?;
            let group = block::group_threads(vectors, hidden);
            let groups_log2 = (choice.block() / group).clamp(1, 8).ilog2();
            (group << groups_log2, groups_log2)
        }
        _ => (32 * hidden.div_ceil(TILE * wide::VECTORS as u32), 0),
    };
    let kernel = entry(choice.program, Some(call.weight), residual)?;
    // Before shared memory is worked out, which may not fit in 32 bits.
    keeps(block <= kernel.max_threads, "a block has too many threads")?;
    let shared = |run_log2| shared_bytes(choice.program, residual, hidden, block, run_log2);
    let workers = device.multiprocessors();
    let run_log2 = match (choice.program, choice.run_log2) {
        (Program::BackwardBlock { .. }, Some(run_log2)) => {
            keeps(
                run_log2 >= smallest_run,
                "a run has fewer leaves than a block groups",
            )?;
            keeps(run_log2 <= MAX_RUN_LOG2, "a run has too many leaves")?;
            run_log2
        }
        (Program::BackwardBlock { .. }, None) => {
            let available = device.shared_bytes_per_block;
            best_run(call, workers, smallest_run, |r| shared(r) <= available)
        }
        _ => smallest_run,
    };
    let leaf = LeafTable::new(rows, hidden, run_log2);
    let grid = u64::from(leaf.runs()).min(choice.resident(block, workers));
    // Kernels count rows, those a grid's runs ahead included, in 32 bits.
    let ahead = grid << (leaf.leaf_log2 + run_log2);
    keeps(
        rows + ahead <= u64::from(u32::MAX),
        "rows do not fit in 32 bits",
    )?;
    let main = Launch {
        kernel,
        grid: grid as u32,
        block,
        shared_bytes: shared(run_log2),
        dependent: true,
    };
    check_launch(choice.program, &main, device)?;

    with_reduce(main, leaf, hidden, gradients, device)
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
        kernel: entry(Program::Reduce, None, false)?,
        grid: split::column_tasks(hidden),
        block: REDUCE_THREADS,
        shared_bytes,
        dependent: true,
    })
}

/// Blocks of a launch, at most.
const MAX_GRID: u64 = (1 << 31) - 1;
/// log₂ of the leaves of a run, at most: of all there are.
const MAX_RUN_LOG2: u32 = 13;
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

/// Largest workspace of rows up to [`WORKSPACE_HIDDEN`] elements, in bytes.
const WORKSPACE_BYTES: u64 = 16 << 20;
const WORKSPACE_HIDDEN: u32 = 8192;
/// Rows from which on the nodes that are stored are at most a fiftieth of the matrices.
const FEW_NODES_ROWS: u64 = 16_384;

/// The run size that finishes first: the rows of the busiest worker, and the traffic of the
/// nodes (written and read, mostly within L2: half weight). Workspace and nodes are as few as
/// promised, where a run that large fits.
fn best_run(call: &Call, workers: u32, smallest: u32, fits: impl Fn(u32) -> bool) -> u32 {
    let Call { hidden, rows, .. } = *call;
    let matrices = if call.residual { 4 } else { 3 };
    let leaf = LeafTable::new(rows, hidden, smallest);
    let with = |run_log2: u32| LeafTable { run_log2, ..leaf };
    let cost = |run_log2: u32| {
        let leaf = with(run_log2);
        let rounds = u64::from(leaf.runs().div_ceil(workers));
        let busiest = rounds << (run_log2 + leaf.leaf_log2);
        6 * busiest * u64::from(workers) + 8 * u64::from(leaf.runs())
    };
    let too_many = |run_log2: u32| {
        let nodes = u64::from(with(run_log2).runs());
        let workspace = nodes * 8 * u64::from(hidden);
        // 8 bytes a node and column, 2 a matrix, row and column.
        let share = rows < FEW_NODES_ROWS || 50 * 8 * nodes <= 2 * matrices * rows;
        let few = share && (hidden > WORKSPACE_HIDDEN || workspace <= WORKSPACE_BYTES);
        if few { 0 } else { nodes }
    };
    let candidates = (smallest..=smallest + 5).filter(|&r| r == smallest || fits(r));
    candidates
        .min_by_key(|&r| (too_many(r), cost(r)))
        .unwrap_or(smallest)
}
