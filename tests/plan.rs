//! Properties of plans: launches keep their kernels' contracts, and nothing that fixes bits
//! depends on the device.

use cake_rmsnorm::gated::{GateOrder, GatedRmsNorm};
use cake_rmsnorm::kernels::KERNELS;
use cake_rmsnorm::kernels::backward::{block, reduce, split, warp, wide};
use cake_rmsnorm::kernels::bench;
use cake_rmsnorm::kernels::contract::Program;
use cake_rmsnorm::kernels::general;
use cake_rmsnorm::kernels::general::params::{GeneralBackwardParams, GeneralForwardParams};
use cake_rmsnorm::kernels::leaf;
use cake_rmsnorm::kernels::params::{BackwardParams, ForwardParams, ReduceParams};
use cake_rmsnorm::kernels::row_sum::SCRATCH_BYTES;
use cake_rmsnorm::kernels::tree;
use cake_rmsnorm::plan::{
    self, Alignment, BackwardForm, BackwardPlan, Choice, DeviceProperties, ForwardForm,
    ForwardPlan, Gradients, Launch, LeafTable, Origin, Routes, Rstd, Spacing, Views,
};
use cake_rmsnorm::ptx::Module;
use cake_rmsnorm::{Dtype, Error, MAX_HIDDEN, MAX_ROWS, RmsNorm};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// Multiprocessors of the devices that plans are compared on, and some that no device has.
const SM_COUNTS: [u32; 7] = [1, 2, 7, 100, 132, 148, 212];
/// Widths at and beside the edges of the routes.
const WIDTHS: [u64; 22] = [
    8, 248, 256, 264, 512, 520, 1024, 1032, 1600, 2048, 2056, 4096, 4104, 5120, 6144, 6152, 8192,
    8200, 16_384, 16_392, 65_528, 65_536,
];
/// Rows at and beside the edges of routes and of the leaf table.
const HEIGHTS: [u64; 16] = [
    1,
    2,
    127,
    128,
    511,
    512,
    513,
    1023,
    1024,
    4095,
    8191,
    8192,
    65_536,
    8_388_609,
    MAX_ROWS - 1,
    MAX_ROWS,
];

/// Devices with their shared memory a block and a multiprocessor, in bytes.
const A100: DeviceProperties = device(108, (8, 0), 166_912);
const L40S: DeviceProperties = device(142, (8, 9), 101_376);
const B200: DeviceProperties = device(148, (10, 0), 232_448);

const fn device(sm_count: u32, capability: (u32, u32), block: u32) -> DeviceProperties {
    DeviceProperties {
        sm_count,
        compute_capability: capability,
        shared_bytes_per_block: block,
    }
}

/// What a plan is made of, but for the device.
#[derive(Clone, Copy, Debug)]
struct Shape {
    hidden: u64,
    rows: u64,
    input: Dtype,
    weight: Dtype,
    residual: bool,
    alignment: Alignment,
    grouped: bool,
    gradients: Gradients,
    in_place: bool,
    rstd: Rstd,
}

impl Shape {
    /// BF16 rows of one distance, aligned; dx and dw both, from the rstd that was kept.
    fn plain(hidden: u64, rows: u64, weight: Dtype, residual: bool) -> Self {
        Self {
            hidden,
            rows,
            input: Dtype::Bf16,
            weight,
            residual,
            alignment: Alignment::Vector,
            grouped: false,
            gradients: Gradients::Both,
            in_place: false,
            rstd: Rstd::Kept,
        }
    }

    fn operator(self) -> RmsNorm {
        let builder = RmsNorm::builder(self.hidden).input(self.input);
        builder
            .weight(self.weight)
            .build()
            .expect("a supported width")
    }

    fn forward(self, device: &DeviceProperties) -> Result<ForwardPlan, Error> {
        let op = self.operator();
        let form = ForwardForm {
            residual: self.residual,
            alignment: self.alignment,
            grouped: self.grouped,
        };
        plan::forward(&op, self.rows, form, device)
    }

    fn backward(self, device: &DeviceProperties) -> Result<BackwardPlan, Error> {
        let op = self.operator();
        let form = BackwardForm {
            residual: self.residual,
            alignment: self.alignment,
            grouped: self.grouped,
            gradients: self.gradients,
            in_place: self.in_place,
            rstd: self.rstd,
        };
        plan::backward(&op, self.rows, form, device)
    }

    /// Whether the fast kernels take it.
    fn fast(self) -> bool {
        self.input == Dtype::Bf16
            && self.weight != Dtype::F16
            && self.hidden.is_multiple_of(8)
            && self.alignment == Alignment::Vector
    }
}

fn hidden() -> impl Strategy<Value = u64> {
    prop_oneof![
        prop::sample::select(&WIDTHS[..]),
        (1..=128_u64).prop_map(|h| 8 * h),
        (1..=MAX_HIDDEN / 8).prop_map(|h| 8 * h),
    ]
}

