//! Figures, and what became of each target.

use crate::cli::error::{CliError, Result};
use crate::cli::output::Output;
use serde::Serialize;
use serde_json::Value;

/// What was found, printed as it comes.
pub struct Report {
    device: String,
    json: bool,
    findings: Vec<Finding>,
}

#[derive(Serialize)]
struct Finding {
    /// `construction`, `calls`, `calls by graphs`, `graphs`, `streams`.
    section: &'static str,
    /// Whether the target is met; nothing where there is none.
    ok: Option<bool>,
    text: String,
    figures: Value,
}

#[derive(Serialize)]
struct Document<'a> {
    device: &'a str,
    findings: &'a [Finding],
    ok: bool,
}

impl Report {
    /// A report on `device`.
    pub fn new(device: impl Into<String>, json: bool) -> Self {
        Self {
            device: device.into(),
            json,
            findings: Vec::new(),
        }
    }

    /// A figure without a target.
    pub fn note(
        &mut self,
        out: &mut Output,
        section: &'static str,
        text: String,
        figures: impl Serialize,
    ) -> Result<()> {
        self.add(out, section, None, text, figures)
    }

    /// A target, and whether it is met.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))] // all targets are those of a GPU
    pub fn target(
        &mut self,
        out: &mut Output,
        section: &'static str,
        ok: bool,
        text: String,
        figures: impl Serialize,
    ) -> Result<()> {
        self.add(out, section, Some(ok), text, figures)
    }

    fn add(
        &mut self,
        out: &mut Output,
        section: &'static str,
        ok: Option<bool>,
        text: String,
        figures: impl Serialize,
    ) -> Result<()> {
        if !self.json {
            let mark = match ok {
                Some(true) => "PASS",
                Some(false) => "FAIL",
                None => "    ",
            };
            out.line(format!("{mark} {section}: {text}"))?;
        }
        let figures = serde_json::to_value(figures).map_err(json)?;
        self.findings.push(Finding {
            section,
            ok,
            text,
            figures,
        });
        Ok(())
    }

    /// Prints the JSON or the verdict; whether every target is met.
    pub fn finish(&self, out: &mut Output) -> Result<bool> {
        let failed = self.findings.iter().filter(|f| f.ok == Some(false)).count();
        if self.json {
            let document = Document {
                device: &self.device,
                findings: &self.findings,
                ok: failed == 0,
            };
            out.line(serde_json::to_string_pretty(&document).map_err(json)?)?;
        } else if failed == 0 {
            out.line("PASS")?;
        } else {
            out.line(format!("FAIL: {failed} of the above"))?;
        }
        Ok(failed == 0)
    }
}

fn json(error: serde_json::Error) -> CliError {
    CliError::Stdout(error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_missed_target_fails_the_report() {
        let mut out = Output::stdout();
        let mut report = Report::new("test", true);
        let mut add = |ok: Option<bool>| {
            let added = report.add(&mut out, "calls", ok, String::new(), ());
            added.expect("nothing is printed");
            report
                .findings
                .iter()
                .all(|finding| finding.ok != Some(false))
        };
        assert!(add(None));
        assert!(add(Some(true)));
        assert!(!add(Some(false)));
        assert!(!report.finish(&mut out).expect("standard output"));
    }
}
