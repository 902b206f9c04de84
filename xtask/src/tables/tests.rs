use super::*;
use data::OURS;
use serde_json::{Value, json};
use tempfile::TempDir;

fn record(date: &str) -> Value {
    json!({"date": date, "gpu": "Some GPU", "driver": "580.1", "command": "bench a|b", "commit": "abc123"})
}

fn timed(candidate: &str, op: &str, (rows, hidden): (u64, u64), us: f64, frac: f64) -> Value {
    json!({"us": us, "us_p10": us, "us_p90": us, "us_min": us, "n": 36, "kind": "plain", "T": rows,
        "H": hidden, "w": "f32", "candidate": candidate, "op": op, "bytes": 4100, "gbps": 0.9, "frac": frac})
}

/// A file as the benchmark writes it.
fn peers(date: &str, results: &[Value]) -> Value {
    json!({
        "record": record(date),
        "meta": {"gpu": "Some GPU", "sms": 132, "cuda": "13.0", "flush": "clean", "eps": 1e-6,
            "versions": {"torch": "2.11.0", "quack-kernels": null}, "args": {"quick": true}},
        "timer": {"no_kernel": {"us": 1.312, "n": 72}, "one_element_kernel": {"us": 3.712, "n": 72}},
        "results": results,
        "ceilings": [{"kind": "plain", "T": 128, "H": 512, "w": "f32", "op": "bwd", "bytes": 4_000_000,
            "copy_us": 2.0, "kernel_copy_us": 3.0, "add2_us": 4.0, "us": 2.0}],
        "accuracy": [{"candidate": OURS, "T": 128, "H": 4096, "w": "f32", "dw_dtype": "float32",
            "dw_worst": 0.00057, "dw_max_abs": 1.8e-6, "dw_rel_l2": 2.5e-8, "dw_bitwise": true,
            "dx_bitwise": true, "y_rel_l2": 0.001, "dx_rel_l2": 0.001, "rstd": "forward's"},
            {"candidate": "quack", "T": 128, "H": 4096, "w": "f32", "error": "no\nmodule"}],
        "kernels": [], "skipped": [],
    })
}

/// This library slower than a peer in one shape, faster in another.
fn sample() -> Value {
    let results = [
        timed(OURS, "bwd", (128, 512), 5.0, 0.4),
        timed("compile", "bwd", (128, 512), 4.0, 0.5),
        timed("eager", "bwd", (128, 512), 20.0, 0.1),
        timed(OURS, "bwd", (128, 2048), 10.0, 0.9),
        timed("compile", "bwd", (128, 2048), 18.0, 0.5),
        timed(OURS, "bwd", (128, 4096), 10.0, 0.01),
        timed("compile", "fwd", (128, 512), 4.0, 0.77),
        timed(OURS, "bwd", (512, 512), 10.0, 0.123),
        json!({"kind": "plain", "T": 128, "H": 512, "w": "f32", "candidate": "quack", "op": "*",
            "error": "ImportError: none\nsecond line"}),
    ];
    peers("2026-11-29", &results)
}

fn check(golden: bool, dw_rounded: f64) -> Value {
    let output = json!({"max_ulp": 0.5, "correctly_rounded": 0.99, "within_bound": true, "bits_match_golden": true});
    json!({"device": "cuda", "device_name": "Some GPU", "inputs": "random", "rows": 512, "hidden": 576,
        "weight": "f32", "eps": 1e-5, "residual": false, "sm_count": 132, "ok": golden,
        "failures": if golden { vec![] } else { vec!["dw: bits"] }, "y": output, "rstd": output, "dx": output,
        "dw": {"max_ulp": null, "correctly_rounded": dw_rounded, "within_bound": true,
            "bits_match_golden": golden, "repeat_bits": true, "worst_budget": 5e-4, "rel_l2": 2.6e-8}})
}

fn checks(cases: &[Value]) -> String {
    let first = json!({"record": record("2026-11-29")});
    let lines: Vec<_> = [&first]
        .into_iter()
        .chain(cases)
        .map(Value::to_string)
        .collect();
    lines.join("\n") + "\n"
}

/// A checkout with documents and these measurements.
fn checkout(files: &[(&str, String)]) -> TempDir {
    let root = TempDir::new().expect("a folder");
    fs::create_dir_all(root.path().join("docs/measurements")).expect("folders");
    for (document, _) in DOCUMENTS {
        write(&root, document, &format!("before\n{BEGIN}\n{END}\nafter\n"));
    }
    for (name, text) in files {
        write(&root, &format!("docs/measurements/{name}"), text);
    }
    root
}

fn write(root: &TempDir, path: &str, text: &str) {
    fs::write(root.path().join(path), text).expect("written");
}

fn text(root: &TempDir, path: &str) -> String {
    fs::read_to_string(root.path().join(path)).expect("readable")
}