/// Ordinary heights and edges, and every magnitude up to the largest.
fn rows() -> impl Strategy<Value = u64> {
    let any_magnitude =
        (0..31_u32, any::<u64>()).prop_map(|(log2, bits)| (1 << log2) | (bits % (1 << log2)));
    prop_oneof![
        prop::sample::select(&HEIGHTS[..]),
        1..=2048_u64,
        any_magnitude
    ]
}

/// Shapes of the fast kernels.
fn fast_shape() -> impl Strategy<Value = Shape> {
    let weight = prop::sample::select(&[Dtype::Bf16, Dtype::F32][..]);
    (hidden(), rows(), weight, any::<bool>())
        .prop_map(|(hidden, rows, weight, residual)| Shape::plain(hidden, rows, weight, residual))
}

/// Fast shapes, and any.
fn shape() -> impl Strategy<Value = Shape> {
    let dtype = || prop::sample::select(&[Dtype::Bf16, Dtype::F16, Dtype::F32][..]);
    let hidden = prop_oneof![hidden(), 1..=1024_u64, 1..=MAX_HIDDEN];
    let alignment = prop::sample::select(&[Alignment::Vector, Alignment::Element][..]);
    let general = (hidden, rows(), dtype(), dtype(), any::<bool>(), alignment);
    let general = general.prop_map(|(hidden, rows, input, weight, residual, alignment)| Shape {
        input,
        alignment,
        ..Shape::plain(hidden, rows, weight, residual)
    });
    let shape = prop_oneof![fast_shape(), general];
    let gradients =
        prop::sample::select(&[Gradients::Both, Gradients::Input, Gradients::Weight][..]);
    let rstd = prop::sample::select(&[Rstd::Kept, Rstd::Recomputed][..]);
    let options = (any::<bool>(), gradients, any::<bool>(), rstd);
    (shape, options).prop_map(|(shape, (grouped, gradients, in_place, rstd))| Shape {
        grouped,
        gradients,
        in_place: in_place && gradients != Gradients::Weight,
        rstd,
        ..shape
    })
}

/// Devices on which every width has a program.
fn large_device() -> impl Strategy<Value = DeviceProperties> {
    let sm_count = prop_oneof![
        prop::sample::select(&SM_COUNTS[..]),
        0..=1024_u32,
        any::<u32>(),
    ];
    (
        prop::sample::select(&[DeviceProperties::H200, B200][..]),
        sm_count,
    )
        .prop_map(|(device, sm_count)| device.with_sm_count(sm_count))
}

/// Elements that a block of a program holds, or a warp where a warp has a row; `None` where the
/// block goes over the row in turns.
fn covered(launch: &Launch) -> Option<u64> {
    let warps = u64::from(launch.block / 32);
    let (warps, vectors) = match launch.kernel.program {
        Program::ForwardWarp { lanes: 16, .. } => return Some(128),
        Program::ForwardWarp { vectors, .. } | Program::BackwardWarp { vectors, .. } => {
            (1, vectors)
        }
        Program::ForwardBlock { vectors, .. } | Program::BackwardSplit { vectors } => {
            (warps, vectors)
        }
        // A group of a block has a row; checked where groups are known.
        Program::BackwardBlock { .. } => return None,
        Program::BackwardWide => (warps, wide::VECTORS as u32),
        Program::ForwardWide
        | Program::BackwardSplitWide
        | Program::Reduce
        | Program::GeneralForward
        | Program::GeneralBackward => return None,
        other => panic!("{other:?} is no program of the plain form"),
    };
    Some(warps * u64::from(vectors) * 256)
}

/// What every launch must keep, whatever its program.
fn check_launch(launch: &Launch, shape: Shape, device: &DeviceProperties) {
    let kernel = launch.kernel;
    assert!(
        launch.grid >= 1 && launch.grid <= i32::MAX as u32,
        "{launch:?}"
    );
    assert!(
        launch.block >= 32 && launch.block.is_multiple_of(32),
        "{launch:?}"
    );
    assert!(
        launch.block <= kernel.max_threads && launch.block <= 1024,
        "{launch:?}"
    );
    assert!(
        launch.shared_bytes <= device.shared_bytes_per_block,
        "{launch:?}"
    );
    let (major, minor) = device.compute_capability;
    assert!(kernel.min_sm <= 10 * major + minor);
    assert!(launch.dependent, "{launch:?} costs the host less so");
    if let Some(covered) = covered(launch) {
        assert!(
            covered >= shape.hidden,
            "{covered} elements of {}",
            shape.hidden
        );
    }
    let general = [Program::GeneralForward, Program::GeneralBackward];
    if kernel.program == Program::Reduce {
        return;
    }
    let general = general.contains(&kernel.program);
    // What the fast programs of a backward do not take goes to the general one.
    let special = shape.grouped || shape.in_place;
    assert!(general || shape.fast());
    assert!(!general || !shape.fast() || special && kernel.program == Program::GeneralBackward);
    if !general {
        let name = if shape.weight == Dtype::F32 {
            "_f32"
        } else {
            "_bf16"
        };
        assert!(
            kernel.name.contains(name) && kernel.module.ends_with(name),
            "{}",
            kernel.name
        );
    }
}

