//! `sweep`, under the simulator, and `tune` and `partition`, which need a GPU.

use super::{refusal, success};
use serde_json::Value;

#[test]
fn every_program_gives_the_golden_bits() {
    let shape = ["--hidden", "8,264", "--rows", "1,7", "--device", "sim"];
    let text = success(&[&["sweep", "--json"], &shape[..]].concat());
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).expect("an object a line");
        assert_eq!(line["ok"], true, "{line}");
        // Both T, every weight and form.
        assert_eq!(line["cases"], 8, "{line}");
        let kernels: Vec<_> = line["kernels"].as_array().expect("names").iter().collect();
        let ran = |start: &str| {
            let named = |name: &&&Value| name.as_str().is_some_and(|it| it.starts_with(start));
            kernels.iter().filter(named).count()
        };
        // More than the one program that serves the shape.
        assert!(ran("forward_") > 8 && ran("backward_") > 8, "{line}");
        assert!(line["runs"].as_u64() > Some(8 * 20), "{line}");
    }
    assert_eq!(text.lines().count(), 2);
}

#[test]
fn what_has_one_program_is_refused() {
    assert!(refusal(&["sweep", "--device", "cpu"]).contains("one program"));
    assert!(refusal(&["sweep", "--rows", "0"]).contains("0 rows"));
    assert!(refusal(&["sweep", "--hidden", "0"]).contains("hidden size 0"));
    let tune = ["tune", "--out", "/nowhere/at/all.json", "--device"];
    assert!(refusal(&[&tune[..], &["cpu"]].concat()).contains("accepted is cuda"));
    assert!(refusal(&["partition", "--device", "cpu"]).contains("accepted is cuda"));
    assert!(refusal(&["partition", "--rows", "0"]).contains("0 rows"));
}
