//! The record: a line that says when, where and of what, one a finding, and the counts.

use super::Args;
use super::finding::{Finding, Status};
use crate::cli::error::{CliError, Result};
use crate::cli::output::Output;
use crate::cli::record::Record;
use serde::Serialize;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

/// Prints findings and writes them to the record's file, as they come.
pub struct Writer {
    record: Record,
    json: bool,
    file: Option<(PathBuf, File)>,
    totals: Totals,
}

/// How many findings there are of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    pass: u64,
    fail: u64,
    skipped: u64,
}

impl Totals {
    /// Counts a finding.
    pub fn add(&mut self, status: Status) {
        match status {
            Status::Pass => self.pass += 1,
            Status::Fail => self.fail += 1,
            Status::Skipped => self.skipped += 1,
        }
    }

    /// Whether something was kept, and nothing failed.
    pub fn ok(&self) -> bool {
        self.fail == 0
    }
}

impl Writer {
    /// A record that begins now.
    pub fn new(args: &Args, gpu: String, driver: String) -> Result<Self> {
        let record = Record::now(gpu, driver);
        let commit = args.commit.clone().unwrap_or(record.commit);
        let file = args.out.as_ref().map(|path| match File::create(path) {
            Ok(file) => Ok((path.clone(), file)),
            Err(error) => Err(CliError::Write {
                path: path.clone(),
                detail: error.to_string(),
            }),
        });
        Ok(Self {
            record: Record { commit, ..record },
            json: args.json,
            file: file.transpose()?,
            totals: Totals::default(),
        })
    }

    /// When, where and of what.
    pub fn heading(&mut self, out: &mut Output) -> Result<()> {
        let Record {
            date,
            gpu,
            driver,
            commit,
            ..
        } = &self.record;
        let text = format!("{date}, {gpu}, driver {driver}, commit {commit}");
        self.line(&serde_json::json!({ "record": self.record }), text, out)
    }

    /// A finding.
    pub fn add(&mut self, finding: &Finding, out: &mut Output) -> Result<()> {
        self.totals.add(finding.status);
        self.line(finding, finding.text(), out)
    }

    /// The counts; whether nothing failed.
    pub fn finish(mut self, out: &mut Output) -> Result<bool> {
        let totals = self.totals;
        let Totals {
            pass,
            fail,
            skipped,
        } = totals;
        let verdict = if totals.ok() { "OK" } else { "FAILED" };
        let text = format!("{verdict}: {pass} passed, {fail} failed, {skipped} skipped");
        self.line(&serde_json::json!({ "totals": totals }), text, out)?;
        Ok(totals.ok())
    }

    fn line(&mut self, json: &impl Serialize, text: String, out: &mut Output) -> Result<()> {
        let json = serde_json::to_string(json).map_err(|error| CliError::Stdout(error.into()))?;
        if let Some((path, file)) = &mut self.file {
            writeln!(file, "{json}").map_err(|error| CliError::Write {
                path: path.clone(),
                detail: error.to_string(),
            })?;
        }
        out.line(if self.json { json } else { text })
    }
}
