//! What a part found.

use crate::cli::error::{CliError, Result};
use crate::cli::output::{Output, thousands};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// What became of a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// It was kept.
    Pass,
    /// It was not.
    Fail,
    /// It was not tried.
    Skipped,
}

/// A line of the record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The part's name.
    pub part: String,
    pub status: Status,
    /// What was run.
    pub what: String,
    /// How much of what.
    pub counts: Vec<(String, u64)>,
    /// Why it failed or was skipped.
    pub reason: Option<String>,
    pub seconds: f64,
}

impl Finding {
    /// A failure of the part as a whole.
    pub fn failure(part: &str, what: &str, reason: String, seconds: f64) -> Self {
        Self {
            part: part.to_owned(),
            status: Status::Fail,
            what: what.to_owned(),
            counts: Vec::new(),
            reason: Some(reason),
            seconds,
        }
    }

    pub fn failed(&self) -> bool {
        self.status == Status::Fail
    }

    /// The findings among the lines of a process's output, and the other lines.
    pub fn read(text: &str) -> (Vec<Self>, String) {
        let (mut findings, mut rest) = (Vec::new(), String::new());
        for line in text.lines() {
            match serde_json::from_str(line) {
                Ok(finding) => findings.push(finding),
                Err(_) => rest += &format!("{line}\n"),
            }
        }
        (findings, rest)
    }

    /// For readers.
    pub fn text(&self) -> String {
        let status = match self.status {
            Status::Pass => "PASS   ",
            Status::Fail => "FAIL   ",
            Status::Skipped => "SKIPPED",
        };
        let mut text = format!("{status} {}: {}", self.part, self.what);
        for (index, (name, count)) in self.counts.iter().enumerate() {
            let separator = if index == 0 { ": " } else { ", " };
            text += &format!("{separator}{} {name}", thousands(*count));
        }
        if let Some(reason) = &self.reason {
            text += &format!("; {reason}");
        }
        text + &format!(" ({:.1} s)", self.seconds)
    }
}

/// The findings of a part, printed as they come.
pub struct Findings<'a> {
    part: String,
    out: &'a mut Output,
    since: Instant,
    failed: bool,
}

impl<'a> Findings<'a> {
    /// Of the part of that name.
    pub fn new(part: String, out: &'a mut Output) -> Self {
        Self {
            part,
            out,
            since: Instant::now(),
            failed: false,
        }
    }

    /// Whether nothing failed so far.
    pub fn ok(&self) -> bool {
        !self.failed
    }

    /// Something was kept, or not, for these reasons.
    pub fn judge<const N: usize>(
        &mut self,
        what: &str,
        counts: [(&str, u64); N],
        failures: &[String],
    ) -> Result<()> {
        /// Failures that are told.
        const TOLD: usize = 8;
        if failures.is_empty() {
            return self.add(Status::Pass, what, &counts, None);
        }
        let mut reason = failures[..failures.len().min(TOLD)].join("; ");
        if failures.len() > TOLD {
            reason += &format!("; and {} more", failures.len() - TOLD);
        }
        self.fail(what, counts, reason)
    }

    /// Something failed.
    pub fn fail<const N: usize>(
        &mut self,
        what: &str,
        counts: [(&str, u64); N],
        reason: String,
    ) -> Result<()> {
        self.failed = true;
        self.add(Status::Fail, what, &counts, Some(reason))
    }

    /// Something was not tried.
    pub fn skip(&mut self, what: &str, reason: &str) -> Result<()> {
        self.add(Status::Skipped, what, &[], Some(reason.to_owned()))
    }

    fn add(
        &mut self,
        status: Status,
        what: &str,
        counts: &[(&str, u64)],
        reason: Option<String>,
    ) -> Result<()> {
        let seconds = (self.since.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        self.since = Instant::now();
        let finding = Finding {
            part: self.part.clone(),
            status,
            what: what.to_owned(),
            counts: counts
                .iter()
                .map(|(name, n)| ((*name).to_owned(), *n))
                .collect(),
            reason,
            seconds,
        };
        let line = serde_json::to_string(&finding);
        self.out
            .line(line.map_err(|error| CliError::Stdout(error.into()))?)
    }
}
