//! `bench`, on the CPU.

use super::{program, refusal, success};
use serde_json::Value;
use std::collections::BTreeSet;
use tempfile::TempDir;

const SMALL: [&str; 9] = [
    "bench", "--device", "cpu", "--hidden", "64,256", "--rows", "5,1", "--quick", "--op",
];

/// Runs a benchmark that must succeed; its JSON.
fn bench(arguments: &[&str]) -> Value {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("out.json");
    let file_text = file.to_str().expect("a path");
    success(&[arguments, &["--json", file_text]].concat());
    let text = std::fs::read_to_string(file).expect("the file that was written");
    serde_json::from_str(&text).expect("a JSON object")
}

#[test]
fn every_case_is_timed_beside_a_copy() {
    let run = bench(&[&SMALL[..], &["fwd,bwd,step", "--weight", "bf16"]].concat());
    let results = run["results"].as_array().expect("results");
    let ceilings = run["ceilings"].as_array().expect("ceilings");
    let mut cases = BTreeSet::new();
    for (result, ceiling) in results.iter().zip(ceilings) {
        let keys = ["kind", "T", "H", "w", "op"];
        let case = keys.map(|key| result[key].to_string());
        assert_eq!(case, keys.map(|key| ceiling[key].to_string()));
        assert!(cases.insert(case), "twice: {result}");
        assert_eq!(result["candidate"], "cake-rmsnorm");
        let number = |value: &Value| value.as_f64().expect("a number");
        for times in [result, &result["warm"]] {
            let [p10, us, p90] = ["us_p10", "us", "us_p90"].map(|key| number(&times[key]));
            assert!(0.0 < p10 && p10 <= us && us <= p90, "{result}");
            assert!(times["n"].as_u64() >= Some(3), "{result}");
        }
        let frac = number(&ceiling["us"]) / number(&result["us"]);
        assert!((number(&result["frac"]) - frac).abs() <= 1e-4, "{result}");
        let copies = ["copy_us", "kernel_copy_us"].map(|key| number(&ceiling[key]));
        assert_eq!(number(&ceiling["us"]), copies[0].min(copies[1]));
        // What is copied is what must move, but for less than 32 bytes.
        let bytes = ["bytes"; 2].map(|key| number(&result[key]) - number(&ceiling[key]));
        assert!((0.0..32.0).contains(&bytes[0]), "{result} {ceiling}");
    }
    assert_eq!(cases.len(), 2 * 2 * 3);
    assert_eq!(ceilings.len(), cases.len());
    assert!(
        cases
            .iter()
            .any(|case| case[0] == "\"head\"" && case[2] == "256")
    );
    for key in ["date", "gpu", "driver", "command", "commit"] {
        assert!(run["record"][key].is_string(), "{key}");
    }
    let timer = ["no_kernel", "one_element_kernel"].map(|key| run["timer"][key]["us"].as_f64());
    assert!(timer[0] < timer[1], "{timer:?}");
}

#[test]
fn the_residual_form_moves_more() {
    let bytes = |extra: &[&str]| {
        let run = bench(&[&SMALL[..], &["bwd"], extra].concat());
        let results = run["results"].as_array().expect("results");
        let kinds: BTreeSet<_> = results.iter().map(|it| it["kind"].to_string()).collect();
        (results[0]["bytes"].as_u64(), kinds)
    };
    let (plain, _) = bytes(&[]);
    let (residual, kinds) = bytes(&["--residual"]);
    assert!(residual > plain);
    assert_eq!(kinds, BTreeSet::from(["\"add\"".to_owned()]));
}

#[test]
fn the_table_and_the_picture_hold_every_width() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("out.svg");
    let picture = ["fwd", "--plot", file.to_str().expect("a path")];
    let text = success(&[&SMALL[..], &picture].concat());
    let rows = text.lines().filter(|line| line.starts_with("fwd"));
    assert_eq!(rows.count(), 4, "{text}");
    let svg = std::fs::read_to_string(file).expect("the file that was written");
    for wanted in ["<svg", "H 64 f32", "H 256 f32", "Forward", "rows T"] {
        assert!(svg.contains(wanted), "{wanted}");
    }
}

#[test]
fn what_cannot_be_timed_is_refused() {
    let cases: [(&[&str], &str); 4] = [
        (&["--rows", "0"], "nothing is launched for 0 rows"),
        (&["--rows", "2147483648"], "2147483648 rows are too many"),
        (&["--hidden", "65537"], "hidden size 65537 is not supported"),
        (&["--device", "sim"], "simulated time says nothing"),
    ];
    for (arguments, message) in cases {
        let found = refusal(&[&["bench"], arguments].concat());
        assert!(found.contains(message), "{arguments:?}: {found}");
    }
    let shape = ["bench", "--device", "cpu", "--rows", "1", "--hidden", "8"];
    let output = program(&[&shape[..], &["--json", "/nowhere/at/all.json"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere/at/all.json"));
}