fn written(files: &[(&str, String)]) -> TempDir {
    let root = checkout(files);
    update(root.path(), false).expect("readable measurements");
    root
}

#[track_caller]
fn assert_has(text: &str, line: &str) {
    assert!(text.contains(line), "no `{line}` in:\n{text}");
}

#[test]
fn regions_say_when_nothing_is_recorded() {
    let root = written(&[]);
    for (document, _) in DOCUMENTS {
        assert_eq!(
            text(&root, document),
            format!("before\n{BEGIN}\n{}\n{END}\nafter\n", markdown::NOTHING)
        );
    }
}

#[test]
fn an_edited_figure_and_a_new_measurement_are_stale() {
    let root = written(&[("a.peers.json", sample().to_string())]);
    assert_eq!(update(root.path(), true).expect("readable"), [""; 0]);

    let edited = text(&root, "README.md").replace("60%", "61%");
    assert_ne!(edited, text(&root, "README.md"));
    write(&root, "README.md", &edited);
    assert_eq!(update(root.path(), true).expect("readable"), ["README.md"]);
    assert_eq!(text(&root, "README.md"), edited, "a check writes nothing");

    assert_eq!(update(root.path(), false).expect("readable"), ["README.md"]);
    write(
        &root,
        "docs/measurements/b.check.jsonl",
        &checks(&[check(true, 1.0)]),
    );
    assert_eq!(
        update(root.path(), true).expect("readable"),
        ["README.md", "docs/measurements/README.md"]
    );
}

#[test]
fn documents_need_one_region() {
    for bad in [
        "none",
        BEGIN,
        &format!("{END}{BEGIN}"),
        &format!("{BEGIN}{END}{BEGIN}{END}"),
    ] {
        let root = checkout(&[]);
        write(&root, "docs/measured-facts.md", bad);
        let error = update(root.path(), true).expect_err(bad);
        assert!(matches!(error, Error::Region(_)), "{bad}: {error}");
    }
}

#[test]
fn the_summary_compares_over_the_shapes_that_both_ran() {
    let root = written(&[("a.peers.json", sample().to_string())]);
    let readme = text(&root, "README.md");
    assert_has(
        &readme,
        "Some GPU, 2026-11-29, driver 580.1, commit `abc123`",
    );
    assert_has(
        &readme,
        "Peers of the same run: compile, eager (torch 2.11.0).",
    );
    // sqrt(0.4 · 0.9) = 0.6; H = 4096, which no peer ran, is left out, and so is T = 512.
    assert_has(
        &readme,
        "| 128 | 512, 2048, 4096 | 60% (40–90%; 2 H) | 50% (50–50%; 2 H) | – | 77% (1 H) |",
    );
    assert_has(
        &readme,
        "Cases that cake-rmsnorm did not run: 1; that no peer ran: 1.",
    );
    assert!(!readme.contains("| 512 |"), "{readme}");
}

#[test]
fn full_tables_show_slower_results_and_failures() {
    let root = written(&[("a.peers.json", sample().to_string())]);
    let full = text(&root, "docs/measurements/README.md");
    assert_has(&full, "| H | T | copy | cake-rmsnorm | compile | eager |");
    assert_has(
        &full,
        "| 512 | 128 | 2.00 | 5.00 (40%) | **4.00 (50%)** | 20.00 (10%) |",
    );
    assert_has(
        &full,
        "| 2048 | 128 | – | **10.00 (90%)** | 18.00 (50%) | – |",
    );
    assert_has(&full, "| 512 | 512 | – | 10.00 (12%) | – | – |");
    assert_has(
        &full,
        "### Forward: plain form, FP32 weight\n\n| H | T | copy | cake-rmsnorm | compile |",
    );
    assert_has(
        &full,
        "- quack: `ImportError: none`: plain FP32 T=128 H=512",
    );
    assert_has(
        &full,
        "| cake-rmsnorm | 4096 | 128 | FP32 | float32 | 5.70e-4 | 2.50e-8 | yes | yes |",
    );
    assert_has(
        &full,
        "| quack | 4096 | 128 | FP32 | `no` | – | – | – | – |",
    );
}

#[test]
fn the_summary_names_what_the_reliability_run_did_not_keep() {
    let finding = |part: &str, status: &str, reason: Option<&str>| {
        json!({"part": part, "status": status, "what": "it holds", "counts": [["runs", 3]],
            "reason": reason, "seconds": 0.5})
    };
    let lines = checks(&[
        finding("cases", "PASS", None),
        finding(
            "graphs",
            "FAIL",
            Some("2 replays differ; 3 replays differ; and 9 more"),
        ),
        finding("contexts", "SKIPPED", Some("there is 1 GPU")),
        json!({"totals": {"fail": 1, "pass": 1, "skipped": 1}}),
    ]);
    let root = written(&[("a.reliability.jsonl", lines)]);
    assert_has(
        &text(&root, "README.md"),
        "`abc123`: 1 of 3 findings as they should be. Failed: graphs: it holds (2 replays differ). Skipped: contexts: it holds (there is 1 GPU).",
    );
}

