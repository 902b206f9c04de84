//! The boundary from the Rust side: null pointers, numbers that are no enumerators, devices that are
//! not there. Outputs are NaN before a call that must be refused, and after it.

use cake_rmsnorm_capi::*;
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};

const INVALID: i32 = CakeRmsnormStatus::InvalidArgument as i32;

fn last_error() -> String {
    // SAFETY: a terminated string that stays until this thread's next failure.
    let message = unsafe { CStr::from_ptr(cake_rmsnorm_last_error()) };
    message.to_str().expect("UTF-8").to_owned()
}

fn refused(status: i32, words: &str) {
    let message = last_error();
    assert_eq!(status, INVALID, "{words}: {message}");
    assert!(message.contains(words), "{words}: {message}");
}

fn config() -> CakeRmsnormConfig {
    CakeRmsnormConfig {
        struct_size: size_of::<CakeRmsnormConfig>(),
        hidden: 16,
        input: CakeRmsnormDtype::F32 as i32,
        weight: CakeRmsnormDtype::F32 as i32,
        eps: 1e-6,
        weight_offset: 0.0,
    }
}

fn gated_config() -> CakeRmsnormGatedConfig {
    CakeRmsnormGatedConfig {
        struct_size: size_of::<CakeRmsnormGatedConfig>(),
        hidden: 16,
        groups: 1,
        weight: CakeRmsnormDtype::F32 as i32,
        order: CakeRmsnormGateOrder::NormFirst as i32,
        eps: 1e-6,
    }
}

/// Handles that end with this object.
struct Handles {
    plain: *mut CakeRmsnormOperator,
    gated: *mut CakeRmsnormGatedOperator,
}

impl Handles {
    fn new() -> Self {
        let (mut plain, mut gated) = (null_mut(), null_mut());
        // SAFETY: live structs and places for handles.
        unsafe {
            assert_eq!(cake_rmsnorm_create(&config(), &mut plain), 0);
            assert_eq!(cake_rmsnorm_gated_create(&gated_config(), &mut gated), 0);
        }
        Self { plain, gated }
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        // SAFETY: nobody else uses them.
        unsafe {
            cake_rmsnorm_destroy(self.plain);
            cake_rmsnorm_gated_destroy(self.gated);
        }
    }
}

/// A struct of which nothing is set.
fn zeroed<T>() -> T {
    // SAFETY: the interface's structs are numbers and pointers.
    unsafe { std::mem::zeroed() }
}

fn forward() -> CakeRmsnormForward {
    CakeRmsnormForward {
        struct_size: size_of::<CakeRmsnormForward>(),
        ..zeroed()
    }
}

fn backward() -> CakeRmsnormBackward {
    CakeRmsnormBackward {
        struct_size: size_of::<CakeRmsnormBackward>(),
        ..zeroed()
    }
}

fn properties() -> CakeRmsnormDeviceProperties {
    CakeRmsnormDeviceProperties {
        struct_size: size_of::<CakeRmsnormDeviceProperties>(),
        sm_count: 132,
        compute_capability_major: 9,
        compute_capability_minor: 0,
        shared_bytes_per_block: 232_448,
    }
}

