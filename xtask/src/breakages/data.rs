//! The list of breakages: `tests/breakages/*.toml`.

use super::Error;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::{fs, path::Path};

/// What is broken when nothing is.
pub const UNBROKEN: &str = "nothing";

/// An edit that breaks a promise, and the tests that must notice.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Breakage {
    /// As docs/testing.md names them.
    pub tests: Vec<String>,
    /// What is edited, from the checkout's root.
    pub file: String,
    /// Text that the file has exactly once.
    pub find: String,
    /// What takes its place.
    pub replace: String,
    /// How the tests notice.
    #[serde(default)]
    pub expect: Expect,
}

/// How a breakage is noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Expect {
    /// The tests run and fail.
    #[default]
    Failure,
    /// They do not compile.
    BuildError,
}

/// A row of docs/testing.md, or a test that it names, which nothing here breaks.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    /// The row's promise or the test's name.
    pub of: String,
    /// Why.
    pub why: String,
}

/// All of it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// What is broken.
    #[serde(default, rename = "breakage")]
    pub breakages: Vec<Breakage>,
    /// What is not.
    #[serde(default, rename = "exception")]
    pub exceptions: Vec<Exception>,
}

impl Breakage {
    /// Names this edit in a record; another edit has another name.
    pub fn key(&self) -> String {
        let edit = format!("{}\0{}\0{}", self.file, self.find, self.replace);
        let digest = Sha256::digest(edit);
        digest[..4]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// What is broken, as a record says it.
    pub fn how(&self) -> String {
        format!("{} {}", self.file, self.key())
    }

    /// The results that a record has of this entry: a test, and what was broken when it ran.
    pub fn results(&self) -> Vec<(String, String)> {
        let with = |how: String| {
            self.tests
                .iter()
                .map(move |test| (test.clone(), how.clone()))
        };
        with(self.how()).chain(with(UNBROKEN.to_owned())).collect()
    }

    /// Whether a test's or the file's name has `part` in it.
    pub fn mentions(&self, part: &str) -> bool {
        self.file.contains(part) || self.tests.iter().any(|test| test.contains(part))
    }

    /// The file's text, broken.
    ///
    /// # Errors
    /// The text to find is not there exactly once, or nothing would change.
    pub fn edit(&self, text: &str) -> Result<String, Error> {
        let found = text.matches(&self.find).count();
        if found != 1 || self.find == self.replace {
            return Err(Error::Entry(format!(
                "{}: found {found} times, and must be once: {:?}",
                self.file, self.find
            )));
        }
        Ok(text.replacen(&self.find, &self.replace, 1))
    }
}

/// Reads the list.
///
/// # Errors
/// A file cannot be read, or is not in its form.
pub fn load(root: &Path) -> Result<List, Error> {
    let folder = root.join("tests/breakages");
    let io = || Error::io(folder.display());
    let mut files = Vec::new();
    for file in fs::read_dir(&folder).map_err(io())? {
        files.push(file.map_err(io())?.path());
    }
    files.sort();
    let mut list = List::default();
    for file in files {
        let text = fs::read_to_string(&file).map_err(Error::io(file.display()))?;
        let part: List = toml::from_str(&text).map_err(|source| Error::Data {
            file: file.display().to_string(),
            source: Box::new(source),
        })?;
        list.breakages.extend(part.breakages);
        list.exceptions.extend(part.exceptions);
    }
    Ok(list)
}
