//! Plans of the gated form keep their kernels' contracts, on any device.

use cake_rmsnorm::gated::{GateOrder, GatedForwardArgs, GatedRmsNorm, HeadsView};
use cake_rmsnorm::kernels::contract::Program;
use cake_rmsnorm::kernels::gated::backward::{block_shared_bytes, warp_shared_bytes};
use cake_rmsnorm::kernels::gated::backward_pairs::shared_bytes as pairs_shared_bytes;
use cake_rmsnorm::kernels::leaf::gated_leaf_rows;
use cake_rmsnorm::plan::{DeviceProperties, Launch, Spacing};
use cake_rmsnorm::{Dtype, Error, VectorView};

const ROWS: [u64; 12] = [
    1,
    2,
    31,
    512,
    4096,
    8191,
    65_537,
    131_072,
    1_000_003,
    1 << 22,
    (1 << 30) + 1,
    (1 << 31) - 1,
];

fn devices() -> Vec<DeviceProperties> {
    let shared = [101_376, 166_912, 232_448];
    let counts = [1, 8, 132, 1000];
    let all = counts.iter().flat_map(|&sm_count| {
        shared.map(|shared_bytes_per_block| DeviceProperties {
            sm_count,
            compute_capability: (9, 0),
            shared_bytes_per_block,
        })
    });
    all.collect()
}

/// Threads and grid that any program of these needs.
fn check_launch(launch: &Launch, op: &GatedRmsNorm, device: &DeviceProperties) {
    assert!(launch.block <= launch.kernel.max_threads && launch.block.is_multiple_of(32));
    assert!(launch.grid >= 1 && launch.grid.is_multiple_of(op.groups() as u32));
    assert!(launch.shared_bytes <= device.shared_bytes_per_block);
    assert!(launch.dependent, "{launch:?} costs the host less so");
    let width = op.width() as u32;
    let held = match launch.kernel.program {
        Program::GatedForwardWarp { lanes, vectors, .. }
        | Program::GatedBackwardWarp { lanes, vectors, .. } => 8 * lanes * vectors,
        Program::GatedForwardFlat { lanes, .. }
        | Program::GatedForwardPairs { lanes, .. }
        | Program::GatedBackwardPairs { lanes, .. } => 8 * lanes,
        Program::GatedForwardBlock { vectors, .. }
        | Program::GatedBackwardBlock { vectors, .. } => 8 * launch.block * vectors,
        other => panic!("{other:?}"),
    };
    assert!(width <= held, "{width} columns, {held} places");
}

#[test]
fn plans_keep_the_contracts() {
    for device in devices() {
        for (hidden, groups) in [
            (8, 1),
            (64, 1),
            (72, 1),
            (128, 1),
            (256, 1),
            (512, 1),
            (1024, 2),
            (4096, 1),
            (4104, 1),
            (8192, 1),
            (65_536, 8),
        ] {
            let op =
                GatedRmsNorm::with_groups(GateOrder::GateFirst, hidden, groups, Dtype::Bf16, 1e-6)
                    .expect("supported");
            for rows in ROWS {
                for spacing in [Spacing::Even, Spacing::Any] {
                    let forward = op.forward_plan(rows, spacing, &device).expect("a plan");
                    let launch = forward.launch.expect("rows");
                    check_launch(&launch, &op, &device);
                    if let Program::GatedForwardFlat { lanes, .. } = launch.kernel.program {
                        let whole = op.width() == u64::from(8 * lanes) && groups == 1;
                        assert!(whole && spacing == Spacing::Even, "{launch:?}");
                        let at_once = u64::from(2 * launch.grid * launch.block / lanes);
                        assert!(rows + at_once < 1 << 31, "{launch:?}");
                    }
                }
                let plan = match op.backward_plan(rows, true, &device) {
                    // The running sums of two vectors need more than such a device has.
                    Err(Error::SharedMemory { .. }) => {
                        let little = device.shared_bytes_per_block < 160_000;
                        assert!(op.width() > 4096 && little, "{rows} x {hidden} {device:?}");
                        continue;
                    }
                    plan => plan.expect("a plan"),
                };
                let main = plan.main.expect("rows");
                check_launch(&main, &op, &device);
                let leaf_rows = gated_leaf_rows(rows, op.width() as u32);
                assert_eq!(plan.leaf.leaf_rows(), leaf_rows);
                assert_eq!(u64::from(plan.leaf.leaves), rows.div_ceil(leaf_rows));
                assert!(main.grid / groups as u32 <= plan.leaf.runs());
                let run_log2 = plan.leaf.run_log2;
                let needed = match main.kernel.program {
                    Program::GatedBackwardWarp { lanes, vectors, .. } => {
                        let positions = main.block / lanes;
                        assert!(positions.is_power_of_two() && positions <= 1 << run_log2);
                        warp_shared_bytes(vectors, main.block, positions, run_log2)
                    }
                    Program::GatedBackwardPairs { lanes, .. } => {
                        assert!(leaf_rows >= 2, "a pair is of one leaf");
                        let positions = main.block / lanes;
                        assert!(positions.is_power_of_two() && positions <= 1 << run_log2);
                        pairs_shared_bytes(main.block, positions, run_log2)
                    }
                    Program::GatedBackwardBlock { vectors, .. } => {
                        block_shared_bytes(vectors, main.block, run_log2)
                    }
                    other => panic!("{other:?}"),
                };
                assert!(main.shared_bytes >= needed);
                assert_eq!(
                    plan.workspace_bytes,
                    u64::from(plan.leaf.runs()) * 8 * hidden
                );
                let reduce = plan.reduce.expect("dw is wanted");
                let chunks = u64::from(reduce.block / 4) << plan.chunk_log2;
                assert!(chunks >= u64::from(plan.leaf.runs()));
                let without = op.backward_plan(rows, false, &device).expect("a plan");
                assert!(without.reduce.is_none() && without.workspace_bytes == 0);
            }
        }
    }
}