#[test]
fn null_pointers_are_refused_by_name() {
    let Handles { plain, gated } = &Handles::new();
    let (op, gop) = (*plain, *gated);
    let cpu = CAKE_RMSNORM_CPU;
    let (mut handle, mut gated_handle, mut bytes) = (null_mut(), null_mut(), 0);
    let (mut plan, mut matrix): (CakeRmsnormPlan, CakeRmsnormMatrix) = (zeroed(), zeroed());
    plan.struct_size = size_of::<CakeRmsnormPlan>();
    let (h200, fwd, bwd) = (properties(), forward(), backward());
    let (gfwd, gbwd): (CakeRmsnormGatedForward, CakeRmsnormGatedBackward) = (zeroed(), zeroed());
    let (shape, strides) = ([1u64], [1i64]);
    let (data, stream): (*mut c_void, *mut c_void) = (null_mut(), null_mut());
    // SAFETY: null where the call must refuse it, else live.
    unsafe {
        refused(
            cake_rmsnorm_create(null(), &mut handle),
            "config is a null pointer",
        );
        refused(
            cake_rmsnorm_create(&config(), null_mut()),
            "op_out is a null pointer",
        );
        refused(
            cake_rmsnorm_gated_create(null(), &mut gated_handle),
            "config is a null",
        );
        refused(
            cake_rmsnorm_gated_create(&gated_config(), null_mut()),
            "op_out is a null",
        );
        refused(
            cake_rmsnorm_prepare(null(), cpu, 0, 0),
            "op is a null pointer",
        );
        refused(
            cake_rmsnorm_gated_prepare(null(), cpu),
            "op is a null pointer",
        );
        refused(
            cake_rmsnorm_workspace_bytes(null(), cpu, 1, 0, &mut bytes),
            "op is a null",
        );
        refused(
            cake_rmsnorm_workspace_bytes(op, cpu, 1, 0, null_mut()),
            "bytes is a null",
        );
        refused(
            cake_rmsnorm_gated_workspace_bytes(null(), cpu, 1, &mut bytes),
            "op is a null",
        );
        refused(
            cake_rmsnorm_gated_workspace_bytes(gop, cpu, 1, null_mut()),
            "bytes is a null",
        );
        refused(
            cake_rmsnorm_forward(null(), cpu, stream, &fwd),
            "op is a null pointer",
        );
        refused(
            cake_rmsnorm_forward(op, cpu, stream, null()),
            "args is a null pointer",
        );
        refused(
            cake_rmsnorm_backward(null(), cpu, stream, &bwd),
            "op is a null pointer",
        );
        refused(
            cake_rmsnorm_backward(op, cpu, stream, null()),
            "args is a null pointer",
        );
        refused(
            cake_rmsnorm_gated_forward(null(), cpu, stream, &gfwd),
            "op is a null",
        );
        refused(
            cake_rmsnorm_gated_forward(gop, cpu, stream, null()),
            "args is a null",
        );
        refused(
            cake_rmsnorm_gated_backward(null(), cpu, stream, &gbwd),
            "op is a null",
        );
        refused(
            cake_rmsnorm_gated_backward(gop, cpu, stream, null()),
            "args is a null",
        );
        refused(
            cake_rmsnorm_device_properties(0, null_mut()),
            "properties is a null",
        );
        refused(
            cake_rmsnorm_forward_plan(null(), &h200, &fwd, &mut plan),
            "op is a null",
        );
        refused(
            cake_rmsnorm_forward_plan(op, null(), &fwd, &mut plan),
            "device is a null",
        );
        refused(
            cake_rmsnorm_forward_plan(op, &h200, null(), &mut plan),
            "args is a null",
        );
        refused(
            cake_rmsnorm_forward_plan(op, &h200, &fwd, null_mut()),
            "plan is a null",
        );
        refused(
            cake_rmsnorm_backward_plan(null(), &h200, &bwd, &mut plan),
            "op is a null",
        );
        refused(
            cake_rmsnorm_backward_plan(op, null(), &bwd, &mut plan),
            "device is a null",
        );
        refused(
            cake_rmsnorm_backward_plan(op, &h200, null(), &mut plan),
            "args is a null",
        );
        refused(
            cake_rmsnorm_backward_plan(op, &h200, &bwd, null_mut()),
            "plan is a null",
        );
        refused(
            cake_rmsnorm_gated_forward_plan(gop, null(), &gfwd, &mut plan),
            "device is a",
        );
        refused(
            cake_rmsnorm_gated_backward_plan(gop, &h200, null(), &mut plan),
            "args is a",
        );
        let (m, rows) = (&raw mut matrix, &raw mut bytes);
        let (s, t) = (shape.as_ptr(), strides.as_ptr());
        refused(
            cake_rmsnorm_matrix_from_shape(data, 1, null(), t, m, rows),
            "shape is a null",
        );
        refused(
            cake_rmsnorm_matrix_from_shape(data, 1, s, null(), m, rows),
            "strides is a",
        );
        refused(
            cake_rmsnorm_matrix_from_shape(data, 1, s, t, null_mut(), rows),
            "matrix is a",
        );
        refused(
            cake_rmsnorm_matrix_from_shape(data, 1, s, t, m, null_mut()),
            "rows is a null",
        );
        let many = usize::MAX;
        refused(
            cake_rmsnorm_matrix_from_shape(data, many, s, t, m, rows),
            "accepted are 1 to 64",
        );
        refused(
            cake_rmsnorm_matrix_from_shape(data, 0, s, t, m, rows),
            "a shape of 0",
        );
        cake_rmsnorm_destroy(null_mut());
        cake_rmsnorm_gated_destroy(null_mut());
    }
}

