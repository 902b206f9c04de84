//! A C program against the header and both libraries: compiled as C11 and as C++17, run on the CPU,
//! its outputs compared with the golden implementation's bits.

#![cfg(target_os = "linux")]

use cake_rmsnorm::gated::{self, GateOrder, GatedRmsNorm};
use cake_rmsnorm::golden::{Weight, backward_slices, forward_slices};
use cake_rmsnorm::plan::{self, BackwardForm, DeviceProperties, ForwardForm};
use cake_rmsnorm::{Dtype, RmsNorm};
use half::bf16;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROWS: usize = 12;
const HIDDEN: usize = 40;

/// Where cargo puts the libraries that it builds for this test.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().expect("this test's path");
    test.parent().expect("its folder").to_owned()
}

/// As the program's.
fn values(seed: u32, count: usize) -> Vec<f32> {
    let value = |i: u32| ((i * 37 + seed * 61) % 101) as f32 / 16.0 - 3.0;
    (0..count as u32).map(value).collect()
}

fn line(name: &str, values: &[f32]) -> String {
    values.iter().fold(name.to_owned(), |mut text, value| {
        let _ = write!(text, " {:08x}", value.to_bits());
        text
    })
}

fn line16(name: &str, values: &[bf16]) -> String {
    values.iter().fold(name.to_owned(), |mut text, value| {
        let _ = write!(text, " {:04x}", value.to_bits());
        text
    })
}

/// What the program must print.
fn expected() -> Vec<String> {
    let op = RmsNorm::builder(HIDDEN as u64)
        .input(Dtype::F32)
        .weight(Dtype::F32)
        .eps(1e-5)
        .weight_offset(1.0)
        .build()
        .expect("an operator");
    let matrix = |seed| values(seed, ROWS * HIDDEN);
    let (x, residual, dy, dh) = (matrix(1), matrix(2), matrix(3), matrix(4));
    let w = values(5, HIDDEN);
    let w = Weight::F32(&w);
    let forward = forward_slices(&op, &x, Some(&residual), w).expect("a forward");
    let h = forward.h.as_ref().expect("h");
    let backward = backward_slices(&op, &dy, h, Some(&dh), w, &forward.rstd).expect("a backward");
    let (dx, dw) = (line("dx", &backward.dx), line("dw", &backward.dw));
    let narrow: Vec<_> = backward.dw.iter().map(|&dw| bf16::from_f32(dw)).collect();
    let y = line("y", &forward.y);
    let plain = forward_slices(&op, &x, None, w).expect("a plain forward");
    let mut lines = vec![
        line("h", h),
        y.clone(),
        line("rstd", &forward.rstd),
        dx.clone(),
        dw.clone(),
        dx.clone(),
        dw,
        line16("dw_bf16", &narrow),
        line(
            "dw2",
            &accumulated(&op, &dy, h, w, &forward.rstd, &backward.dw),
        ),
        dx,
        line("plain y", &plain.y),
    ];
    lines.extend(std::iter::repeat_n(y, 4));
    lines.extend(plans(&op));
    lines.extend(gated_lines());
    lines
}

/// dw added to itself, through the Rust interface.
fn accumulated(
    op: &RmsNorm,
    dy: &[f32],
    h: &[f32],
    w: Weight<'_>,
    rstd: &[f32],
    held: &[f32],
) -> Vec<f32> {
    use cake_rmsnorm::backend::{Backend, cpu::Cpu};
    use cake_rmsnorm::{BackwardArgs, RowsView, VectorView, WeightGradient, Workspace};
    let Weight::F32(w) = w else {
        unreachable!("an FP32 weight")
    };
    let mut dw = held.to_vec();
    let matrix = |values: &[f32]| {
        RowsView::packed(values.as_ptr() as u64, ROWS as u64, HIDDEN as u64).with_dtype(Dtype::F32)
    };
    let vector = |values: &[f32]| VectorView::f32(values.as_ptr() as u64, values.len() as u64);
    let args = BackwardArgs {
        dy: matrix(dy),
        x: matrix(h),
        dh: None,
        w: Some(vector(w)),
        rstd: Some(vector(rstd)),
        dx: None,
        dw: Some(WeightGradient::accumulate(VectorView::f32(
            dw.as_mut_ptr() as u64,
            HIDDEN as u64,
        ))),
        workspace: Workspace {
            address: 0,
            bytes: 0,
        },
    };
    // SAFETY: the views are those of live slices; dw is used by nobody else.
    unsafe { Cpu.backward(op, &args) }.expect("a backward");
    dw
}

