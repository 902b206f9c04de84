//! The program `cake-rmsnorm`, run as a user runs it.

use half::bf16;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize_to_file};
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

fn program(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cake-rmsnorm"));
    command
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the program starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// Standard error of a run that must be refused.
fn refusal(arguments: &[&str]) -> String {
    let output = program(arguments);
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    stderr
}

/// The JSON of a check that must succeed.
fn check(arguments: &[&str]) -> Value {
    let output = program(&[&["check", "--json"], arguments].concat());
    let text = stdout(&output);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{arguments:?}: {text}{stderr}"
    );
    let report = serde_json::from_str(&text).expect("exactly one JSON object");
    assert_fine(&report);
    report
}

fn assert_fine(report: &Value) {
    assert_eq!(report["ok"], true, "{report}");
    for name in ["y", "rstd", "dx", "dw"] {
        let output = &report[name];
        assert_eq!(output["bits_match_golden"], true, "{name}: {report}");
        assert_eq!(output["within_bound"], true, "{name}: {report}");
        assert!(output["max_ulp"].is_number(), "{name}: {report}");
        let rounded = output["correctly_rounded"].as_f64().expect("a fraction");
        assert!((0.0..=1.0).contains(&rounded), "{name}: {report}");
    }
    assert_eq!(report["dw"]["repeat_bits"], true);
    assert!(
        report["dw"]["worst_budget"].as_f64().expect("a number") < 1e-2,
        "{report}"
    );
    assert!(
        report["dw"]["rel_l2"].as_f64().expect("a number") < 1e-6,
        "{report}"
    );
}