fn check_forward(plan: &ForwardPlan, shape: Shape, device: &DeviceProperties) {
    let launch = plan.launch.expect("there are rows");
    check_forward_launch(&launch, shape, device);
    if shape.grouped {
        assert!(takes_groups(launch.kernel.program), "{launch:?}");
    }
}

/// Whether a forward's program takes rows in groups.
fn takes_groups(program: Program) -> bool {
    match program {
        Program::ForwardWarp { rows, .. } => rows == 1,
        Program::ForwardBlock { grouped, .. } => grouped,
        _ => true,
    }
}

fn check_forward_launch(launch: &Launch, shape: Shape, device: &DeviceProperties) {
    check_launch(launch, shape, device);
    if shape.fast() {
        assert_eq!(launch.kernel.residual, shape.residual);
    }
    let params = match launch.kernel.program {
        Program::GeneralForward => size_of::<GeneralForwardParams>(),
        _ => size_of::<ForwardParams>(),
    };
    assert_eq!(launch.kernel.param_bytes, params);
    let (rows_a_block, needed) = match launch.kernel.program {
        Program::ForwardWarp { lanes, rows, .. } => (launch.block / lanes * rows, 0),
        Program::ForwardBlock { .. } | Program::ForwardWide => (1, SCRATCH_BYTES),
        Program::GeneralForward => (1, general::SCRATCH_BYTES),
        other => panic!("{other:?} is no forward"),
    };
    assert!(launch.shared_bytes >= needed);
    let enough = shape.rows.div_ceil(u64::from(rows_a_block));
    match launch.kernel.program {
        // No block without a row.
        Program::ForwardWide | Program::GeneralForward => {
            assert!(u64::from(launch.grid) <= enough);
        }
        // Every row has its block.
        _ => assert_eq!(u64::from(launch.grid), enough),
    }
}

fn check_leaves(leaf: &LeafTable, shape: Shape) {
    assert_eq!(
        leaf.leaf_rows(),
        published_leaf_rows(shape.rows, shape.hidden)
    );
    assert_eq!(
        u64::from(leaf.leaves),
        shape.rows.div_ceil(leaf.leaf_rows())
    );
    let (leaves, run) = (u64::from(leaf.leaves), 1_u64 << leaf.run_log2);
    let runs = u64::from(leaf.runs());
    assert!(
        runs * run >= leaves && (runs - 1) * run < leaves,
        "runs are just enough: {leaf:?}"
    );
}

fn check_backward(plan: &BackwardPlan, shape: Shape, device: &DeviceProperties) {
    let main = plan.main.expect("there are rows");
    check_launch(&main, shape, device);
    check_leaves(&plan.leaf, shape);
    let params = match main.kernel.program {
        Program::GeneralBackward => size_of::<GeneralBackwardParams>(),
        _ => size_of::<BackwardParams>(),
    };
    assert_eq!(main.kernel.param_bytes, params);
    if params == size_of::<BackwardParams>() {
        assert_eq!(main.kernel.residual, shape.residual);
    }
    check_statistics(plan, shape, device);
    check_options(&main, shape);
    match plan.reduce {
        None if shape.gradients == Gradients::Input => check_input_alone(plan, &main, shape),
        None => check_split(plan, &main, shape),
        Some(reduce) => {
            check_launch(&reduce, shape, device);
            check_single_read(plan, &main, shape);
            check_reduce(plan, &reduce, shape);
        }
    }
}

/// rstd that was not kept is worked out first, and lies behind the nodes.
fn check_statistics(plan: &BackwardPlan, shape: Shape, device: &DeviceProperties) {
    let nodes = match plan.reduce {
        Some(_) => u64::from(plan.leaf.runs()) * 2 * 4 * shape.hidden.next_multiple_of(8),
        None => 0,
    };
    assert_eq!(plan.node_bytes, nodes, "an FP32 pair a column");
    assert_eq!(plan.statistics.is_some(), shape.rstd == Rstd::Recomputed);
    let Some(statistics) = plan.statistics else {
        assert_eq!(plan.workspace_bytes, nodes);
        return;
    };
    assert_eq!(plan.workspace_bytes, nodes + 4 * shape.rows);
    let plain = Shape {
        residual: false,
        ..shape
    };
    check_forward_launch(&statistics, plain, device);
    let program = statistics.kernel.program;
    assert!(
        takes_groups(program),
        "rows may come in groups: {program:?}"
    );
}

/// Programs that take what is asked for.
fn check_options(main: &Launch, shape: Shape) {
    let program = main.kernel.program;
    let split = matches!(
        program,
        Program::BackwardSplit { .. } | Program::BackwardSplitWide
    );
    let warp = matches!(program, Program::BackwardWarp { grouped, .. } if grouped >= shape.grouped);
    let general = program == Program::GeneralBackward;
    assert!(!shape.grouped || split || warp || general, "{program:?}");
    let both = shape.gradients == Gradients::Both;
    assert!(
        !(shape.in_place && both && split),
        "others would read what dx overwrote"
    );
    assert!(
        shape.gradients != Gradients::Input || split || warp || general,
        "{program:?}"
    );
}

