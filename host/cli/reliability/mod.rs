//! `reliability`: what the library promises to survive on a GPU, in one run and one record.
//!
//! Each part runs in a process of its own, so that one that breaks the GPU's context, panics or
//! hangs takes nothing with it.

mod aborted;
mod cases;
mod finding;
#[cfg(feature = "cuda")]
pub mod graphs;
mod launches;
mod memory;
pub mod opened;
mod process;
mod record;
mod repeats;
mod sanitizer;
pub mod shape;
pub mod streams;

use super::error::{CliError, Result};
use super::output::Output;
use super::progress::Progress;
use clap::ValueEnum;
use finding::{Finding, Findings};
use opened::{Opened, Where};
use process::Ended;
use record::Writer;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Arguments of `reliability`.
#[derive(Clone, clap::Args)]
pub struct Args {
    /// Where to run: the first GPU, or what makes sense of it, with small counts, under the
    /// simulator or on the CPU.
    #[arg(long, value_enum, default_value = "cuda")]
    device: Where,
    /// Some parts alone.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME,…")]
    only: Vec<Part>,
    /// About a hundredth of the counts.
    #[arg(long)]
    quick: bool,
    /// Write the record to a file: JSON lines, one a finding, as they come.
    #[arg(long, value_name = "FILE.reliability.jsonl")]
    out: Option<PathBuf>,
    /// Print the record instead of lines for readers.
    #[arg(long)]
    json: bool,
    /// The commit of the sources, for the record [default: what git says of them, if they are
    /// still there].
    #[arg(long)]
    commit: Option<String>,
    /// compute-sanitizer [default: on PATH, else of CUDA in /usr/local].
    #[arg(long, value_name = "PROGRAM")]
    sanitizer: Option<PathBuf>,
    /// Processes under compute-sanitizer at once [default: the cores, at most 12].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=64))]
    processes: Option<u64>,
    /// End a part after so many seconds: it failed then.
    #[arg(long, value_name = "SECONDS", default_value = "600")]
    limit: u64,
    /// Runs a part, or what parts run in processes of their own, in this process.
    #[arg(long, hide = true, value_name = "JOB")]
    job: Option<String>,
    /// What of a job's work to do: one of so many slices.
    #[arg(long, hide = true, value_name = "I/N")]
    slice: Option<String>,
    /// Memory that kernels write is not written before.
    #[arg(long, hide = true)]
    fresh: bool,
}

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Part {
    /// Every kernel under memcheck, racecheck, initcheck and synccheck.
    Sanitizer,
    /// Drawn cases against golden.
    Cases,
    /// Backwards after one another on one workspace.
    Repeats,
    /// A stream and a workspace a thread.
    Streams,
    /// Graphs that are captured once and replayed over changing contents.
    Graphs,
    /// Beside a kernel that holds multiprocessors.
    CoResident,
    /// After a launch that was aborted.
    Aborted,
    /// Without memory.
    Oom,
    /// Beside other contexts, processes and GPUs.
    Contexts,
    /// PTX that is damaged or too new.
    Modules,
}

impl Part {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// What every part is given.
struct Stage<'a> {
    args: &'a Args,
    opened: &'a Opened,
    progress: &'a Progress,
}

impl Stage<'_> {
    /// `full` of it on a GPU, about a hundredth with `--quick`, `few` elsewhere.
    fn count(&self, full: u64, few: u64) -> u64 {
        match (self.args.device, self.args.quick) {
            (Where::Cuda, false) => full,
            (Where::Cuda, true) => full.div_ceil(100),
            _ => few,
        }
    }
}

/// Runs the parts; whether none failed.
pub fn run(args: &Args, out: &mut Output) -> Result<bool> {
    match &args.job {
        Some(job) => run_job(job, args, out),
        None => run_parts(args, out),
    }
}

/// Every part in a process of its own.
fn run_parts(args: &Args, out: &mut Output) -> Result<bool> {
    // Closed again: parts have the device to themselves.
    let (gpu, driver) = Opened::new(args.device)?.names();
    let mut writer = Writer::new(args, gpu, driver)?;
    writer.heading(out)?;
    for &part in Part::value_variants() {
        if args.only.is_empty() || args.only.contains(&part) {
            let ended = process::run_shown(&mut command(args, &part.name())?, args.limit())?;
            for finding in findings_of(part, &ended) {
                writer.add(&finding, out)?;
            }
        }
    }
    writer.finish(out)
}

