//! Every kernel, in small calls whose every bit is compared: what processes under compute-sanitizer
//! run.

mod tasks;
mod watched;

pub use tasks::tasks;

use super::Args;
use super::opened::Opened;
use crate::cli::error::{CliError, Result};
use crate::cli::output::Output;
use crate::cli::progress::Progress;
use std::collections::BTreeSet;
use watched::Watched;

/// The job's name.
pub const JOB: &str = "launches";

/// What a process says of its launches, on the last line.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Launched {
    /// Kernels that were launched.
    pub kernels: BTreeSet<String>,
    /// Tasks that were run.
    pub tasks: u64,
    /// What is wrong with what they wrote.
    pub failures: Vec<String>,
}

/// Runs a slice of the tasks, and prints what was launched; whether all bits are golden's.
pub fn run(args: &Args, progress: &Progress, out: &mut Output) -> Result<bool> {
    let (slice, slices) = slice_of(args.slice.as_deref().unwrap_or("0/1"))?;
    let opened = Opened::new(args.device)?;
    let device = opened.stream()?;
    let no_launcher = || CliError::Usage {
        option: "--device cpu",
        reason: "it launches no kernels: accepted are cuda and sim".to_owned(),
    };
    let launcher = device.launcher().ok_or_else(no_launcher)?;
    let all = tasks(launcher.properties());
    let mut launched = Launched::default();
    for task in all.iter().skip(slice).step_by(slices) {
        progress.stage(task.to_string());
        let watched = Watched::new(&*device, launcher, task, !args.fresh);
        let failures = match task.run(&watched) {
            Ok(failures) => failures,
            Err(error) => vec![error.to_string()],
        };
        let kernels = watched.launched();
        let planned = task.kernels(launcher.properties())?;
        let missing: Vec<_> = planned.difference(&kernels).copied().collect();
        if failures.is_empty() && !missing.is_empty() {
            launched
                .failures
                .push(format!("{task}: not launched: {missing:?}"));
        }
        launched
            .kernels
            .extend(kernels.into_iter().map(str::to_owned));
        launched.tasks += 1;
        let failures = failures
            .into_iter()
            .map(|failure| format!("{task}: {failure}"));
        launched.failures.extend(failures);
    }
    progress.finish();
    let text = serde_json::to_string(&launched);
    out.line(text.map_err(|error| CliError::Stdout(error.into()))?)?;
    Ok(launched.failures.is_empty())
}

fn slice_of(text: &str) -> Result<(usize, usize)> {
    let numbers = text.split_once('/').and_then(|(slice, slices)| {
        let (slice, slices) = (slice.parse().ok()?, slices.parse().ok()?);
        (slice < slices).then_some((slice, slices))
    });
    numbers.ok_or_else(|| CliError::Usage {
        option: "--slice",
        reason: format!("{text:?}: accepted are I/N, with I less than N"),
    })
}