#[test]
fn facts_count_faster_and_slower_shapes() {
    let root = written(&[("a.peers.json", sample().to_string())]);
    let facts = text(&root, "docs/measured-facts.md");
    // Ratios 5 / 4 and 10 / 18.
    assert_has(
        &facts,
        "| backward | plain | FP32 | 2 | 1 | 1 | 0.83 | 0.56 (T=128, H=2048) | 1.25 (T=128, H=512) |",
    );
    assert_has(&facts, "moves 2000 GB/s (4.0 MB");
    assert_has(&facts, "1.31 µs around no kernel and 3.71 µs");
}

#[test]
fn the_summary_is_of_the_newest_measurement() {
    let one = |frac| [timed(OURS, "fwd", (1, 512), 5.0, frac)];
    let root = written(&[
        ("a.peers.json", peers("2026-11-29", &one(0.31)).to_string()),
        ("b.peers.json", peers("2026-12-01", &one(0.32)).to_string()),
    ]);
    let readme = text(&root, "README.md");
    assert_has(&readme, "| 1 | 512 | – | – | 32% | – |");
    assert!(!readme.contains("31%"), "{readme}");
    let full = text(&root, "docs/measurements/README.md");
    assert!(full.find("b.peers.json") < full.find("a.peers.json"));
    assert_has(&full, "5.00 (31%)");
}

#[test]
fn a_failed_check_is_said() {
    let good = written(&[(
        "a.check.jsonl",
        checks(&[check(true, 1.0), check(true, 0.999_999_96)]),
    )]);
    let readme = text(&good, "README.md");
    assert_has(
        &readme,
        "2 of 2 cases passed; all bits equal the CPU implementation's: yes (2 of 2)",
    );
    assert_has(&readme, "in the worst case: 99.9999%.");

    let bad = written(&[(
        "a.check.jsonl",
        checks(&[check(true, 1.0), check(false, 0.5)]),
    )]);
    let readme = text(&bad, "README.md");
    assert_has(
        &readme,
        "1 of 2 cases passed; all bits equal the CPU implementation's: NO (1 of 2)",
    );
    assert_has(&readme, "in the worst case: 50.0000%.");
    let full = text(&bad, "docs/measurements/README.md");
    assert_has(&full, "- random T=512 H=576: `dw: bits`");
    assert_has(
        &full,
        "| no | NO | NO | yes | yes | 0.500 | 0.500 | ∞ | 50.0000% |",
    );
}

#[test]
fn sanitizer_errors_are_said() {
    let runs = json!([
        {"tool": "memcheck", "shape": "128x512", "command": "c", "errors": 0, "hazards": null, "ok": true},
        {"tool": "racecheck", "shape": {"rows": 1}, "command": "c", "errors": 1, "hazards": 3, "ok": false},
    ]);
    let file = json!({"record": record("2026-11-29"), "runs": runs});
    let root = written(&[("a.sanitizer.json", file.to_string())]);
    assert_has(
        &text(&root, "README.md"),
        "(memcheck, racecheck): 1 of 2 runs clean; 1 errors, 3 hazards.",
    );
    let full = text(&root, "docs/measurements/README.md");
    assert_has(&full, "| memcheck | 128x512 | `c` | 0 | – | yes |");
    assert_has(&full, r#"| racecheck | {"rows":1} | `c` | 1 | 3 | NO |"#);
}

/// Whether an error is the expected one.
type IsExpected = fn(&Error) -> bool;

#[test]
fn measurements_that_cannot_be_used_are_refused() {
    let twice = [
        timed(OURS, "fwd", (1, 512), 5.0, 0.5),
        timed(OURS, "fwd", (1, 512), 6.0, 0.4),
    ];
    let zero = [timed(OURS, "fwd", (1, 512), 0.0, 0.5)];
    let mut unrecorded = sample();
    unrecorded
        .as_object_mut()
        .expect("an object")
        .remove("record");
    let invalid = |error: &Error| matches!(error, Error::Invalid { .. });
    let format = |error: &Error| matches!(error, Error::Format { .. });
    let cases: [(&str, String, IsExpected); 6] = [
        ("a.peers.json", peers("2026", &twice).to_string(), invalid),
        ("a.peers.json", peers("2026", &zero).to_string(), invalid),
        ("a.peers.json", unrecorded.to_string(), format),
        ("a.check.jsonl", check(true, 1.0).to_string(), format),
        ("a.check.jsonl", String::new(), invalid),
        ("a.json", "{}".to_owned(), invalid),
    ];
    for (name, content, expected) in cases {
        let root = checkout(&[(name, content)]);
        let error = update(root.path(), true).expect_err(name);
        assert!(expected(&error), "{name}: {error}");
    }
}