/// One launch, of rows alone.
fn check_input_alone(plan: &BackwardPlan, main: &Launch, shape: Shape) {
    let needed = match main.kernel.program {
        Program::BackwardSplit { .. } => {
            assert_eq!(u64::from(main.grid), shape.rows, "every row has its block");
            SCRATCH_BYTES
        }
        Program::BackwardSplitWide => {
            assert!(u64::from(main.grid) <= shape.rows, "no block without a row");
            SCRATCH_BYTES
        }
        Program::BackwardWarp {
            vectors, stages, ..
        } => {
            assert!(main.grid <= plan.leaf.runs());
            assert_eq!(main.block, 32 << plan.leaf.run_log2);
            warp::shared_bytes(vectors, stages, shape.residual, main.block)
        }
        _ => general::SCRATCH_BYTES,
    };
    assert!(main.shared_bytes >= needed);
}

/// One launch that writes dw itself.
fn check_split(plan: &BackwardPlan, main: &Launch, shape: Shape) {
    let split = [
        Program::BackwardSplit { vectors: 1 },
        Program::BackwardSplit { vectors: 2 },
    ];
    let program = main.kernel.program;
    assert!(
        split.contains(&program) || program == Program::BackwardSplitWide,
        "{program:?}"
    );
    let positions = main.block / tree::WIDTH;
    assert!(main.block <= 16 * 32, "at most 16 warps fold");
    assert!(u64::from(positions) << plan.leaf.run_log2 >= u64::from(plan.leaf.leaves));
    let tasks = split::column_tasks(shape.hidden as u32);
    assert_eq!(u64::from(tasks), shape.hidden.div_ceil(32));
    let rows = main.grid - tasks;
    if program != Program::BackwardSplitWide {
        assert!(positions >= plan.leaf.leaves, "a leaf a position");
        assert_eq!(plan.leaf.run_log2, 0);
        assert!(shape.gradients == Gradients::Weight || u64::from(rows) == shape.rows);
    }
    match shape.gradients {
        Gradients::Weight => assert_eq!(rows, 0, "dw alone"),
        _ => assert!(rows > 0, "a block for rows"),
    }
    assert!(u64::from(rows) <= shape.rows, "no block without a row");
    let roots = reduce::shared_bytes(main.block, plan.leaf.run_log2);
    assert!(main.shared_bytes >= roots.max(SCRATCH_BYTES));
    assert_eq!((plan.node_bytes, plan.chunk_log2), (0, 0));
}

/// The launch that stores nodes.
fn check_single_read(plan: &BackwardPlan, main: &Launch, shape: Shape) {
    let run_log2 = plan.leaf.run_log2;
    assert!(main.grid <= plan.leaf.runs());
    let needed = match main.kernel.program {
        Program::BackwardWarp {
            vectors, stages, ..
        } => {
            assert_eq!(main.block, 32 << run_log2, "a warp a leaf of the run");
            warp::shared_bytes(vectors, stages, shape.residual, main.block)
        }
        Program::BackwardBlock {
            vectors,
            rows,
            stages,
        } => {
            let group = block::group_threads(vectors, shape.hidden as u32);
            assert!(u64::from(group / 32 * vectors * 256) >= shape.hidden);
            assert!(main.block.is_multiple_of(group));
            let groups = main.block / group;
            assert!(groups.is_power_of_two() && groups <= 8, "{groups} groups");
            assert!(groups <= 1 << run_log2, "a leaf of the run for each group");
            assert!(shape.hidden <= 16_384 && (rows == 1 || rows == 2));
            block::shared_bytes(
                vectors,
                rows,
                stages,
                shape.residual,
                group,
                groups,
                run_log2,
            )
        }
        Program::BackwardWide => {
            assert_eq!(run_log2, 0, "a node a leaf");
            wide::shared_bytes(main.block)
        }
        Program::GeneralBackward if plan.sums_in_shared => {
            general::backward::shared_bytes(shape.hidden as u32, main.block, run_log2)
        }
        Program::GeneralBackward => {
            assert_eq!(run_log2, 0, "runs fold in shared memory");
            general::SCRATCH_BYTES
        }
        other => panic!("{other:?} stores no nodes"),
    };
    assert!(main.shared_bytes >= needed);
    // Kernels count rows, those a grid's runs ahead included, in 32 bits.
    let ahead = u64::from(main.grid) << (plan.leaf.leaf_log2 + run_log2);
    assert!(shape.rows + ahead <= u64::from(u32::MAX), "{plan:?}");
}

