//! Programs in the documents are run as tests.

use crate::{documents, root};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Documents with Rust in them, the file whose documentation tests they are, and the path there.
const TESTED: [(&str, &str, &str); 6] = [
    ("README.md", "host/lib.rs", "../README.md"),
    ("docs/playground.md", "host/lib.rs", "../docs/playground.md"),
    ("docs/embedding.md", "host/lib.rs", "../docs/embedding.md"),
    (
        "docs/embedding-candle.md",
        "candle/src/lib.rs",
        "../../docs/embedding-candle.md",
    ),
    ("candle/README.md", "candle/src/lib.rs", "../README.md"),
    ("simt/README.md", "simt/src/lib.rs", "../README.md"),
];

/// The one that names a crate that is on no registry, and says that it was not run.
const UNTESTED: &str = "docs/rust-cuda.md";

/// What opens the code blocks of a document.
fn languages(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("```"))
        .step_by(2)
}

#[test]
fn rust_in_the_documents_is_tested() {
    for (page, text) in documents() {
        let mut rust = languages(&text).filter(|language| language.starts_with("rust"));
        let tested = TESTED.iter().find(|(tested, ..)| Path::new(tested) == page);
        let page = page.display();
        match tested {
            Some((_, source, path)) => {
                let source = fs::read_to_string(root().join(source)).expect(source);
                assert!(
                    source.contains(&format!("#[doc = include_str!(\"{path}\")]")),
                    "{page} is not among the tests"
                );
                assert!(
                    rust.all(|language| !language.contains("ignore")),
                    "{page} has an example that is not compiled"
                );
            }
            None if page.to_string() == UNTESTED => assert_eq!(rust.count(), 1),
            None => assert_eq!(rust.count(), 0, "no test runs the examples of {page}"),
        }
    }
}

#[test]
fn other_languages_are_known() {
    // c: capi/tests/c_program.rs; python: python/tests/test_guide.py; sh, console:
    // host/cli/mod.rs and xtask/src/main.rs parse the command lines.
    let known = ["rust", "c", "python", "sh", "console", "toml", "text"];
    for (page, text) in documents() {
        for language in languages(&text) {
            let name = language.split(',').next().unwrap_or(language);
            assert!(known.contains(&name), "{}: {language:?}", page.display());
        }
    }
}

/// Figures that are typed into documents, beside the records that they name.
#[test]
fn figures_are_those_of_the_records() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect(path);
    let line = |record: &str, start: &str| {
        let record = read(&format!("docs/measurements/{record}"));
        let found = record.lines().find(|line| line.starts_with(start));
        found.expect("a line of the record").to_owned()
    };
    let speed = line("2026-11-30-cpu.simulator.txt", "backward H=4096");
    assert!(read("docs/playground.md").contains(&speed), "{speed}");
    let error = line("2026-11-30-cpu.sigmoid.txt", "largest error: ");
    let error = error.split(' ').nth(2).expect("a number");
    let said = format!("The sigmoid is at most {error} units in the last place off");
    assert!(read("docs/numerics.md").contains(&said), "{said}");
}

/// Commands of this program in the README, and what it says they print.
fn tour(readme: &str) -> Vec<(Vec<&str>, String)> {
    let blocks = readme
        .split("```")
        .filter_map(|part| part.strip_prefix("console\n$ "));
    let shown = blocks.filter_map(|block| block.split_once('\n'));
    let ours = shown.filter_map(|(command, output)| {
        let arguments = command.strip_prefix("cargo run --release -- ")?;
        Some((arguments.split(' ').collect(), output.to_owned()))
    });
    ours.collect()
}

#[test]
#[cfg_attr(feature = "cuda", ignore = "a GPU is looked for")]
fn the_readme_shows_what_is_printed() {
    let documents = documents();
    let tour = tour(&documents[Path::new("README.md")]);
    assert_eq!(tour.len(), 2);
    for (arguments, shown) in tour {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cake-rmsnorm"));
        let output = command.args(&arguments).output().expect("the program");
        let printed = String::from_utf8(output.stdout).expect("text");
        let lines = |text: &str| {
            text.lines()
                .map(|line| line.trim_end().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(lines(&printed), lines(&shown), "{arguments:?}");
    }
}
