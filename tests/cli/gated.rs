//! `check --gate`.

use super::{program, refusal, stdout, success};
use serde_json::Value;

/// The JSON of a check that must succeed.
fn check(arguments: &[&str]) -> Value {
    let text = success(&[&["check", "--json"], arguments].concat());
    serde_json::from_str(&text).expect("exactly one JSON object")
}

#[test]
fn both_orders_on_the_simulator_and_the_cpu() {
    for gate in ["norm-first", "gate-first"] {
        for (device, shape) in [
            (
                "sim",
                [
                    "--rows", "37", "--heads", "3", "--hidden", "128", "--groups", "1",
                ],
            ),
            (
                "cpu",
                [
                    "--rows", "500", "--heads", "2", "--hidden", "512", "--groups", "4",
                ],
            ),
        ] {
            let report = check(&[&["--device", device, "--gate", gate], &shape[..]].concat());
            assert_eq!(report["ok"], true, "{report}");
            let outputs = report["outputs"].as_array().expect("outputs");
            let names: Vec<_> = outputs.iter().map(|output| &output["name"]).collect();
            assert_eq!(names, ["y", "rstd", "dx", "dz", "dw"]);
            for output in outputs {
                assert_eq!(output["different"], 0, "{output}");
                assert_eq!(output["out_of_bound"], 0, "{output}");
            }
        }
    }
    let bf16 = [
        "--gate",
        "norm-first",
        "--rows",
        "9",
        "--weight",
        "bf16",
        "--device",
        "sim",
    ];
    let output = program(&[&["check"], &bf16[..]].concat());
    assert!(
        stdout(&output).trim_end().ends_with("OK"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn what_does_not_fit_is_refused() {
    let message = refusal(&["check", "--gate", "gate-first", "--hidden", "12"]);
    assert!(message.contains("12 elements in 1 groups"), "{message}");
    let message = refusal(&["check", "--heads", "2"]);
    assert!(message.contains("--gate"), "{message}");
    let message = refusal(&["check", "--gate", "norm-first", "--residual"]);
    assert!(message.contains("--residual"), "{message}");
}