fn check_reduce(plan: &BackwardPlan, reduce: &Launch, shape: Shape) {
    assert_eq!(reduce.kernel.program, Program::Reduce);
    assert_eq!(reduce.kernel.param_bytes, size_of::<ReduceParams>());
    assert_eq!(u64::from(reduce.grid), shape.hidden.div_ceil(32));
    let positions = reduce.block / tree::WIDTH;
    assert!(reduce.block <= 16 * 32, "at most 16 warps fold");
    let chunks = u64::from(positions) << plan.chunk_log2;
    assert!(chunks >= u64::from(plan.leaf.runs()), "{plan:?}");
    assert!(reduce.shared_bytes >= reduce::shared_bytes(reduce.block, plan.chunk_log2));
}

/// The leaf table as docs/numerics.md states it, in other words than the code's.
fn published_leaf_rows(rows: u64, hidden: u64) -> u64 {
    let window = match hidden {
        ..=256 => 256,
        257..=1024 => 512,
        _ => 1024,
    };
    if rows <= window {
        let most = match (hidden, rows) {
            (2049..=4096, ..=256) => 64,
            (4097..=8192, 65..=128) => 32,
            _ => 128,
        };
        return [1, 2, 4, 8]
            .into_iter()
            .find(|leaf_rows| leaf_rows * most >= rows)
            .expect("8 rows are enough");
    }
    let target = match hidden {
        ..=256 => 2048,
        257..=1024 => 1024,
        1025..=4096 => 512,
        4097..=8192 => 256,
        _ => 128,
    };
    let least = match hidden {
        ..=256 => [8, 4, 2].into_iter().find(|l| l * 1024 <= rows),
        257..=512 => [8, 4].into_iter().find(|l| l * 512 <= rows).or(Some(2)),
        _ => None,
    };
    let mut leaf_rows = least.unwrap_or(1);
    while 2 * leaf_rows * target <= rows {
        leaf_rows *= 2;
    }
    leaf_rows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn forward_plans_keep_the_contracts(shape in shape(), device in large_device()) {
        check_forward(&shape.forward(&device).expect("a plan"), shape, &device);
    }

    #[test]
    fn backward_plans_keep_the_contracts(shape in shape(), device in large_device()) {
        check_backward(&shape.backward(&device).expect("a plan"), shape, &device);
    }

    /// Every device with the shared memory of sm_80 or sm_89 has a plan for every shape.
    #[test]
    fn smaller_devices_have_plans(shape in shape()) {
        for device in [A100, L40S] {
            check_forward(&shape.forward(&device).expect("a plan"), shape, &device);
            check_backward(&shape.backward(&device).expect("a plan"), shape, &device);
        }
    }

    /// What `prepare` loads is all that any T launches, on every device.
    #[test]
    fn every_launch_is_of_a_prepared_kernel(
        shape in shape(),
        device in prop_oneof![large_device(), Just(A100), Just(L40S)],
        shared in prop_oneof![Just(None), (general::SCRATCH_BYTES..110_000).prop_map(Some)],
    ) {
        let device = DeviceProperties {
            shared_bytes_per_block: shared.unwrap_or(device.shared_bytes_per_block),
            ..device
        };
        let ordinary = shape.fast() && !shape.grouped && !shape.in_place;
        let (views, most) = if ordinary {
            (Views::Ordinary, 7)
        } else {
            (Views::Any, 12)
        };
        let op = shape.operator();
        let prepared = plan::kernels(&op, shape.residual, views, &device).expect("a plan");
        prop_assert!(prepared.len() <= most, "{} kernels", prepared.len());
        let forward = shape.forward(&device).expect("a plan").launch;
        let backward = shape.backward(&device).ok();
        let backward = backward.map_or([None; 3], |plan| [plan.statistics, plan.main, plan.reduce]);
        for launch in backward.into_iter().chain([forward]).flatten() {
            let known = prepared.iter().any(|kernel| std::ptr::eq(*kernel, launch.kernel));
            prop_assert!(known, "{} is not prepared", launch.kernel.name);
        }
    }

    /// A plan for a device with even less keeps to it, or says what is missing.
    #[test]
    fn the_smallest_devices_are_not_overcommitted(
        shape in shape(),
        shared in general::SCRATCH_BYTES..110_000,
    ) {
        let device = device(132, (8, 0), shared);
        check_forward(&shape.forward(&device).expect("a plan"), shape, &device);
        match shape.backward(&device) {
            Ok(plan) => check_backward(&plan, shape, &device),
            Err(Error::SharedMemory { needed, found }) => {
                prop_assert_eq!(found, shared);
                prop_assert!(needed > found);
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    /// At most 16 MiB of workspace for H up to 8192, whatever T is, and from T = 16,384 on few nodes,
    /// as docs/architecture.md states.
    #[test]
    fn workspaces_and_nodes_are_few(shape in shape(), device in large_device()) {
        let hidden = shape.hidden.clamp(8, 8192) / 8 * 8;
        let weight = if shape.weight == Dtype::F32 { Dtype::F32 } else { Dtype::Bf16 };
        let shape = Shape::plain(hidden, shape.rows, weight, shape.residual);
        check_workspace(shape, &device);
    }

    /// Leaves fix the order in which dw is summed.
    #[test]
    fn leaves_depend_on_the_shape_alone(shape in shape()) {
        let expected = published_leaf_rows(shape.rows, shape.hidden);
        let leaves = shape.rows.div_ceil(expected);
        prop_assert_eq!(leaf::leaf_rows(shape.rows, shape.hidden as u32), expected);
        prop_assert_eq!(leaf::leaf_count(shape.rows, shape.hidden as u32), leaves);
        for sm_count in SM_COUNTS {
            for device in [DeviceProperties::H200, B200, A100, L40S] {
                let plan = shape.backward(&device.with_sm_count(sm_count)).expect("a plan");
                prop_assert_eq!(plan.leaf.leaf_rows(), expected);
                prop_assert_eq!(u64::from(plan.leaf.leaves), leaves);
            }
        }
    }
}

/// What docs/architecture.md says of the workspace.
fn check_workspace(shape: Shape, device: &DeviceProperties) {
    let Shape { hidden, rows, .. } = shape;
    let plan = shape.backward(device).expect("a plan");
    let nodes = match plan.reduce {
        Some(_) => u64::from(plan.leaf.runs()),
        None => 0,
    };
    assert_eq!(plan.workspace_bytes, nodes * 8 * hidden, "{shape:?}");
    assert!(plan.workspace_bytes <= 16 << 20, "{shape:?}: {plan:?}");
    let per_mille = match hidden {
        _ if rows < 16_384 => return,
        ..=512 if rows < 65_536 => 21,
        _ => 20,
    };
    let matrices = if shape.residual { 4 } else { 3 };
    let moved = matrices * 2 * rows * hidden;
    let share = plan.workspace_bytes * 1000;
    assert!(share <= per_mille * moved, "{shape:?}: {plan:?}");
}

/// The same at every T around the edges, for the widths that models have and both sides of the
/// widths at which routes change.
#[test]
fn workspaces_of_models_are_few() {
    let widths = [
        256, 264, 512, 1024, 1536, 2048, 4096, 5120, 5632, 5640, 6144, 7168, 7680, 7688, 8192,
    ];
    for hidden in widths {
        let edges = (10..31).flat_map(|log2| [-1i64, 0, 1, 777].map(|d| (1i64 << log2) + d));
        for rows in edges.chain((1..400).map(|i| 517 * i)) {
            for (sm_count, residual) in SM_COUNTS.map(|n| [(n, false), (n, true)]).concat() {
                let shape = Shape::plain(hidden, rows as u64, Dtype::F32, residual);
                let device = DeviceProperties::H200.with_sm_count(sm_count);
                check_workspace(shape, &device);
            }
        }
    }
}

/// A route is taken before the built-in ones, if the call keeps its contract, and changes no leaf.
#[test]
fn routes_of_a_user_come_first() {
    let op = RmsNorm::new(4096, Dtype::F32, 1e-6).expect("a width");
    let device = DeviceProperties::H200;
    let wide = Choice::of(Program::BackwardWide);
    // Too narrow for this width: passed over.
    let narrow = Choice::of(Program::ForwardWarp {
        lanes: 32,
        vectors: 1,
        rows: 1,
    });
    let routes = Routes::only(Some(narrow), Some(wide));
    for rows in [1, 300, 5000] {
        let backward = op
            .backward_plan_by(&routes, rows, false, &device)
            .expect("a plan");
        let main = backward.main.expect("rows");
        assert_eq!(main.kernel.program, Program::BackwardWide);
        let built_in = op.backward_plan(rows, false, &device).expect("a plan");
        assert_eq!(backward.leaf.leaf_rows(), built_in.leaf.leaf_rows());
        let forward = op
            .forward_plan_by(&routes, rows, false, &device)
            .expect("a plan");
        let built_in = op.forward_plan(rows, false, &device).expect("a plan");
        let name = |plan: ForwardPlan| plan.launch.map(|launch| launch.kernel.name);
        assert_eq!(name(forward), name(built_in));
        let (_, origin) = op
            .backward_route(&routes, rows, false, &device)
            .expect("a route");
        assert_eq!(origin, Origin::Chosen);
        let (_, origin) = op
            .forward_route(&routes, rows, false, &device)
            .expect("a route");
        assert_eq!(origin, Origin::BuiltIn);
    }
}

const ROUTES: &str = r#"{
    "format": "cake-rmsnorm routes 1",
    "device": "somewhere",
    "forward": [{"min_hidden": 4096, "max_hidden": 4096, "program": "ForwardWide", "warps": 8,
                 "resident_threads": 1024, "weight": "f32", "residual": false, "max_rows": 64}],
    "backward": [{"min_hidden": 8, "max_hidden": 256, "program": "BackwardSplitWide", "warps": 4,
                  "max_rows_per_multiprocessor": 2}]
}"#;

#[test]
fn files_of_routes_are_read_as_they_are_written() {
    let routes = Routes::parse(ROUTES).expect("routes");
    let again = Routes::parse(&routes.to_json("somewhere").expect("text")).expect("routes");
    assert_eq!(routes, again);
    let op = RmsNorm::new(4096, Dtype::F32, 1e-6).expect("a width");
    let program = |rows, residual| {
        let device = DeviceProperties::H200;
        let plan = op
            .forward_plan_by(&routes, rows, residual, &device)
            .expect("a plan");
        plan.launch.expect("rows").kernel.program
    };
    assert_eq!(program(64, false), Program::ForwardWide);
    assert_ne!(program(65, false), Program::ForwardWide);
    assert_ne!(program(64, true), Program::ForwardWide);
}

/// Every route that no call could keep is refused by name.
#[test]
fn files_of_routes_that_cannot_serve_are_refused() {
    let cases = [
        ("routes 1", "routes 2", "format is"),
        (
            "\"ForwardWide\"",
            "\"Fast\"",
            "no program is called \"Fast\"",
        ),
        ("\"ForwardWide\"", "\"BackwardWide\"", "it is no forward"),
        ("\"BackwardSplitWide\"", "\"Reduce\"", "it is no backward"),
        ("\"BackwardSplitWide\"", "\"Copy\"", "it is no backward"),
        (
            "\"ForwardWide\"",
            "\"ForwardWarp { lanes: 32, vectors: 1, rows: 1 }\"",
            "hold no row of this width",
        ),
        ("\"warps\": 8", "\"warps\": 0", "no threads, or too many"),
        ("\"warps\": 4", "\"warps\": 4294967295", "1 to 16 warps"),
        ("\"warps\": 4", "\"warps\": 17", "1 to 16 warps"),
        ("\"max_rows\": 64", "\"max_rows\": 0", "at most 0 rows"),
        ("\"f32\"", "\"f16\"", "weight \"f16\""),
        (
            "\"min_hidden\": 8,",
            "\"min_hidden\": 512,",
            "hidden sizes from 512 to 256",
        ),
        ("\"min_hidden\": 8,", "\"min_width\": 8,", "min_width"),
        ("\"forward\": [{", "\"forward\": [{{", "line"),
    ];
    for (old, new, message) in cases {
        assert!(ROUTES.contains(old), "{old}");
        let text = ROUTES.replace(old, new);
        match Routes::parse(&text) {
            Err(Error::RouteFile { detail, .. }) => assert!(detail.contains(message), "{detail}"),
            other => panic!("{new}: {other:?}"),
        }
    }
    let missing = Routes::load("/nowhere/at/all.json");
    assert!(
        matches!(missing, Err(Error::RouteFile { path, .. }) if path == "/nowhere/at/all.json")
    );
}

/// Whatever a route says, a plan by it keeps the contracts, or is refused.
#[test]
fn every_candidate_keeps_the_contracts() {
    for hidden in WIDTHS {
        for rows in [1, 64, 65, 513, 1025, 16_384, MAX_ROWS] {
            for residual in [false, true] {
                let shape = Shape::plain(hidden, rows, Dtype::Bf16, residual);
                let op = shape.operator();
                let device = DeviceProperties::H200;
                let forwards = op.forward_candidates(rows, residual, &device);
                let backwards = op.backward_candidates(rows, residual, &device);
                assert!(!forwards.is_empty() && !backwards.is_empty());
                for choice in forwards {
                    let plan = op.forward_plan_of(&choice, rows, residual, &device);
                    check_forward(&plan.expect("a candidate"), shape, &device);
                }
                for choice in backwards {
                    let plan = op.backward_plan_of(&choice, rows, residual, &device);
                    check_backward(&plan.expect("a candidate"), shape, &device);
                }
            }
        }
    }
}

#[test]
fn the_leaf_table_is_the_published_one() {
    let table = [
        (1, 8, 1),
        (513, 512, 2),
        (2047, 512, 2),
        (2048, 512, 4),
        (4095, 264, 4),
        (4096, 512, 8),
        (16_383, 512, 8),
        (16_384, 512, 16),
        (256, 8, 2),
        (257, 256, 1),
        (2047, 256, 1),
        (2048, 256, 2),
        (8191, 8, 4),
        (8192, 256, 8),
        (32_767, 256, 8),
        (32_768, 256, 16),
        (65_536, 256, 32),
        (512, 520, 4),
        (2047, 520, 1),
        (2048, 1024, 2),
        (1024, 1032, 8),
        (1025, 1032, 2),
        (256, 2048, 2),
        (64, 4096, 1),
        (65, 2056, 2),
        (256, 4096, 4),
        (257, 4096, 4),
        (64, 4104, 1),
        (65, 8192, 4),
        (128, 4104, 4),
        (129, 4104, 2),
        (256, 4104, 2),
        (4097, 4096, 8),
        (4097, 4104, 16),
        (65_536, 8192, 256),
        (128, 8200, 1),
        (129, 8200, 2),
        (1025, 8200, 8),
        (65_536, 16_384, 512),
        (MAX_ROWS, 8, 1 << 19),
        (MAX_ROWS, 4096, 1 << 21),
        (MAX_ROWS, 65_536, 1 << 23),
    ];
    for (rows, hidden, expected) in table {
        assert_eq!(
            leaf::leaf_rows(rows, hidden),
            expected,
            "T = {rows}, H = {hidden}"
        );
    }
}

/// But for what sets dw to 0, or rounds what it holds.
#[test]
fn nothing_is_launched_without_rows() {
    for hidden in WIDTHS {
        let shape = Shape::plain(hidden, 0, Dtype::Bf16, false);
        let device = DeviceProperties::H200;
        assert!(shape.forward(&device).expect("a plan").launch.is_none());
        for gradients in [Gradients::Both, Gradients::Input, Gradients::Weight] {
            for rstd in [Rstd::Kept, Rstd::Recomputed] {
                let shape = Shape {
                    gradients,
                    rstd,
                    ..shape
                };
                let plan = shape.backward(&device).expect("a plan");
                assert!(plan.statistics.is_none() && plan.main.is_none());
                assert_eq!((plan.workspace_bytes, plan.leaf.runs()), (0, 0));
                let Some(reduce) = plan.reduce else {
                    assert_eq!(gradients, Gradients::Input);
                    continue;
                };
                assert_ne!(gradients, Gradients::Input);
                assert!(!reduce.dependent, "there is nothing before it");
                check_reduce(&plan, &reduce, shape);
            }
        }
    }
}

/// Kernels that wait for the kernel before them, and touch no memory before.
static WAITING: LazyLock<BTreeSet<&str>> = LazyLock::new(|| {
    let waits = |ptx: &str| {
        let first = |what| ptx.find(what).unwrap_or(usize::MAX);
        let memory = [
            "ld.global",
            "st.global",
            "cp.async",
            "ld.shared",
            "st.shared",
        ];
        let touched = memory.into_iter().map(first).min();
        ptx.matches("griddepcontrol.wait;").count() == 1
            && touched.is_some_and(|touched| first("griddepcontrol.wait;") < touched)
    };
    let waiting = KERNELS.iter().filter(|kernel| {
        let module = Module::best(kernel.module, 90).expect("a module");
        waits(&module.entry(kernel.name).expect("an entry"))
    });
    waiting.map(|kernel| kernel.name).collect()
});

#[test]
fn dependent_launches_wait_first() {
    let device = DeviceProperties::H200;
    let check = |launch: Option<Launch>| {
        if let Some(Launch { kernel, .. }) = launch {
            assert!(WAITING.contains(kernel.name), "{}", kernel.name);
        }
    };
    for hidden in WIDTHS {
        for weight in [Dtype::F32, Dtype::Bf16] {
            for residual in [false, true] {
                let op = RmsNorm::new(hidden, weight, 1e-6).expect("an operator");
                let kernels = plan::kernels(&op, residual, Views::Any, &device).expect("kernels");
                for kernel in kernels {
                    assert!(WAITING.contains(kernel.name), "{}", kernel.name);
                }
            }
            for order in [GateOrder::NormFirst, GateOrder::GateFirst] {
                let Ok(op) = GatedRmsNorm::new(order, hidden, weight, 1e-6) else {
                    continue;
                };
                for rows in HEIGHTS {
                    let Ok(backward) = op.backward_plan(rows, true, &device) else {
                        continue;
                    };
                    check(backward.main);
                    check(backward.reduce);
                    for spacing in [Spacing::Even, Spacing::Any] {
                        check(
                            op.forward_plan(rows, spacing, &device)
                                .expect("a plan")
                                .launch,
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn every_kernel_has_a_shape_that_uses_it() {
    let device = DeviceProperties::H200;
    let mut used = BTreeSet::new();
    for hidden in WIDTHS {
        for rows in HEIGHTS {
            for weight in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
                for (residual, grouped) in
                    [(false, false), (true, false), (false, true), (true, true)]
                {
                    let shape = Shape {
                        grouped,
                        ..Shape::plain(hidden, rows, weight, residual)
                    };
                    let backward = shape.backward(&device).expect("a plan");
                    let forward = shape.forward(&device).expect("a plan");
                    let launches = [forward.launch, backward.main, backward.reduce];
                    used.extend(launches.into_iter().flatten().map(|it| it.kernel.name));
                }
            }
        }
    }
    let all: BTreeSet<_> = KERNELS.iter().map(|kernel| kernel.name).collect();
    assert_eq!(all.len(), KERNELS.len(), "names are unique");
    let all = KERNELS
        .iter()
        .filter(|kernel| kernel.module != bench::MODULE && !kernel.module.starts_with("gated"));
    let all: BTreeSet<_> = all.map(|kernel| kernel.name).collect();
    let unused: Vec<_> = all.difference(&used).collect();
    assert!(unused.is_empty(), "kernels that no plan uses: {unused:?}");
}
