//! The record of a run: a line for each test and breakage.

use super::{Error, data::List, runner::Outcome};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Results by test and by what was broken, kept in a file from the first on.
pub struct Record {
    path: PathBuf,
    results: BTreeMap<(String, String), String>,
    /// What is not broken, and why.
    exceptions: Vec<String>,
    resume: bool,
}

impl Record {
    /// That in a file, or an empty one; results of edits that `list` has not are left out. With
    /// `resume`, what is in it counts as done.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn open(path: &Path, resume: bool, list: &List) -> Result<Self, Error> {
        let text = match path.exists() {
            true => fs::read_to_string(path).map_err(Error::io(path.display()))?,
            false => String::new(),
        };
        let line = |line: &str| {
            let mut cells = line.split(" | ").map(str::to_owned);
            Some(((cells.next()?, cells.next()?), cells.next()?))
        };
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let mut results: BTreeMap<_, _> = lines.filter_map(line).collect();
        let known: BTreeSet<_> = list
            .breakages
            .iter()
            .flat_map(|entry| entry.results())
            .collect();
        results.retain(|key, _| known.contains(key));
        let exceptions = list.exceptions.iter();
        Ok(Self {
            path: path.to_owned(),
            results,
            exceptions: exceptions
                .map(|it| format!("{}: {}", it.of, it.why))
                .collect(),
            resume,
        })
    }

    /// Whether this is there already, and as it should be.
    pub fn has(&self, test: &str, how: &str, expected: &Outcome) -> bool {
        let key = (test.to_owned(), how.to_owned());
        self.resume && self.results.get(&key) == Some(&expected.to_string())
    }

    /// Adds a result, and writes the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn note(&mut self, test: &str, how: &str, outcome: &Outcome) -> Result<(), Error> {
        let key = (test.to_owned(), how.to_owned());
        self.results.insert(key, outcome.to_string());
        fs::write(&self.path, self.text()).map_err(Error::io(self.path.display()))
    }

    fn text(&self) -> String {
        let mut text = format!(
            "# date {}, commit {}\n# cargo xtask breakages --record {}\n\
             # test | what was broken (file, and the edit's number) | what the test did\n",
            said("date", &["-u", "+%F"]),
            said("git", &["rev-parse", "HEAD"]),
            self.path.display(),
        );
        for ((test, how), outcome) in &self.results {
            text += &format!("{test} | {how} | {outcome}\n");
        }
        for exception in &self.exceptions {
            text += &format!("# not broken: {exception}\n");
        }
        text
    }
}

/// What a program prints, or a question mark.
fn said(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.unwrap_or_else(|_| "?".to_owned())
}
