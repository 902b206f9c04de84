//! `accuracy`, on the CPU and under the simulator.

use super::{refusal, success};
use serde_json::Value;

/// The lines of a run that must succeed.
fn accuracy(arguments: &[&str]) -> Vec<Value> {
    let text = success(&[&["accuracy", "--json"], arguments].concat());
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("an object a line")
}

#[test]
fn weight_gradients_of_every_kind_are_correctly_rounded() {
    let shape = [
        "--device", "cpu", "--rows", "8200", "--hidden", "8,64", "--seeds", "4",
    ];
    let cases = accuracy(&shape);
    let key = |case: &Value| (case["inputs"].to_string(), case["hidden"].as_u64());
    let mut keys: Vec<_> = cases.iter().map(key).collect();
    keys.sort();
    keys.dedup();
    assert_eq!((cases.len(), keys.len()), (8, 8));
    for case in cases {
        assert_eq!(case["ok"], true, "{case}");
        assert_eq!(case["repeat_bits"], true, "{case}");
        assert_eq!(case["seeds"], 4, "{case}");
        assert!(case["bound_share"].as_f64() <= Some(1.0), "{case}");
        assert!(case["correctly_rounded"].as_f64() >= Some(0.9999), "{case}");
    }
}

#[test]
fn the_kernels_are_as_accurate() {
    let shape = [
        "--device", "sim", "--rows", "130", "--hidden", "72", "--seeds", "1",
    ];
    for case in accuracy(&[&shape[..], &["--inputs", "cancelling,heavy"]].concat()) {
        assert_eq!(case["ok"], true, "{case}");
        assert_eq!(case["device"], "sim");
    }
}

/// Of more blocks of rows than there are pairs of blocks, with the fast kernels and with the general
/// ones.
#[test]
fn every_row_is_compared_with_golden() {
    let shape = ["--seeds", "1", "--inputs", "normal", "--every-row"];
    for (device, rows, hidden, elements) in [
        ("cpu", "131203", "8", 2 * 131_203 * 8),
        ("sim", "70", "72", 2 * 70 * 72),
        ("sim", "70", "67", 2 * 70 * 67),
    ] {
        let size = ["--device", device, "--rows", rows, "--hidden", hidden];
        let cases = accuracy(&[&shape[..], &size].concat());
        assert_eq!(cases[0]["ok"], true, "{:?}", cases[0]);
        assert_eq!(cases[0]["equal_elements"].as_u64(), Some(elements));
    }
}

#[test]
fn what_has_no_weight_gradient_is_refused() {
    let found = refusal(&["accuracy", "--rows", "0"]);
    assert!(found.contains("dw of 0 rows is 0"), "{found}");
    let found = refusal(&["accuracy", "--hidden", "65537"]);
    assert!(found.contains("hidden size 65537"), "{found}");
    assert!(refusal(&["accuracy", "--seeds", "0"]).contains("--seeds"));
}
