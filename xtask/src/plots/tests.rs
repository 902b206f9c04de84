use super::*;
use routes::{Plan, Plans, Program};
use serde_json::{Value, json};
use tempfile::TempDir;

fn timed(candidate: &str, op: &str, (rows, hidden): (u64, u64), frac: f64) -> Value {
    json!({"kind": "plain", "T": rows, "H": hidden, "w": "f32", "candidate": candidate, "op": op,
        "us": 5.0, "frac": frac})
}

fn peers(results: &[Value]) -> String {
    let accuracy = |candidate: &str, rows: u64, worst: f64| {
        json!({"candidate": candidate, "T": rows, "H": 4096, "w": "f32", "dw_dtype": "float32",
            "dw_worst": worst, "dw_rel_l2": 1e-8, "dw_bitwise": true, "dx_bitwise": true})
    };
    let file = json!({
        "record": {"date": "2026-11-29", "gpu": "Some GPU", "driver": "580.1", "command": "c", "commit": "abc"},
        "meta": {"cuda": "13.0", "flush": "clean", "versions": {}},
        "timer": {"no_kernel": {"us": 1.0}, "one_element_kernel": {"us": 4.0}},
        "results": results, "ceilings": [],
        "accuracy": [accuracy("cake-rmsnorm", 128, 5e-4), accuracy("quack", 128, 0.02), accuracy("quack", 4096, 0.9)],
    });
    file.to_string()
}

const GATED: &str = "# date 2026-11-30, gpu Some GPU, driver 580.1, commit abc\n# command\n\
    rows\thidden\tweight\torder\top\tcandidate\tus\tfrac\n\
    1024\t128\tf32\t0\tbwd\tours\t8.0\t0.5\n1024\t128\tf32\t0\tbwd\tcompile\t9.0\t0.4\n\
    4096\t128\tf32\t0\tbwd\tours\t8.0\t0.6\n";

/// A folder of measurements.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    for (name, text) in files {
        fs::write(folder.path().join(name), text).expect("written");
    }
    folder
}

fn sample() -> TempDir {
    let results = [
        timed("cake-rmsnorm", "bwd", (128, 512), 0.6),
        timed("compile", "bwd", (128, 512), 0.5),
        timed("cake-rmsnorm", "bwd", (4096, 512), 0.7),
        timed("compile", "bwd", (4096, 512), 0.8),
        timed("cake-rmsnorm", "fwd", (128, 512), 0.9),
    ];
    folder(&[("a.peers.json", &peers(&results)), ("a.gated.tsv", GATED)])
}

fn svg(picture: &Picture) -> String {
    picture.svg(&LIGHT).expect("a picture")
}

/// Heights on the page of the dots of one colour.
fn dots(svg: &str, colour: &str) -> Vec<i32> {
    let circles = svg.lines().filter(|line| line.starts_with("<circle"));
    let circles = circles.filter(|line| line.contains(colour));
    let height = |line: &str| line.split("cy=\"").nth(1)?.split('"').next()?.parse().ok();
    circles
        .map(|line| height(line).expect("a height"))
        .collect()
}

#[test]
fn measurements_become_pictures() {
    let folder = sample();
    let pictures = measured(folder.path()).expect("readable");
    let names: Vec<_> = pictures.keys().copied().collect();
    // No peer ran a forward.
    assert_eq!(names, ["accuracy", "gated", "speed", "speed-backward"]);
    let speed = svg(&pictures["speed-backward"]);
    for text in [
        "Some GPU, 2026-11-29",
        "backward, H = 512",
        "cake-rmsnorm",
        "4K",
    ] {
        assert!(speed.contains(text), "no {text}");
    }
    // Faster is higher: lower on the page.
    let (ours, peer) = (dots(&speed, "#0B62C4"), dots(&speed, "#C44E00"));
    assert!(ours[0] < peer[0] && ours[1] > peer[1], "{ours:?} {peer:?}");
    assert_eq!(dots(&svg(&pictures["accuracy"]), "#0B62C4").len(), 1);
    let gated = svg(&pictures["gated"]);
    assert_eq!(dots(&gated, "#0B62C4").len(), 2);
    assert!(gated.contains("torch.compile") && gated.contains("norm before gate"));
}