#[test]
fn numbers_that_are_no_enumerators_are_refused() {
    let handles = Handles::new();
    for number in [-1, 4, i32::MIN, i32::MAX] {
        let mut op = handles.plain;
        let mut gated = handles.gated;
        let with = |change: &dyn Fn(&mut CakeRmsnormConfig)| {
            let mut config = config();
            change(&mut config);
            config
        };
        let with_gated = |change: &dyn Fn(&mut CakeRmsnormGatedConfig)| {
            let mut config = gated_config();
            change(&mut config);
            config
        };
        let is = |name: &str| format!("{name} is {number}: accepted are");
        // SAFETY: live structs, handles and places for handles.
        unsafe {
            let input = with(&|config| config.input = number);
            refused(cake_rmsnorm_create(&input, &mut op), &is("config.input"));
            assert!(op.is_null(), "no handle after a refusal");
            let weight = with(&|config| config.weight = number);
            refused(cake_rmsnorm_create(&weight, &mut op), &is("config.weight"));
            let weight = with_gated(&|config| config.weight = number);
            refused(
                cake_rmsnorm_gated_create(&weight, &mut gated),
                &is("config.weight"),
            );
            let order = with_gated(&|config| config.order = number);
            refused(
                cake_rmsnorm_gated_create(&order, &mut gated),
                &is("config.order"),
            );
            assert!(gated.is_null(), "no handle after a refusal");
            let (op, cpu) = (handles.plain, CAKE_RMSNORM_CPU);
            refused(cake_rmsnorm_prepare(op, cpu, number, 0), &is("residual"));
            refused(cake_rmsnorm_prepare(op, cpu, 0, number), &is("views"));
            let mut bytes = 0;
            let status = cake_rmsnorm_workspace_bytes(op, cpu, 1, number, &mut bytes);
            refused(status, &is("residual"));
            let args = CakeRmsnormBackward {
                dw_update: number,
                ..backward()
            };
            let status = cake_rmsnorm_backward(op, cpu, null_mut(), &args);
            refused(status, &is("args.dw_update"));
        }
    }
    // SAFETY: as above.
    unsafe {
        let none = CakeRmsnormConfig {
            input: CakeRmsnormDtype::None as i32,
            ..config()
        };
        refused(
            cake_rmsnorm_create(&none, &mut null_mut()),
            "config.input is 0: accepted are 1",
        );
        let no_weight = CakeRmsnormGatedConfig {
            weight: CakeRmsnormDtype::None as i32,
            ..gated_config()
        };
        let status = cake_rmsnorm_gated_create(&no_weight, &mut null_mut());
        refused(status, "config.weight is 0: accepted are 1");
    }
}

#[test]
fn structs_of_another_size_are_refused() {
    let handles = Handles::new();
    let (op, gated, cpu) = (handles.plain, handles.gated, CAKE_RMSNORM_CPU);
    let stream = null_mut();
    for size in [0, 8, usize::MAX] {
        let is = |name: &str| format!("{name}.struct_size is {size}: accepted is ");
        // SAFETY: live structs and handles.
        unsafe {
            let fwd = CakeRmsnormForward {
                struct_size: size,
                ..zeroed()
            };
            refused(cake_rmsnorm_forward(op, cpu, stream, &fwd), &is("args"));
            let bwd = CakeRmsnormBackward {
                struct_size: size,
                ..zeroed()
            };
            refused(cake_rmsnorm_backward(op, cpu, stream, &bwd), &is("args"));
            let fwd = CakeRmsnormGatedForward {
                struct_size: size,
                ..zeroed()
            };
            refused(
                cake_rmsnorm_gated_forward(gated, cpu, stream, &fwd),
                &is("args"),
            );
            let bwd = CakeRmsnormGatedBackward {
                struct_size: size,
                ..zeroed()
            };
            refused(
                cake_rmsnorm_gated_backward(gated, cpu, stream, &bwd),
                &is("args"),
            );
            let mut device = CakeRmsnormDeviceProperties {
                struct_size: size,
                ..zeroed()
            };
            refused(
                cake_rmsnorm_device_properties(0, &mut device),
                &is("properties"),
            );
            let mut plan: CakeRmsnormPlan = zeroed();
            plan.struct_size = size_of::<CakeRmsnormPlan>();
            let status = cake_rmsnorm_forward_plan(op, &device, &forward(), &mut plan);
            refused(status, &is("device"));
            plan.struct_size = size;
            let status = cake_rmsnorm_forward_plan(op, &properties(), &forward(), &mut plan);
            refused(status, &is("plan"));
        }
    }
}