#[test]
fn without_arguments_real_training_tensors_are_checked() {
    let report = check(&[]);
    let shape = ["rows", "hidden"].map(|key| report[key].as_u64());
    assert_eq!(shape, [Some(512), Some(576)]);
    assert_eq!(report["weight"], "f32");
    assert_eq!(report["eps"].as_f64().map(|eps| eps as f32), Some(1e-5));
    assert!(report["y"]["correctly_rounded"].as_f64() > Some(0.999));

    let output = program(&["check"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let wanted = [
        "device ",
        "blk-12-ffn_norm",
        "512 rows x 576",
        "output",
        "rstd",
        "dx",
        "dw:",
    ];
    for wanted in wanted {
        assert!(text.contains(wanted), "{wanted} is not in {text}");
    }
    assert_eq!(text.lines().last(), Some("OK"));
}

#[test]
fn the_embedded_weight_can_be_rounded() {
    let report = check(&["--weight", "bf16", "--device", "cpu"]);
    assert_eq!(report["weight"], "bf16");
    assert_eq!(report["device"], "cpu");
}

#[test]
fn shapes_weights_and_residuals() {
    let shapes = [
        ("0", "64"),
        ("1", "8"),
        ("7", "264"),
        ("130", "1600"),
        ("513", "576"),
        ("3", "16384"),
    ];
    for (rows, hidden) in shapes {
        for weight in ["f32", "bf16"] {
            let shape = [
                "--rows", rows, "--hidden", hidden, "--weight", weight, "--device", "cpu",
            ];
            let report = check(&shape);
            assert_eq!(report["rows"].to_string(), rows);
            assert_eq!(report["hidden"].to_string(), hidden);
            assert_eq!(report["weight"], weight);
            assert!(report.get("h").is_none());

            let report = check(&[&shape[..], &["--residual", "--seed", "3"]].concat());
            assert_eq!(report["residual"], true);
            assert_eq!(report["h"]["within_bound"], true);
            assert_eq!(report["h"]["bits_match_golden"], true);
        }
    }
}

#[test]
fn the_simulator_gives_the_same_bits_whatever_its_size() {
    let folder = TempDir::new().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let base = ["--rows", "19", "--hidden", "264"];
    let written = |name: &str, extra: &[&str]| {
        let file = path(name);
        let file = file.to_str().expect("a path");
        check(&[&base[..], extra, &["--output", file]].concat());
        tensors_of(&path(name))
    };
    let cpu = written("cpu", &["--device", "cpu"]);
    for sm_count in ["1", "7", "132"] {
        assert!(
            written("sim", &["--device", "sim", "--sm-count", sm_count]) == cpu,
            "{sm_count}"
        );
    }
}

#[test]
fn seeds_name_inputs() {
    let outputs = ["1", "1", "2"].map(|seed| {
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join("out.safetensors");
        let path_text = path.to_str().expect("a path");
        check(&[
            "--rows", "5", "--hidden", "64", "--seed", seed, "--device", "cpu", "--output",
            path_text,
        ]);
        tensors_of(&path)
    });
    assert!(outputs[0] == outputs[1]);
    assert!(outputs[0] != outputs[2]);
}

/// Names, types, shapes and bytes of the tensors in a file.
fn tensors_of(path: &Path) -> Vec<(String, String, Vec<usize>, Vec<u8>)> {
    let bytes = std::fs::read(path).expect("the file that was written");
    let tensors = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let mut list: Vec<_> = tensors
        .iter()
        .map(|(name, view)| {
            (
                name.to_owned(),
                view.dtype().to_string(),
                view.shape().to_vec(),
                view.data().to_vec(),
            )
        })
        .collect();
    list.sort();
    list
}

/// A tensor of a test file.
type Tensor = (&'static str, Dtype, Vec<usize>, Vec<u8>);

fn bf16_tensor(name: &'static str, shape: &[usize], value: impl Fn(usize) -> f32) -> Tensor {
    let len = shape.iter().product();
    let bytes = (0..len)
        .flat_map(|i| bf16::from_f32(value(i)).to_le_bytes())
        .collect();
    (name, Dtype::BF16, shape.to_vec(), bytes)
}

fn f32_tensor(name: &'static str, shape: &[usize], value: impl Fn(usize) -> f32) -> Tensor {
    let len = shape.iter().product();
    let bytes = (0..len).flat_map(|i| value(i).to_le_bytes()).collect();
    (name, Dtype::F32, shape.to_vec(), bytes)
}

struct InputFile {
    _folder: TempDir,
    path: PathBuf,
}

impl InputFile {
    fn new(tensors: &[Tensor], eps: Option<&str>) -> Self {
        let file = Self::of_bytes(&[]);
        let views = tensors.iter().map(|(name, dtype, shape, data)| {
            (
                *name,
                TensorView::new(*dtype, shape.clone(), data).expect("whole elements"),
            )
        });
        let metadata = eps.map(|eps| HashMap::from([("eps".to_owned(), eps.to_owned())]));
        serialize_to_file(views, metadata, &file.path).expect("a file");
        file
    }

    fn of_bytes(bytes: &[u8]) -> Self {
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join("in.safetensors");
        std::fs::write(&path, bytes).expect("a file");
        InputFile {
            _folder: folder,
            path,
        }
    }

    fn path(&self) -> &str {
        self.path.to_str().expect("a path")
    }
}

fn wave(i: usize) -> f32 {
    (i as f32 * 0.7).sin() * 2.0
}

fn ordinary() -> Vec<Tensor> {
    vec![
        bf16_tensor("x", &[3, 16], wave),
        bf16_tensor("dy", &[3, 16], |i| wave(i + 5) * 0.1),
        f32_tensor("w", &[16], |i| 1.0 + i as f32 / 64.0),
    ]
}

#[test]
fn a_file_goes_in_and_the_formulas_come_out() {
    let file = InputFile::new(&ordinary(), Some("0.25"));
    let folder = TempDir::new().expect("a folder");
    let out = folder.path().join("out.safetensors");
    let report = check(&[
        "--input",
        file.path(),
        "--output",
        out.to_str().expect("a path"),
    ]);
    assert_eq!(report["eps"], 0.25);

    let written = tensors_of(&out);
    let names: Vec<_> = written
        .iter()
        .map(|(name, dtype, shape, _)| format!("{name} {dtype} {shape:?}"))
        .collect();
    assert_eq!(
        names,
        [
            "dw F32 [16]",
            "dx BF16 [3, 16]",
            "rstd F32 [3]",
            "y BF16 [3, 16]"
        ]
    );
    let f32s = |i: usize| -> Vec<f64> {
        written[i]
            .3
            .chunks(4)
            .map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes")).into())
            .collect()
    };
    let bf16s = |i: usize| -> Vec<f64> {
        written[i]
            .3
            .chunks(2)
            .map(|b| bf16::from_le_bytes(b.try_into().expect("2 bytes")).to_f64())
            .collect()
    };
    let (dw, dx, rstd, y) = (f32s(0), bf16s(1), f32s(2), bf16s(3));

    let value = |v: f32| bf16::from_f32(v).to_f64();
    let (x, dy) = (
        |t: usize, j: usize| value(wave(t * 16 + j)),
        |t: usize, j: usize| value(wave(t * 16 + j + 5) * 0.1),
    );
    let w = |j: usize| 1.0 + j as f64 / 64.0;
    for t in 0..3 {
        let mean = (0..16).map(|j| x(t, j) * x(t, j)).sum::<f64>() / 16.0;
        let r = 1.0 / (mean + 0.25).sqrt();
        assert!((rstd[t] / r - 1.0).abs() < 1e-6);
        let dot = (0..16).map(|j| dy(t, j) * w(j) * x(t, j)).sum::<f64>() / 16.0;
        for j in 0..16 {
            assert!((y[t * 16 + j] - x(t, j) * r * w(j)).abs() < 0.004 * y[t * 16 + j].abs());
            let expected = r * dy(t, j) * w(j) - r * r * r * dot * x(t, j);
            assert!((dx[t * 16 + j] - expected).abs() < 0.004 * expected.abs() + 1e-6);
        }
    }
    for j in 0..16 {
        let expected: f64 = (0..3).map(|t| dy(t, j) * x(t, j) * rstd[t]).sum();
        assert!(
            (dw[j] - expected).abs() < 1e-6 * (1.0 + expected.abs()),
            "{j}"
        );
    }
}

#[test]
fn a_residual_in_the_file_is_used() {
    let mut tensors = ordinary();
    tensors.push(bf16_tensor("residual", &[3, 16], |i| wave(i + 9)));
    tensors.push(bf16_tensor("dh", &[3, 16], |i| wave(i + 2)));
    let file = InputFile::new(&tensors, None);
    let folder = TempDir::new().expect("a folder");
    let out = folder.path().join("out.safetensors");
    let report = check(&[
        "--input",
        file.path(),
        "--residual",
        "--output",
        out.to_str().expect("a path"),
    ]);
    assert_eq!(report["residual"], true);
    assert_eq!(report["eps"].as_f64().map(|eps| eps as f32), Some(1e-6));
    let h = &tensors_of(&out)[2];
    assert_eq!(h.0, "h");
    for (i, h) in h.3.chunks(2).enumerate() {
        let sum = bf16::from_f32(wave(i)).to_f32() + bf16::from_f32(wave(i + 9)).to_f32();
        assert_eq!(h, bf16::from_f32(sum).to_le_bytes(), "{i}");
    }
}

#[test]
fn special_values_in_a_file_are_no_failure() {
    let mut tensors = ordinary();
    tensors[0] = bf16_tensor("x", &[3, 16], |i| if i == 20 { f32::NAN } else { wave(i) });
    tensors[1] = bf16_tensor("dy", &[3, 16], |i| {
        if i == 35 { f32::INFINITY } else { wave(i) }
    });
    check(&["--input", InputFile::new(&tensors, None).path()]);
}

#[test]
fn options_override_the_file() {
    let file = InputFile::new(&ordinary(), Some("0.25"));
    assert_eq!(check(&["--input", file.path(), "--eps", "0.5"])["eps"], 0.5);
    let message = refusal(&["check", "--input", file.path(), "--weight", "bf16"]);
    assert!(
        message.contains("tensor w is FP32, accepted is BF16"),
        "{message}"
    );
    let message = refusal(&["check", "--input", file.path(), "--residual"]);
    assert!(message.contains("no tensor residual"), "{message}");
    let message = refusal(&["check", "--input", file.path(), "--rows", "3"]);
    assert!(message.contains("--rows"), "{message}");
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let replaced = |at: usize, tensor: Tensor| {
        let mut tensors = ordinary();
        tensors[at] = tensor;
        refusal(&["check", "--input", InputFile::new(&tensors, None).path()])
    };
    let cases = [
        (
            0,
            f32_tensor("x", &[3, 16], wave),
            "tensor x is F32, accepted is BF16",
        ),
        (
            0,
            bf16_tensor("x", &[48], wave),
            "tensor x is [48], accepted is a matrix",
        ),
        (
            0,
            bf16_tensor("z", &[3, 16], wave),
            "tensor x is missing: found are dy, w, z",
        ),
        (
            1,
            f32_tensor("dy", &[3, 16], wave),
            "tensor dy is F32, accepted is BF16",
        ),
        (
            1,
            bf16_tensor("dy", &[2, 16], wave),
            "tensor dy is [2, 16], accepted is [3, 16]",
        ),
        (
            2,
            f32_tensor("w", &[15], wave),
            "tensor w is [15], accepted is [16]",
        ),
        (
            2,
            ("w", Dtype::F64, vec![16], vec![0; 128]),
            "tensor w is F64, accepted is F32 or BF16",
        ),
        (
            2,
            bf16_tensor("v", &[16], wave),
            "tensor w is missing: found are dy, v, x",
        ),
    ];
    for (at, tensor, message) in cases {
        let found = replaced(at, tensor);
        assert!(found.contains(message), "{found}");
    }
    let mut tensors = ordinary();
    tensors.push(bf16_tensor("dh", &[4, 16], wave));
    let message = refusal(&["check", "--input", InputFile::new(&tensors, None).path()]);
    assert!(
        message.contains("tensor dh is [4, 16], accepted is [3, 16]"),
        "{message}"
    );
}

#[test]
fn files_that_are_no_safetensors_are_refused() {
    let good = std::fs::read(&InputFile::new(&ordinary(), None).path).expect("a file");
    let mut long_header = good.clone();
    long_header[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    for bytes in [
        &b""[..],
        &b"not a tensor"[..],
        &good[..good.len() - 1],
        &long_header,
    ] {
        let message = refusal(&["check", "--input", InputFile::of_bytes(bytes).path()]);
        assert!(
            message.contains("is not a valid safetensors file"),
            "{message}"
        );
    }
    let file = InputFile::new(&ordinary(), Some("tiny"));
    let message = refusal(&["check", "--input", file.path()]);
    assert!(message.contains("metadata eps is \"tiny\""), "{message}");
    let message = refusal(&["check", "--input", "/nowhere/at/all.safetensors"]);
    assert!(message.contains("/nowhere/at/all.safetensors"), "{message}");
}

#[test]
fn arguments_that_cannot_be_are_refused() {
    let cases: [(&[&str], &str); 9] = [
        (
            &["check", "--hidden", "12"],
            "hidden size 12 is not supported",
        ),
        (
            &["check", "--hidden", "0"],
            "hidden size 0 is not supported",
        ),
        (
            &["check", "--hidden", "65544"],
            "hidden size 65544 is not supported",
        ),
        (
            &["check", "--rows", "2147483648"],
            "2147483648 rows are too many",
        ),
        (&["check", "--eps", "-1"], "eps = -1 is not accepted"),
        (&["check", "--eps", "nan"], "eps = NaN is not accepted"),
        (
            &["check", "--residual"],
            "the embedded tensors have no residual",
        ),
        (&["check", "--device", "tpu"], "tpu"),
        (
            &["routes", "--hidden", "20"],
            "hidden size 20 is not supported",
        ),
    ];
    for (arguments, message) in cases {
        let found = refusal(arguments);
        assert!(found.contains(message), "{arguments:?}: {found}");
    }
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_gpu_needs_the_feature() {
    let message = refusal(&["check", "--device", "cuda"]);
    assert!(message.contains("--features cuda"), "{message}");
}

#[test]
fn results_that_cannot_be_written_are_a_failure() {
    let shape = ["check", "--rows", "2", "--hidden", "8", "--device", "cpu"];
    let output = program(&[&shape[..], &["--output", "/nowhere/at/all.safetensors"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere/at/all.safetensors"));
}

#[test]
fn routes_name_kernels_and_leaves() {
    let output = program(&["routes", "--hidden", "4096", "--rows", "4097", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let plan: Value = serde_json::from_str(&stdout(&output)).expect("one JSON object");
    assert_eq!(
        [&plan["hidden"], &plan["sm_count"]].map(Value::as_u64),
        [Some(4096), Some(132)]
    );
    let [route] = &plan["routes"].as_array().expect("a list")[..] else {
        panic!("one T: {plan}")
    };
    let number = |value: &Value| value.as_u64().expect("a number");
    assert_eq!(
        number(&route["leaf_rows"]) * (number(&route["leaves"]) - 1),
        4096,
        "{route}"
    );
    let nodes = number(&route["nodes"]);
    assert_eq!(number(&route["workspace_bytes"]), nodes * 8 * 4096);
    for launch in ["forward", "backward", "reduce"] {
        let launch = &route[launch];
        assert!(
            number(&launch["grid"]) > 0 && number(&launch["block"]) % 32 == 0,
            "{route}"
        );
        assert!(!launch["kernel"].as_str().expect("a name").is_empty());
    }
}

#[test]
fn routes_without_rows_list_every_change_of_kernels() {
    let arguments = [
        "routes",
        "--hidden",
        "512",
        "--weight",
        "bf16",
        "--residual",
        "--sm-count",
        "7",
    ];
    let output = program(&[&arguments[..], &["--json"]].concat());
    let plan: Value = serde_json::from_str(&stdout(&output)).expect("one JSON object");
    assert_eq!(plan["weight"], "bf16");
    assert_eq!(plan["sm_count"].as_u64(), Some(7));
    let routes = plan["routes"].as_array().expect("a list");
    let rows: Vec<u64> = routes
        .iter()
        .map(|route| route["rows"].as_u64().expect("T"))
        .collect();
    assert!(
        rows.is_sorted() && rows.starts_with(&[0, 1, 2]) && rows.contains(&65_536),
        "{rows:?}"
    );
    assert!(routes[0]["forward"].is_null() && routes[0]["backward"].is_null());
    // Where neighbours in the list have other kernels, the change is exactly at the second.
    for pair in routes
        .windows(2)
        .filter(|pair| pair[0]["backward"]["kernel"] != pair[1]["backward"]["kernel"])
    {
        let rows = pair[1]["rows"].as_u64().expect("T") - 1;
        let output = program(&[&arguments[..], &["--json", "--rows", &rows.to_string()]].concat());
        let before: Value = serde_json::from_str(&stdout(&output)).expect("one JSON object");
        let kernel = |route: &Value| route["backward"]["kernel"].clone();
        assert_eq!(kernel(&before["routes"][0]), kernel(&pair[0]), "{rows}");
    }

    let text = stdout(&program(&arguments));
    assert!(
        text.contains("7 multiprocessors") && text.contains("leaf rows"),
        "{text}"
    );
    let one = stdout(&program(&["routes", "--hidden", "512", "--rows", "0"]));
    assert!(
        one.contains("no launch") && one.contains("workspace: 0 bytes"),
        "{one}"
    );
}

#[test]
fn doctor_reports_and_never_fails() {
    for path in [std::env::var_os("PATH").unwrap_or_default(), "".into()] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cake-rmsnorm"));
        let output = command
            .arg("doctor")
            .env("PATH", &path)
            .output()
            .expect("the program starts");
        assert_eq!(output.status.code(), Some(0));
        let text = stdout(&output);
        for wanted in [
            "cake-rmsnorm",
            "Rust",
            "device toolchain",
            "PTX",
            "GPU",
            "nvidia-smi",
        ] {
            assert!(text.contains(wanted), "{wanted} is not in {text}");
        }
    }
}

#[cfg(unix)]
#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cake-rmsnorm"));
    let mut child = command
        .args(["check", "--rows", "2", "--hidden", "8", "--device", "cpu"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
