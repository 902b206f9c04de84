//! `cargo xtask breakages`: breaks the library in every way that `tests/breakages/` lists, one at a
//! time in a copy of the checkout, and sees the tests fail that docs/testing.md names for it.

mod data;
#[cfg(test)]
mod page;
mod record;
mod runner;
mod scratch;
mod suite;
#[cfg(test)]
mod tests;

use crate::workspace;
use data::{Breakage, Expect, UNBROKEN};
use record::Record;
use runner::{Outcome, Runner};
use scratch::Scratch;
use std::{collections::BTreeMap, io, path::PathBuf};
use suite::Suite;

/// Arguments of `cargo xtask breakages`.
#[derive(clap::Args)]
pub struct Args {
    /// Only entries that name a test or a file with this in its name.
    #[arg(long, default_value = "")]
    only: String,
    /// File to write the results to; those of other entries stay in it.
    #[arg(long)]
    record: PathBuf,
    /// Skip what the file says already went as it should.
    #[arg(long)]
    resume: bool,
    /// Python with PyTorch and pytest, for the tests in `python/`.
    #[arg(long, default_value = "target/python/bin/python")]
    python: PathBuf,
}

/// Why not every breakage was noticed, or looked at.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written, or a program not be run.
    #[error("{what}")]
    Io {
        /// Which.
        what: String,
        /// What the system says.
        source: io::Error,
    },
    /// The list of breakages cannot be read.
    #[error("{file}")]
    Data {
        /// Which part of it.
        file: String,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// An entry does not fit the sources.
    #[error("{0}")]
    Entry(String),
    /// Some results are not as they should be.
    #[error("{0} results are not as they should be")]
    Unexpected(usize),
}

impl Error {
    fn io(what: impl ToString) -> impl FnOnce(io::Error) -> Self {
        let what = what.to_string();
        move |source| Self::Io { what, source }
    }
}

/// Runs the command.
///
/// # Errors
/// A test did not fail though its promise was broken, or failed though it was not.
pub fn run(args: &Args) -> Result<(), Error> {
    let root = workspace::root();
    let list = data::load(root)?;
    let record = Record::open(&args.record, args.resume, &list)?;
    let entries = list.breakages.into_iter();
    let mut entries: Vec<Breakage> = entries.filter(|it| it.mentions(&args.only)).collect();
    // What a crate is built on changes last, and once: mending it builds all of it again.
    entries.sort_by_key(|entry| suite::depth(&entry.file));
    let scratch = Scratch::new(root, &workspace::target().join("breakages"))?;
    let mut session = Session {
        runner: Runner::new(&scratch, root.join(&args.python)),
        scratch: &scratch,
        record,
        unexpected: 0,
    };
    for (done, entry) in entries.iter().enumerate() {
        println!("{} of {}: {}", done + 1, entries.len(), entry.file);
        session.broken(entry)?;
    }
    session.unbroken(&entries)?;
    match session.unexpected {
        0 => Ok(()),
        count => Err(Error::Unexpected(count)),
    }
}

struct Session<'a> {
    scratch: &'a Scratch,
    runner: Runner<'a>,
    record: Record,
    unexpected: usize,
}

impl Session<'_> {
    /// Every named test, of what is not broken.
    fn unbroken(&mut self, entries: &[Breakage]) -> Result<(), Error> {
        let tests = entries.iter().flat_map(|entry| &entry.tests);
        for (suite, tests) in by_suite(tests)? {
            self.judge(&suite, &tests, UNBROKEN, &Outcome::Passes)?;
        }
        Ok(())
    }

    /// The tests of an entry, with its edit.
    fn broken(&mut self, entry: &Breakage) -> Result<(), Error> {
        let expected = match entry.expect {
            Expect::Failure => Outcome::Fails,
            Expect::BuildError => Outcome::DoesNotBuild,
        };
        let how = entry.how();
        let suites = by_suite(&entry.tests)?;
        if suites
            .values()
            .flatten()
            .all(|test| self.record.has(test, &how, &expected))
        {
            return Ok(());
        }
        let whole = self.scratch.apply(entry)?;
        let judged = suites
            .iter()
            .try_for_each(|(suite, tests)| self.judge(suite, tests, &how, &expected));
        whole.restore()?;
        judged
    }

    /// Runs those of the tests that the record lacks, and records what became of them.
    fn judge(
        &mut self,
        suite: &Suite,
        tests: &[String],
        how: &str,
        expected: &Outcome,
    ) -> Result<(), Error> {
        let missing = tests
            .iter()
            .filter(|test| !self.record.has(test, how, expected));
        let missing: Vec<&String> = missing.collect();
        if missing.is_empty() {
            return Ok(());
        }
        for (test, outcome) in missing.iter().zip(self.runner.run(suite, &missing)?) {
            println!("  {test} | {how} | {outcome}");
            self.unexpected += usize::from(outcome != *expected);
            self.record.note(test, how, &outcome)?;
        }
        Ok(())
    }
}

/// Tests by what runs them.
fn by_suite<'a>(
    tests: impl IntoIterator<Item = &'a String>,
) -> Result<BTreeMap<Suite, Vec<String>>, Error> {
    let mut suites = BTreeMap::<Suite, Vec<String>>::new();
    for test in tests {
        let tests = suites.entry(Suite::of(test)?).or_default();
        if !tests.contains(test) {
            tests.push(test.clone());
        }
    }
    Ok(suites)
}
