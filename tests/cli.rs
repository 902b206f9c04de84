//! The program `cake-rmsnorm`, run as a user runs it.

#[path = "cli/accuracy.rs"]
mod accuracy;
#[path = "cli/bench.rs"]
mod bench;
#[path = "cli/files.rs"]
mod files;
#[path = "cli/gated.rs"]
mod gated;
#[path = "cli/host.rs"]
mod host;
#[path = "cli/plans.rs"]
mod plans;
#[path = "cli/reliability.rs"]
mod reliability;
#[path = "cli/sweep.rs"]
mod sweep;

use safetensors::tensor::SafeTensors;
use serde_json::Value;
use std::path::Path;
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

/// Standard output of a run that must succeed.
fn success(arguments: &[&str]) -> String {
    let output = program(arguments);
    let text = stdout(&output);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let code = output.status.code();
    assert_eq!(code, Some(0), "{arguments:?}: {text}{stderr}");
    text
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
    let text = success(&[&["check", "--json"], arguments].concat());
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

    let text = success(&["check"]);
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
        ("1027", "520"), // leaves of two rows
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

/// A seed is the same case on every device.
#[test]
fn drawn_cases_are_checked() {
    for device in ["cpu", "sim"] {
        let text = stdout(&program(&[
            "cases", "--device", device, "--count", "30", "--seed", "7",
        ]));
        assert!(text.contains("30 cases from seed 7 on"), "{text}");
        assert_eq!(text.lines().last(), Some("OK"), "{text}");
    }
    let text = stdout(&program(&[
        "cases", "--device", "cpu", "--count", "3", "--json",
    ]));
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&json["ok"], &json["cases"]), (&true.into(), &3.into()));
}

/// Seeds may come from a file, each with a size of its own; what is no seed is named.
#[test]
fn drawn_cases_of_a_file_of_seeds() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("seeds");
    let cases = |text: &str| {
        std::fs::write(&path, text).expect("written");
        let path = path.to_str().expect("a name");
        program(&["cases", "--device", "cpu", "--json", "--seeds", path])
    };
    let text = stdout(&cases("# seeds\n17\n\n23 200 # small\n"));
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&json["cases"], &json["seed"]), (&2.into(), &17.into()));
    for option in ["--far", "--graph-launches"] {
        let refused = refusal(&["cases", option, "--device", "cpu"]);
        assert!(refused.contains("accepted is --device cuda"), "{refused}");
    }
    for wrong in ["1\nx", "1\n2 0", "1\n2 3 4"] {
        let output = cases(wrong);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && text.contains("line 2"),
            "{text}"
        );
    }
}

/// FP16 and FP32 matrices, and a width that is no multiple of 8.
#[test]
fn matrices_of_every_type() {
    for dtype in ["bf16", "f16", "f32"] {
        let text = stdout(&program(&[
            "check",
            "--device",
            "sim",
            "--dtype",
            dtype,
            "--weight",
            "f16",
            "--rows",
            "40",
            "--hidden",
            "301",
            "--residual",
            "--json",
        ]));
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&json["ok"], &json["input"]), (&true.into(), &dtype.into()));
        assert_eq!(json["dx"]["bits_match_golden"], true);
    }
    let text = stdout(&program(&[
        "routes", "--hidden", "4096", "--rows", "9", "--dtype", "f16",
    ]));
    assert!(text.contains("general_backward"), "{text}");
    let text = stdout(&program(&[
        "routes",
        "--hidden",
        "4096",
        "--rows",
        "9",
        "--alignment",
        "element",
    ]));
    assert!(text.contains("general_forward"), "{text}");
}

#[test]
fn arguments_that_cannot_be_are_refused() {
    let cases: [(&[&str], &str); 9] = [
        (
            &["check", "--hidden", "65537"],
            "hidden size 65537 is not supported",
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
            &["routes", "--hidden", "70000"],
            "hidden size 70000 is not supported",
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