#[test]
fn plans_become_pictures() {
    let plan = |rows, program: &str, workspace_bytes| Plan {
        rows,
        workspace_bytes,
        forward_route: None,
        backward_route: Some(Program {
            program: program.to_owned(),
        }),
    };
    let plans = [256, 512, 520].map(|hidden| Plans {
        hidden,
        sm_count: 132,
        routes: vec![
            plan(1, "Split { vectors: 1 }", 0),
            plan(513, "Warp", 3 << 20),
        ],
    });
    let pictures = routes::pictures(&plans);
    let map = svg(&pictures["routes-backward"]);
    assert!(map.contains("Split") && !map.contains("vectors"));
    // Two in the legend, and two areas: the widths are alike.
    assert_eq!(map.matches("<rect").count(), 4);
    assert!(svg(&pictures["workspace"]).contains("H = 512"));
}

#[test]
fn edited_and_stray_pictures_are_stale() {
    let (measurements, root) = (sample(), TempDir::new().expect("a folder"));
    let pictures = measured(measurements.path()).expect("readable");
    let files = drawn(&pictures).expect("drawn");
    assert_eq!(files.len(), 2 * pictures.len());
    let folder = root.path().join("plots");
    let update = |check| update(&folder, &files, check).expect("written");
    assert_eq!(update(true).len(), files.len());
    assert!(!folder.exists(), "a check writes nothing");
    update(false);
    assert_eq!(update(true), [""; 0]);

    let path = folder.join("speed-dark.svg");
    let edited = fs::read_to_string(&path).expect("a picture") + " ";
    fs::write(&path, edited).expect("written");
    fs::write(folder.join("old.svg"), "").expect("written");
    assert_eq!(update(true), ["speed-dark.svg", "old.svg"]);
    update(false);
    assert_eq!(update(true), [""; 0]);
}

#[test]
fn tables_that_cannot_be_used_are_refused() {
    for text in [
        "",
        "rows\tweight\n",
        &GATED.replace("0.4", "fast"),
        &GATED.replace("\tfrac", ""),
    ] {
        let folder = folder(&[("a.gated.tsv", text)]);
        let error = measured(folder.path()).err().expect(text);
        assert!(matches!(error, Error::Table { .. }), "{error}");
    }
}

#[test]
fn badges_say_what_the_manifest_and_the_checks_say() {
    let root = folder(&[(
        "Cargo.toml",
        "rust-version = \"1.90\"\nlicense = \"A OR B\"\n",
    )]);
    let output = json!({"max_ulp": 0.5, "correctly_rounded": 1.0, "within_bound": true, "bits_match_golden": true});
    let check = |dw: &Value| {
        json!({"device": "cuda", "device_name": "Some GPU", "inputs": "random", "rows": 1, "hidden": 8,
            "weight": "f32", "residual": false, "ok": true, "failures": [],
            "y": output, "rstd": output, "dx": output, "dw": dw})
    };
    let mut wrong = output.clone();
    wrong["bits_match_golden"] = json!(false);
    let record = json!({"record": {"date": "2026-11-29", "gpu": "NVIDIA X1", "driver": "1", "command": "c", "commit": "a"}});
    let lines = [record, check(&output), check(&wrong)].map(|line| line.to_string());
    let measurements = folder(&[("a.check.jsonl", &lines.join("\n"))]);
    let checks = Measurements::read(measurements.path())
        .expect("readable")
        .checks;
    let badges = badges::draw(root.path(), &checks).expect("drawn");
    assert!(badges["badge-rust.svg"].contains("1.90 or newer"));
    assert!(badges["badge-licence.svg"].contains("A or B"));
    assert!(badges["badge-bits.svg"].contains("on an X1: 1 of 2 cases"));
}
