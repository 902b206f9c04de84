use super::{
    data::{self, Breakage, Expect},
    page::{Row, rows},
    suite::{Suite, module},
};
use crate::workspace;
use std::{collections::BTreeSet, fs};

fn page() -> String {
    fs::read_to_string(workspace::root().join("docs/testing.md")).expect("docs/testing.md")
}

#[test]
fn every_row_and_test_has_a_breakage() {
    let list = data::load(workspace::root()).expect("the list");
    let tests = list.breakages.iter().flat_map(|entry| &entry.tests);
    let broken: BTreeSet<&str> = tests.map(String::as_str).collect();
    let excepted: BTreeSet<&str> = list.exceptions.iter().map(|it| it.of.as_str()).collect();
    let page = page();
    let rows = rows(&page);
    assert!(rows.len() > 100, "only {} rows found", rows.len());
    let covered = |name: &&str| broken.contains(name) || excepted.contains(name);
    let mut bare = Vec::new();
    for row in rows.iter().filter(|row| !excepted.contains(row.promise)) {
        bare.extend(row.tests.iter().copied().filter(|test| !covered(test)));
        if row.tests.is_empty() {
            bare.push(row.promise);
        }
    }
    assert!(bare.is_empty(), "no entry breaks {bare:#?}");
}

#[test]
fn every_entry_names_what_is_there() {
    let root = workspace::root();
    let list = data::load(root).expect("the list");
    let page = page();
    let rows = rows(&page);
    let named: BTreeSet<&str> = rows.iter().flat_map(|row| row.tests.clone()).collect();
    let promises: BTreeSet<&str> = rows.iter().map(|row| row.promise).collect();
    let mut keys = BTreeSet::new();
    for entry in &list.breakages {
        for test in &entry.tests {
            assert!(named.contains(test.as_str()), "{test} is not on the page");
            assert!(keys.insert((test, entry.key())), "{test} twice");
        }
        let text = fs::read_to_string(root.join(&entry.file));
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", entry.file));
        entry.edit(&text).expect("an edit");
    }
    for exception in &list.exceptions {
        let of = exception.of.as_str();
        assert!(
            promises.contains(of) || named.contains(of),
            "{of} is not on the page"
        );
        assert!(!exception.why.is_empty());
    }
}

#[test]
fn text_must_be_there_once() {
    let entry = Breakage {
        tests: Vec::new(),
        file: "a.rs".to_owned(),
        find: "one".to_owned(),
        replace: "two".to_owned(),
        expect: Expect::Failure,
    };
    assert_eq!(entry.edit("a one b").expect("once"), "a two b");
    assert!(entry.edit("one one").is_err());
    assert!(entry.edit("o n e").is_err());
    let same = Breakage {
        replace: "one".to_owned(),
        ..entry
    };
    assert!(same.edit("one").is_err());
}

#[test]
fn rows_are_read() {
    let text = "| | b |\n|---|---|\n| x | `a.rs::y` |\n\n| promise | test |\n|---|---|\n\
                | p, `q` | `a.rs::b`, `c.py::d`, `other` |\n| r | none |\n";
    let first = Row {
        promise: "p, `q`",
        tests: vec!["a.rs::b", "c.py::d"],
    };
    let second = Row {
        promise: "r",
        tests: Vec::new(),
    };
    assert_eq!(rows(text), [first, second]);
}

#[test]
fn tests_are_found_by_their_files() {
    let suite = |test: &str| match Suite::of(test).expect("a suite") {
        Suite::Cargo(args) => args.join(" "),
        Suite::Python => "python".to_owned(),
    };
    let cake = "--package cake-rmsnorm --features cudarc";
    for (file, args, path) in [
        ("tests/plan.rs", format!("{cake} --test plan"), ""),
        (
            "tests/errors/shapes.rs",
            format!("{cake} --test errors"),
            "shapes",
        ),
        ("tests/fuzz/main.rs", format!("{cake} --test fuzz"), ""),
        (
            "host/golden/tests/mod.rs",
            format!("{cake} --lib"),
            "golden::tests",
        ),
        (
            "host/cli/check/tests.rs",
            format!("{cake} --bins"),
            "cli::check::tests",
        ),
        (
            "simt/tests/races.rs",
            "--package cake-rmsnorm-simt --test races".to_owned(),
            "",
        ),
        (
            "xtask/src/lint/tests.rs",
            "--package xtask --bins".to_owned(),
            "lint::tests",
        ),
        (
            "candle/src/layout.rs",
            "--manifest-path candle/Cargo.toml --lib".to_owned(),
            "layout",
        ),
        ("python/tests/test_module.py", "python".to_owned(), ""),
    ] {
        assert_eq!(suite(&format!("{file}::name")), args, "{file}");
        if args != "python" {
            assert_eq!(module(file), path, "{file}");
        }
    }
}
