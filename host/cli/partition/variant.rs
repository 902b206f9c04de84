//! Backwards with leaves of any size. Their dw is as accurate and has other bits: no operator runs
//! them, and no route can ask for them.

use crate::cli::operands::Operands;
use cake_rmsnorm::RmsNorm;
use cake_rmsnorm::backend::{Bound, Launcher};
use cake_rmsnorm::kernels::KERNELS;
use cake_rmsnorm::kernels::backward::reduce;
use cake_rmsnorm::kernels::contract::{Kernel, Program};
use cake_rmsnorm::kernels::params::{
    BackwardParams, Groups, ReduceParams, Stride, WeightGradientOut, keep,
};
use cake_rmsnorm::kernels::tree;
use cake_rmsnorm::plan::{Choice, DeviceProperties, Launch, LeafTable};

/// Runs of one block that are tried: 2^0 to 2^6 leaves.
const RUNS: std::ops::RangeInclusive<u32> = 0..=6;
/// How much longer than all together the busiest multiprocessor may work, in a variant that is
/// tried.
const MAX_IMBALANCE: f64 = 1.5;
/// Threads of the reduce.
const REDUCE_THREADS: u32 = 256;

/// Launches of a backward that depend on leaves of its own.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    main: Launch,
    reduce: Option<Launch>,
    pub leaf: LeafTable,
    chunk_log2: u32,
    pub workspace_bytes: u64,
}

impl Variant {
    /// Every division of the rows among the device's multiprocessors by programs that `choices`
    /// name.
    pub fn all(
        op: &RmsNorm,
        choices: &[Choice],
        rows: u64,
        residual: bool,
        device: &DeviceProperties,
    ) -> Vec<Self> {
        let mut variants = Vec::new();
        for choice in choices {
            for run_log2 in RUNS {
                let choice = Choice {
                    run_log2: Some(run_log2),
                    ..*choice
                };
                for leaf_log2 in 0..=rows.max(1).ilog2() {
                    let variant = Self::new(op, &choice, rows, residual, device, leaf_log2);
                    variants.extend(variant.filter(|variant| {
                        let asked = variant.leaf.run_log2 == run_log2;
                        asked && variant.imbalance(rows) <= MAX_IMBALANCE
                    }));
                }
            }
        }
        variants
    }

    /// A choice with leaves of 2^`leaf_log2` rows, if they keep its contract.
    pub fn new(
        op: &RmsNorm,
        choice: &Choice,
        rows: u64,
        residual: bool,
        device: &DeviceProperties,
        leaf_log2: u32,
    ) -> Option<Self> {
        let plan = op.backward_plan_of(choice, rows, residual, device).ok()?;
        let mut main = plan.main?;
        let leaves = rows.div_ceil(1 << leaf_log2);
        let leaf = LeafTable {
            leaf_log2,
            leaves: u32::try_from(leaves).ok()?,
            run_log2: plan.leaf.run_log2,
        };
        let Some(mut reduce) = plan.reduce else {
            // A position of a column task for each leaf.
            let positions = main.block / tree::WIDTH;
            let narrow = matches!(choice.program, Program::BackwardSplit { .. });
            let fits = narrow && leaf.run_log2 == 0 && leaf.leaves <= positions;
            return fits.then_some(Self {
                main,
                reduce: None,
                leaf,
                chunk_log2: 0,
                workspace_bytes: 0,
            });
        };
        let blocks = match choice.program {
            Program::BackwardWarp { .. } => (choice.resident_threads / main.block).max(1),
            _ => 1,
        };
        main.grid = leaf.runs().min(device.sm_count.max(1) * blocks);
        // Kernels count rows, those a grid's runs ahead included, in 32 bits.
        let ahead = u64::from(main.grid) << (leaf_log2 + leaf.run_log2);
        let chunk = leaf.runs().div_ceil(REDUCE_THREADS / tree::WIDTH);
        let chunk_log2 = chunk.next_power_of_two().ilog2();
        reduce.shared_bytes = reduce::shared_bytes(REDUCE_THREADS, chunk_log2);
        let fits = rows + ahead <= u64::from(u32::MAX)
            && reduce.shared_bytes <= device.shared_bytes_per_block;
        fits.then(|| Self {
            main,
            reduce: Some(reduce),
            leaf,
            chunk_log2,
            workspace_bytes: u64::from(leaf.runs()) * 8 * op.hidden(),
        })
    }

