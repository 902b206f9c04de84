//! The documentation: its links lead somewhere, its examples are tests, the tests it names exist.

mod comparison;
mod links;
mod samples;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All documents, by their paths in the repository.
fn documents() -> BTreeMap<PathBuf, String> {
    let folders = ["", "docs", "docs/measurements", "simt", "candle", "python"];
    let entries = folders.iter().flat_map(|folder| {
        let entries = fs::read_dir(root().join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
        entries.map(|entry| Path::new(folder).join(entry.expect("an entry").file_name()))
    });
    entries
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .map(|path| {
            let text = fs::read_to_string(root().join(&path));
            let text = text.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            (path, text)
        })
        .collect()
}

/// Tests as docs/testing.md names them: a file in Rust or Python, and a function.
fn named_tests(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let code = text.split('`').skip(1).step_by(2);
    let named = code.filter_map(|code| code.split_once("::"));
    named.filter(|(file, _)| file.ends_with(".rs") || file.ends_with(".py"))
}

/// Whether `source` has a function of that name that its language runs as a test.
fn has_test(file: &str, source: &str, name: &str) -> bool {
    if file.ends_with(".py") {
        return name.starts_with("test_") && source.contains(&format!("\ndef {name}("));
    }
    let lines: Vec<_> = source.lines().map(str::trim_start).collect();
    let start = format!("fn {name}(");
    lines.iter().enumerate().any(|(i, line)| {
        let above = lines[..i].iter().rev();
        let mut attributes =
            above.take_while(|line| line.starts_with('#') || line.starts_with('/'));
        line.starts_with(&start) && attributes.any(|line| *line == "#[test]")
    })
}

#[test]
fn tests_that_are_named_exist() {
    let root = root();
    let text = fs::read_to_string(root.join("docs/testing.md")).expect("docs/testing.md");
    let mut count = 0;
    for (file, name) in named_tests(&text) {
        let source = fs::read_to_string(root.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(has_test(file, &source, name), "{file} has no test {name}");
        count += 1;
    }
    assert!(
        count > 60,
        "only {count} tests found: has the page another form?"
    );
}
