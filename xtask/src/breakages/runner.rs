//! Runs tests in the copy, and says what became of them.

use super::{
    Error,
    scratch::Scratch,
    suite::{Suite, module, split},
};
use std::{
    collections::HashMap,
    fmt,
    path::PathBuf,
    process::{Command, Output},
};

/// What became of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It passes.
    Passes,
    /// It ran and failed.
    Fails,
    /// It does not compile.
    DoesNotBuild,
    /// It did not end, or did not run.
    Neither,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Passes => "passes",
            Self::Fails => "fails",
            Self::DoesNotBuild => "does not build",
            Self::Neither => "neither passes nor fails",
        })
    }
}

/// Seconds that a build or a test may take.
const LIMIT: &str = "900";

/// A release build in which a change is built fast.
const PROFILE: [(&str, &str); 3] = [
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
    ("CARGO_PROFILE_RELEASE_INCREMENTAL", "true"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
];

/// Runs tests in a copy.
pub struct Runner<'a> {
    scratch: &'a Scratch,
    python: PathBuf,
    /// Tests of each binary, as it names them.
    listed: HashMap<Vec<String>, Vec<String>>,
}

impl<'a> Runner<'a> {
    /// One for `scratch`.
    pub fn new(scratch: &'a Scratch, python: PathBuf) -> Self {
        Self {
            scratch,
            python,
            listed: HashMap::new(),
        }
    }

    /// What becomes of each of the tests, all of which are `suite`'s.
    ///
    /// # Errors
    /// A program cannot be run, or a binary has no test of a name.
    pub fn run(&mut self, suite: &Suite, tests: &[&String]) -> Result<Vec<Outcome>, Error> {
        match suite {
            Suite::Cargo(args) => self.cargo_tests(args, tests),
            Suite::Python => self.python_tests(tests),
        }
    }

    fn cargo_tests(&mut self, args: &[String], tests: &[&String]) -> Result<Vec<Outcome>, Error> {
        if !self.cargo(args, &["--no-run"])?.status.success() {
            return Ok(vec![Outcome::DoesNotBuild; tests.len()]);
        }
        let names = tests.iter().map(|test| self.name(args, test));
        let names = names.collect::<Result<Vec<String>, Error>>()?;
        let mut end = vec!["--", "--include-ignored", "--exact"];
        end.extend(names.iter().map(String::as_str));
        let output = self.cargo(args, &end)?;
        let text = String::from_utf8_lossy(&output.stdout);
        // A process that was aborted names no failure.
        let aborted = !output.status.success() && !text.contains("test result:");
        let outcome = |name: &String| {
            // Not what says that it has been running for long.
            let start = format!("test {name} ... ");
            let mut lines = text.lines().filter(|line| line.starts_with(&start));
            match lines.next() {
                Some(line) if line.ends_with(" ok") => Outcome::Passes,
                Some(line) if line.ends_with("FAILED") => Outcome::Fails,
                _ if output.status.code() == Some(124) => Outcome::Neither,
                _ if aborted || text.contains(&format!("\n    {name}\n")) => Outcome::Fails,
                _ => Outcome::Neither,
            }
        };
        Ok(names.iter().map(outcome).collect())
    }

    /// The test's name in its binary.
    fn name(&mut self, args: &[String], test: &str) -> Result<String, Error> {
        if !self.listed.contains_key(args) {
            let output = self.cargo(args, &["--", "--list", "--format=terse"])?;
            let text = String::from_utf8_lossy(&output.stdout);
            let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
            let names = names.map(str::to_owned).collect();
            self.listed.insert(args.to_vec(), names);
        }
        let (file, function) = split(test)?;
        let module = module(file);
        let mut fitting = self.listed[args]
            .iter()
            .filter(|name| name.starts_with(&module) && name.rsplit("::").next() == Some(function));
        match (fitting.next(), fitting.next()) {
            (Some(name), None) => Ok(name.clone()),
            (first, _) => Err(Error::Entry(format!(
                "{test}: {} such tests in cargo test {}",
                if first.is_some() { "several" } else { "no" },
                args.join(" ")
            ))),
        }
    }

    fn python_tests(&self, tests: &[&String]) -> Result<Vec<Outcome>, Error> {
        let library = [
            "--package=cake-rmsnorm-capi".to_owned(),
            "--no-run".to_owned(),
        ];
        if !self.cargo(&library, &[])?.status.success() {
            return Ok(vec![Outcome::DoesNotBuild; tests.len()]);
        }
        let one = |test: &&String| {
            let mut command = self.command(&self.python);
            command
                .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", test])
                .env(
                    "CAKE_RMSNORM_LIBRARY",
                    self.scratch
                        .target
                        .join("release/deps/libcake_rmsnorm_capi.so"),
                );
            let output = command.output().map_err(Error::io("pytest"))?;
            Ok(match output.status.code() {
                Some(0) => Outcome::Passes,
                Some(1) => Outcome::Fails,
                _ => Outcome::Neither,
            })
        };
        tests.iter().map(one).collect()
    }

    fn cargo(&self, args: &[String], more: &[&str]) -> Result<Output, Error> {
        let mut command = self.command(&PathBuf::from("cargo"));
        command.args(["test", "--release", "--quiet", "--offline"]);
        // Which test fails is what is asked; --quiet would print dots.
        command.args(args).args(more);
        if more.contains(&"--exact") {
            command.arg("--format=pretty");
        }
        command.output().map_err(Error::io("cargo test"))
    }

    /// A program in the copy, which is ended when it takes too long.
    fn command(&self, program: &PathBuf) -> Command {
        let mut command = Command::new("timeout");
        command
            .arg("--kill-after=10")
            .arg(LIMIT)
            .arg(program)
            .current_dir(&self.scratch.tree)
            .envs(PROFILE)
            .env("CARGO_TARGET_DIR", &self.scratch.target)
            .env("CARGO_TERM_COLOR", "never")
            .env("CAKE_RMSNORM_REBUILD_PTX", "0");
        // Those of the cargo that runs this.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST") {
                command.env_remove(&name);
            }
        }
        command
    }
}