/// What a part's process said, and what is to be said of how it ended.
fn findings_of(part: Part, ended: &Ended) -> Vec<Finding> {
    let (mut findings, rest) = Finding::read(&ended.stdout);
    let well = findings.iter().all(|finding| !finding.failed());
    let reason = match ended.status {
        None => Some(format!("ended after {} s", ended.seconds)),
        Some(0) if !findings.is_empty() && rest.is_empty() => None,
        // It says itself what failed.
        Some(1) if !well => None,
        status => Some(format!(
            "exit status {status:?}: {}",
            process::last_lines(&[&rest, ended.stderr.trim()].concat())
        )),
    };
    let failed =
        |reason| Finding::failure(&part.name(), "the part's process", reason, ended.seconds);
    findings.extend(reason.map(failed));
    findings
}

impl Args {
    fn limit(&self) -> Duration {
        Duration::from_secs(self.limit)
    }
}

/// This program, with a job.
fn command(args: &Args, job: &str) -> Result<Command> {
    let program = std::env::current_exe().map_err(|error| CliError::Child {
        command: "reliability",
        detail: error.to_string(),
    })?;
    let mut command = Command::new(program);
    let device = args.device.to_possible_value();
    let device = device.map_or_else(String::new, |value| value.get_name().to_owned());
    command.args(["reliability", "--device", &device, "--job", job]);
    if args.quick {
        command.arg("--quick");
    }
    if let Some(sanitizer) = &args.sanitizer {
        command.arg("--sanitizer").arg(sanitizer);
    }
    if let Some(processes) = args.processes {
        command.args(["--processes", &processes.to_string()]);
    }
    command.args(["--limit", &args.limit.to_string()]);
    Ok(command)
}

/// Does a job in this process.
fn run_job(job: &str, args: &Args, out: &mut Output) -> Result<bool> {
    let progress = Progress::new();
    if job == launches::JOB {
        return launches::run(args, &progress, out);
    }
    #[cfg(feature = "cuda")]
    if job == sanitizer::FAULT_JOB {
        return sanitizer::faults::run(args);
    }
    #[cfg(feature = "cuda")]
    if job == aborted::TRAP_JOB {
        return aborted::trap::run(out);
    }
    let part = Part::from_str(job, false).map_err(|reason| CliError::Usage {
        option: "--job",
        reason,
    })?;
    let mut findings = Findings::new(part.name(), out);
    let done = Opened::new(args.device).and_then(|opened| {
        let stage = Stage {
            args,
            opened: &opened,
            progress: &progress,
        };
        progress.stage(part.name());
        run_part(part, &stage, &mut findings)
    });
    progress.finish();
    if let Err(error) = done {
        findings.fail("the rest of the part", [], error.to_string())?;
    }
    Ok(findings.ok())
}

fn run_part(part: Part, stage: &Stage<'_>, findings: &mut Findings<'_>) -> Result<()> {
    match part {
        Part::Sanitizer => sanitizer::run(stage, findings),
        Part::Cases => cases::run(stage, findings),
        Part::Repeats => repeats::run(stage, findings),
        Part::Streams => streams::run(stage, findings),
        Part::Aborted => aborted::run(stage, findings),
        Part::Oom => memory::run(stage, findings),
        Part::Graphs | Part::CoResident | Part::Contexts | Part::Modules => {
            on_gpu(part, stage, findings)
        }
    }
}

/// Parts that need a GPU.
#[cfg_attr(not(feature = "cuda"), allow(clippy::unnecessary_wraps))]
fn on_gpu(part: Part, stage: &Stage<'_>, findings: &mut Findings<'_>) -> Result<()> {
    #[cfg(feature = "cuda")]
    if let Opened::Cuda(device) = stage.opened {
        return match part {
            Part::Graphs => graphs::run(device, stage, findings),
            Part::CoResident => resident::run(device, stage, findings),
            Part::Contexts => contexts::run(device, stage, findings),
            _ => modules::run(device, stage, findings),
        };
    }
    let _ = (part, stage);
    findings.skip("all of it", opened::NEEDS_GPU)
}

#[cfg(feature = "cuda")]
mod contexts;
#[cfg(feature = "cuda")]
mod modules;
#[cfg(feature = "cuda")]
mod planted;
#[cfg(feature = "cuda")]
mod resident;
#[cfg(test)]
mod tests;
