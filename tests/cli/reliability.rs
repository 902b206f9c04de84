//! `reliability`, as far as it goes without a GPU.

use super::{refusal, success};
use serde_json::Value;
use std::collections::BTreeMap;
use tempfile::TempDir;

const PARTS: [&str; 10] = [
    "sanitizer",
    "cases",
    "repeats",
    "streams",
    "graphs",
    "co-resident",
    "aborted",
    "oom",
    "contexts",
    "modules",
];

/// The lines of a record.
fn lines(text: &str) -> Vec<Value> {
    let line = |line| serde_json::from_str(line).expect("a JSON object a line");
    text.lines().map(line).collect()
}

/// How many findings of each part have which status.
fn statuses(lines: &[Value]) -> BTreeMap<(String, String), u64> {
    let mut statuses = BTreeMap::new();
    for line in &lines[1..lines.len() - 1] {
        let text = |key: &str| line[key].as_str().expect("text").to_owned();
        *statuses.entry((text("part"), text("status"))).or_default() += 1;
    }
    statuses
}

#[test]
fn the_record_has_every_part_and_says_what_was_skipped() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("cpu.reliability.jsonl");
    let path = path.to_str().expect("UTF-8");
    let commit = "0123456789abcdef";
    let arguments = [
        "reliability",
        "--device",
        "cpu",
        "--commit",
        commit,
        "--out",
        path,
    ];
    let text = success(&[&arguments[..], &["--json"]].concat());
    let file = std::fs::read_to_string(path).expect("a record");
    assert_eq!(file, text);

    let lines = lines(&text);
    let record = &lines[0]["record"];
    for (key, value) in [("gpu", "cpu"), ("commit", commit), ("driver", "-")] {
        assert_eq!(record[key], value, "{record}");
    }
    assert!(
        record["command"]
            .as_str()
            .expect("text")
            .contains("--device cpu")
    );
    assert_eq!(record["date"].as_str().expect("text").len(), 10);
    let statuses = statuses(&lines);
    for part in PARTS {
        let count = |status: &str| statuses.get(&(part.to_owned(), status.to_owned())).copied();
        assert_eq!(count("FAIL"), None, "{part}: {text}");
        let ran = ["cases", "repeats", "streams", "aborted", "oom"].contains(&part);
        assert_eq!(count("PASS").is_some(), ran, "{part}: {text}");
        // What needs a GPU is no pass.
        let skipped = !ran || part == "aborted";
        assert_eq!(count("SKIPPED").is_some(), skipped, "{part}: {text}");
    }
    let reasons = lines.iter().filter(|line| line["status"] == "SKIPPED");
    assert!(
        reasons.clone().all(|line| line["reason"].is_string()),
        "{text}"
    );
    let totals = &lines[lines.len() - 1]["totals"];
    assert_eq!(totals["fail"], 0);
    assert_eq!(totals["skipped"], reasons.count() as u64);
}

#[test]
fn parts_run_under_the_simulator() {
    let only = "--only=repeats,streams,aborted";
    let text = success(&["reliability", "--device", "sim", only, "--json"]);
    let statuses = statuses(&lines(&text));
    let parts: Vec<&str> = statuses.keys().map(|(part, _)| part.as_str()).collect();
    assert_eq!(
        parts,
        ["aborted", "aborted", "repeats", "streams"],
        "{text}"
    );
}

#[test]
fn launches_say_what_they_launched() {
    let job = [
        "reliability",
        "--device",
        "sim",
        "--job",
        "launches",
        "--slice",
    ];
    let text = success(&[&job[..], &["60/64"]].concat());
    let launched: Value = serde_json::from_str(&text).expect("exactly one JSON object");
    assert!(launched["tasks"].as_u64().expect("a number") > 1, "{text}");
    assert!(
        launched["kernels"].as_array().expect("names").len() > 2,
        "{text}"
    );
    assert!(
        launched["failures"].as_array().expect("none").is_empty(),
        "{text}"
    );
}

#[test]
fn what_cannot_be_run_is_refused() {
    assert!(refusal(&["reliability", "--device", "cpu", "--only", "streem"]).contains("streem"));
    assert!(refusal(&["reliability", "--device", "cpu", "--job", "nothing"]).contains("nothing"));
    let slice = [
        "reliability",
        "--device",
        "sim",
        "--job",
        "launches",
        "--slice",
        "3/3",
    ];
    assert!(refusal(&slice).contains("3/3"));
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_gpu_needs_the_feature() {
    let refusal = refusal(&["reliability"]);
    assert!(refusal.contains("--features cuda"), "{refusal}");
}