#[test]
fn spacing_of_views() {
    let (tokens, heads, hidden) = (5, 3, 128);
    let packed = HeadsView::packed(1 << 20, tokens, heads, hidden);
    let spacing = |x: HeadsView, z: HeadsView, y: HeadsView| {
        Spacing::of(&GatedForwardArgs {
            x,
            z,
            w: VectorView::f32(0, hidden),
            y,
            rstd: None,
        })
    };
    let of = |token: i64, head: i64| {
        let view = packed.with_strides(token, head);
        let found = spacing(view, packed, packed);
        assert_eq!(spacing(packed, view, packed), found, "{view:?}");
        assert_eq!(spacing(packed, packed, view), found, "{view:?}");
        found
    };
    assert_eq!(of(384, 128), Spacing::Even);
    assert_eq!(of(408, 136), Spacing::Even);
    assert_eq!(of(-384, -128), Spacing::Even);
    assert_eq!(of(0, 0), Spacing::Even);
    assert_eq!(of(392, 128), Spacing::Any);
    assert_eq!(of(128, 640), Spacing::Any, "heads outside");
    // A row's distance, and three times it, have 32 bits as bytes.
    assert_eq!(of(3 * (1 << 30), 1 << 30), Spacing::Any);
    assert_eq!(of(3 * ((1 << 30) - 8), (1 << 30) - 8), Spacing::Even);
    assert_eq!(of(i64::MAX, i64::MAX), Spacing::Any);
    // Strides of one token, or of one head, do not matter.
    let one = |tokens, heads, token, head| {
        let packed = HeadsView::packed(1 << 20, tokens, heads, hidden);
        spacing(packed.with_strides(token, head), packed, packed)
    };
    assert_eq!(one(1, 3, 8, 136), Spacing::Even);
    assert_eq!(one(5, 1, 136, 8), Spacing::Even);
    assert_eq!(one(1, 1, 8, i64::MIN), Spacing::Even);
    assert_eq!(one(0, 3, 8, 8), Spacing::Even);
}

#[test]
fn leaves_depend_on_the_shape_alone() {
    for (rows, width, leaf_rows) in [
        (1, 128, 1),
        (2048, 128, 1),
        (2049, 128, 2),
        (2049, 576, 2),
        (16_384, 128, 2),
        (32_768, 512, 4),
        (131_072, 128, 8),
        (1 << 19, 128, 8),
        (1 << 21, 128, 32),
        (1 << 22, 512, 64),
        ((1 << 31) - 1, 64, 1 << 14),
        (1 << 20, 1024, 1024),
        (1 << 20, 8192, 2048),
    ] {
        assert_eq!(gated_leaf_rows(rows, width), leaf_rows, "{rows} {width}");
    }
}

#[test]
fn without_rows_only_dw_is_written() {
    let op = GatedRmsNorm::new(GateOrder::NormFirst, 128, Dtype::F32, 1e-6).expect("supported");
    let device = DeviceProperties::H200;
    assert!(
        op.forward_plan(0, Spacing::Even, &device)
            .expect("a plan")
            .launch
            .is_none()
    );
    let plan = op.backward_plan(0, true, &device).expect("a plan");
    assert!(plan.main.is_none() && plan.workspace_bytes == 0);
}