fn plans(op: &RmsNorm) -> [String; 2] {
    let rows = ROWS as u64;
    let forward = ForwardForm {
        residual: true,
        alignment: plan::Alignment::Element,
        grouped: false,
    };
    let forward = plan::forward(op, rows, forward, &DeviceProperties::H200).expect("a plan");
    let forward = forward.launch.expect("a launch").kernel.name;
    let backward = BackwardForm {
        residual: true,
        rstd: plan::Rstd::Recomputed,
        ..BackwardForm::default()
    };
    let backward = plan::backward(op, rows, backward, &DeviceProperties::H200).expect("a plan");
    let bytes = backward.workspace_bytes;
    let launches = [backward.statistics, backward.main, backward.reduce];
    let names: Vec<_> = launches.iter().flatten().map(|l| l.kernel.name).collect();
    [
        format!("forward: 1 {forward} workspace 0"),
        format!(
            "backward: {} {} workspace {bytes}",
            names.len(),
            names.join(" ")
        ),
    ]
}

fn gated_lines() -> [String; 4] {
    let (rows, width) = (6, 64);
    let op = GatedRmsNorm::with_groups(GateOrder::GateFirst, width as u64, 2, Dtype::F32, 1e-5);
    let op = op.expect("an operator");
    let narrow = |seed| -> Vec<bf16> {
        let values = values(seed, rows * width);
        let bits = values.iter().map(|value| (value.to_bits() >> 16) as u16);
        bits.map(bf16::from_bits).collect()
    };
    let (x, z, dy) = (narrow(0), narrow(1), narrow(2));
    let w = values(3, width);
    let w = Weight::F32(&w);
    let forward = gated::forward_slices(&op, &x, &z, w).expect("a forward");
    let backward = gated::backward_slices(&op, &dy, &x, &z, w, None).expect("a backward");
    [
        line16("gated y", &forward.y),
        line16("gated dx", &backward.dx),
        line16("gated dz", &backward.dz),
        line("gated dw", &backward.dw),
    ]
}

/// Compiles and runs a program; its lines.
fn run(source: &Path, compiler: &str, options: &[&str], static_library: bool) -> Vec<String> {
    let capi = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = folder.path().join("program");
    let libraries = libraries();
    let mut command = Command::new(compiler);
    command
        .args(options)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1"])
        .arg("-I")
        .arg(capi.join("include"))
        .arg(source)
        .arg("-o")
        .arg(&program);
    if static_library {
        // A C++ compiler takes what follows for C++ too.
        command.args(["-x", "none"]);
        command.arg(libraries.join("libcake_rmsnorm_capi.a"));
        // Without what is not used, which with CUDA needs the driver's library.
        command.arg("-Wl,--gc-sections");
    } else {
        let run_path = format!("-Wl,-rpath,{}", libraries.display());
        command.args(["-x", "none"]).arg(run_path);
        command.arg("-L").arg(&libraries).arg("-lcake_rmsnorm_capi");
    }
    command.args(["-lpthread", "-ldl", "-lm"]);
    let compiled = command.output().expect("a C compiler");
    let log = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{command:?}:\n{log}");
    // The library with CUDA loads without a driver.
    let output = Command::new(&program)
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .expect("the program");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(
        output.status.success(),
        "{}:\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text.lines().map(str::to_owned).collect()
}

/// Text between two others.
fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let (_, rest) = text.split_once(start).expect("a start");
    rest.split_once(end).expect("an end").0
}

#[test]
fn the_guides_program_prints_what_the_guide_says() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/embedding-c.md");
    let guide = std::fs::read_to_string(guide).expect("the guide");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = folder.path().join("forward.c");
    std::fs::write(&source, between(&guide, "```c\n", "```")).expect("the program");
    let found = run(&source, "cc", &["-x", "c", "-std=c11"], false);
    let says = between(&guide, "./forward      # ", "\n");
    assert_eq!(found, [says]);
}

#[test]
fn c_and_cpp_programs_get_the_golden_bits() {
    let expected = expected();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/program.c");
    let languages: [(&str, &[&str]); 2] = [
        ("cc", &["-x", "c", "-std=c11"]),
        ("c++", &["-x", "c++", "-std=c++17"]),
    ];
    for (compiler, options) in languages {
        for static_library in [false, true] {
            let found = run(&source, compiler, options, static_library);
            assert_eq!(found, expected, "{compiler}, static: {static_library}");
        }
    }
}
