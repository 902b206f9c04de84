//! `bench-host`, without a driver.

use super::success;
use serde_json::Value;

#[test]
fn calls_are_timed_without_a_driver() {
    let text = success(&["bench-host", "--device", "none", "--json"]);
    let report: Value = serde_json::from_str(&text).expect("exactly one JSON object");
    assert_eq!(report["ok"], true);
    let findings = report["findings"].as_array().expect("findings");
    assert_eq!(findings.len(), 10, "five shapes in two forms");
    for finding in findings {
        for pass in ["forward", "backward"] {
            let ns = finding["figures"][pass]["ns"].as_f64().expect("a number");
            // Far above what a call takes, and below a system call for each of its parts.
            assert!(ns > 1.0 && ns < 50_000.0, "{finding}");
        }
    }
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_gpu_needs_the_feature() {
    let refusal = super::refusal(&["bench-host"]);
    assert!(refusal.contains("--features cuda"), "{refusal}");
}
