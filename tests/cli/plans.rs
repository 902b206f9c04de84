//! Plans, and what is missing on a machine.

use super::{program, stdout, success};
use serde_json::Value;
use std::process::Command;

#[test]
fn routes_name_kernels_and_leaves() {
    let text = success(&["routes", "--hidden", "4096", "--rows", "4097", "--json"]);
    let plan: Value = serde_json::from_str(&text).expect("one JSON object");
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

/// Routes of a file come first, are named, and change no bit; a file that cannot serve is refused.
#[test]
fn routes_of_a_file_are_used_and_named() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let file = folder.path().join("routes.json");
    let path = file.to_str().expect("a path");
    let routes = r#"{"format": "cake-rmsnorm routes 1", "forward": [], "backward": [
        {"min_hidden": 264, "max_hidden": 264, "max_rows": 20, "program": "BackwardWide",
         "warps": 1}]}"#;
    std::fs::write(&file, routes).expect("a file");
    let shape = ["routes", "--hidden", "264", "--routes", path, "--rows"];
    let text = |rows: &str| success(&[&shape[..], &[rows]].concat());
    let planned = text("20");
    assert!(
        planned.contains(&format!("backward route: {path}: BackwardWide")),
        "{planned}"
    );
    assert!(planned.contains("forward route: built-in: "), "{planned}");
    assert!(text("21").contains("backward route: built-in: "));
    let checked = [
        "check", "--device", "sim", "--rows", "19", "--hidden", "264", "--routes", path,
    ];
    success(&checked);

    std::fs::write(&file, routes.replace("BackwardWide", "BackwardNarrow")).expect("a file");
    let message = super::refusal(&[&shape[..], &["20"]].concat());
    assert!(
        message.contains("BackwardNarrow") && message.contains(path),
        "{message}"
    );
}