#[test]
fn refused_calls_write_nothing() {
    let handles = Handles::new();
    let nan = f32::NAN;
    let (mut x, mut w, mut y) = ([1.0f32; 32], [1.0f32; 16], [nan; 32]);
    let at = |data: &mut [f32], row_stride| CakeRmsnormMatrix {
        data: data.as_mut_ptr().cast(),
        row_stride,
        group_rows: 0,
        group_stride: 0,
    };
    let good = CakeRmsnormForward {
        rows: 2,
        x: at(&mut x, 16),
        y: at(&mut y, 16),
        w: w.as_mut_ptr().cast(),
        ..forward()
    };
    let bad = [
        (
            CakeRmsnormForward {
                y: at(&mut y, 8),
                ..good
            },
            "y is an output and has row stride 8",
        ),
        (
            CakeRmsnormForward {
                rows: 1 << 31,
                ..good
            },
            "2147483648 rows are too many",
        ),
        (
            CakeRmsnormForward {
                x: CakeRmsnormMatrix {
                    group_rows: 3,
                    ..good.x
                },
                ..good
            },
            "x has 2 rows in groups of 3",
        ),
        (
            CakeRmsnormForward { h: good.y, ..good },
            "h is given without residual",
        ),
        (CakeRmsnormForward { w: null(), ..good }, "w is missing"),
    ];
    for (args, words) in bad {
        // SAFETY: live structs and a live handle; what is refused touches no memory.
        let status =
            unsafe { cake_rmsnorm_forward(handles.plain, CAKE_RMSNORM_CPU, null_mut(), &args) };
        refused(status, words);
        assert!(y.iter().all(|y| y.is_nan()), "{words}: y was written");
    }
    // SAFETY: the buffers are those of two rows of 16 elements.
    let status =
        unsafe { cake_rmsnorm_forward(handles.plain, CAKE_RMSNORM_CPU, null_mut(), &good) };
    assert_eq!(status, 0, "{}", last_error());
    assert!(y.iter().all(|y| !y.is_nan()));
}

#[test]
fn gpus_that_are_not_there() {
    let handles = Handles::new();
    let fwd = forward();
    for device in [-2, i32::MIN] {
        // SAFETY: live structs and handles.
        unsafe {
            let status = cake_rmsnorm_forward(handles.plain, device, null_mut(), &fwd);
            refused(status, &format!("device is {device}: accepted are -1"));
            let status = cake_rmsnorm_device_properties(device, &mut properties());
            refused(
                status,
                &format!("device is {device}: accepted are CUDA ordinals"),
            );
        }
    }
    // SAFETY: as above.
    let status = unsafe { cake_rmsnorm_forward(handles.plain, 63, null_mut(), &fwd) };
    let message = last_error();
    if cfg!(feature = "cuda") {
        // No driver, or none with so many GPUs.
        assert_eq!(status, CakeRmsnormStatus::Cuda as i32, "{message}");
        assert!(message.contains("CUDA driver"), "{message}");
    } else {
        assert_eq!(
            status,
            CakeRmsnormStatus::NotBuiltWithCuda as i32,
            "{message}"
        );
        assert!(message.contains("was not built with CUDA"), "{message}");
    }
}

/// A panic that leaves a function of the interface ends the process. Each body is guarded.
#[test]
fn every_function_is_guarded() {
    // These do nothing that could fail.
    let plain = [
        "cake_rmsnorm_abi_version",
        "cake_rmsnorm_last_error",
        "cake_rmsnorm_status_name",
        "rmsnorm_bench_abi",
        "rmsnorm_bench_name",
    ];
    let mut seen = 0;
    for file in [
        "failure",
        "types",
        "plain",
        "gated",
        "plan",
        "bench/mod",
        "bench/gated",
    ] {
        let path = format!("{}/src/{file}.rs", env!("CARGO_MANIFEST_DIR"));
        let source = std::fs::read_to_string(&path).expect("a source");
        for function in source.split("extern \"C\" fn ").skip(1) {
            let (name, _) = function.split_once('(').expect("arguments");
            let (body, _) = function.split_once("\n}\n").expect("an end");
            let guards = ["guard(|| {", "answer(|| {", "bytes_or_none(|| "];
            let guarded = guards.iter().any(|guard| body.contains(guard));
            assert!(guarded || plain.contains(&name), "{file}.rs: {name}");
            seen += 1;
        }
    }
    assert_eq!(seen, 29, "functions of the interface");
}