    pub fn program(&self) -> &'static str {
        self.main.kernel.name
    }

    /// Rows of the busiest block, as a multiple of the mean: 1 where the division fits.
    pub fn imbalance(&self, rows: u64) -> f64 {
        if self.reduce.is_none() {
            return 1.0;
        }
        let rounds = u64::from(self.leaf.runs().div_ceil(self.main.grid));
        let busiest = rounds << (self.leaf.leaf_log2 + self.leaf.run_log2);
        (busiest * u64::from(self.main.grid)) as f64 / rows as f64
    }

    /// Enqueues the backward of the first `rows` rows.
    pub fn enqueue(
        &self,
        launcher: &dyn Launcher,
        operands: &Operands,
        rows: u64,
    ) -> cake_rmsnorm::Result<()> {
        let hidden = operands.hidden();
        let stride = Stride {
            row: hidden as i64,
            group: 0,
        };
        let dw = WeightGradientOut {
            dw: operands.dw.address() as *mut f32,
            dw_bf16: std::ptr::null_mut(),
            accumulate: 0,
        };
        let x = operands.h.as_ref().unwrap_or(&operands.x).address();
        let dh = operands.dh.as_ref().map_or(0, |dh| dh.address());
        let main = BackwardParams {
            dy: operands.dy.address() as *const u16,
            x: x as *const u16,
            w: operands.w.address() as *const u8,
            rstd: operands.rstd.address() as *const f32,
            dx: operands.dx.address() as *mut u16,
            dw,
            rows: rows as u32,
            hidden: hidden as u32,
            leaf_log2: self.leaf.leaf_log2,
            run_log2: self.leaf.run_log2,
            dx_columns: hidden as u32,
            keep: keep(2 + u64::from(dh != 0), rows, hidden),
            weight_offset: -0.0,
            groups: Groups::ONE,
            dy_stride: stride,
            x_stride: stride,
            dx_stride: stride,
            nodes: operands.workspace.address() as *mut f32,
            dh: dh as *const u16,
            dh_stride: stride,
        };
        let reduce = ReduceParams {
            nodes: operands.workspace.address() as *const f32,
            dw,
            hidden: hidden as u32,
            node_count: self.leaf.runs(),
            chunk_log2: self.chunk_log2,
        };
        let main = Bound {
            launch: self.main,
            params: (&raw const main).cast(),
        };
        let reduce = self.reduce.map(|launch| Bound {
            launch,
            params: (&raw const reduce).cast(),
        });
        let launches: Vec<Bound> = [main].into_iter().chain(reduce).collect();
        // SAFETY: the parameters are those of the kernels, whose contracts the variant keeps, on
        // the operands' buffers: of as many rows, and as large a workspace. Whoever enqueues waits
        // before the buffers go, and nobody else uses them.
        unsafe { launcher.launch(&launches) }
    }
}

/// The kernels of all variants on a device.
pub fn kernels(residual: bool, device: &DeviceProperties) -> Vec<&'static Kernel> {
    let (major, minor) = device.compute_capability;
    let backward = |program: Program| {
        matches!(
            program,
            Program::BackwardSplit { .. }
                | Program::BackwardWarp { .. }
                | Program::BackwardBlock { .. }
                | Program::BackwardWide
        )
    };
    KERNELS
        .iter()
        .filter(|kernel| kernel.min_sm <= 10 * major + minor)
        .filter(|kernel| {
            let main = backward(kernel.program) && kernel.residual == residual;
            main || kernel.program == Program::Reduce
        })
        .collect()
}
