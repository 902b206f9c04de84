//! The processes under compute-sanitizer.

use super::program::{Sanitizer, not_started};
use super::{Coverage, FAULT_JOB, Tool, log};
use crate::cli::error::{CliError, Result};
use crate::cli::reliability::finding::Findings;
use crate::cli::reliability::launches::{self, Launched};
use crate::cli::reliability::{Args, Opened, Stage, command, process};
use cake_rmsnorm::kernels::KERNELS;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Slices that the tasks are cut into, a process each.
const SLICES: usize = 12;
const MOST_PROCESSES: usize = 12;
/// A process that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(400);

/// A process to run.
#[derive(Clone, Copy, Debug)]
enum Job {
    /// A slice of the tasks.
    Slice(usize),
    /// A kernel that has the fault which the tool is for.
    Fault,
}

/// What came of it.
#[derive(Default)]
struct Outcome {
    launched: Launched,
    /// What the tool found.
    problems: Option<u64>,
    failures: Vec<String>,
    /// Why the tool did not start.
    not_started: Option<String>,
    /// What the log says first.
    excerpt: String,
}

/// Runs every tool.
pub fn run(sanitizer: &Path, stage: &Stage<'_>, findings: &mut Findings<'_>) -> Result<()> {
    let Opened::Cuda(device) = stage.opened else {
        return Ok(());
    };
    let sanitizer = match Sanitizer::ask(sanitizer) {
        Ok(sanitizer) => sanitizer,
        Err(reason) => return findings.fail("all of it", [], reason),
    };
    let gpu = device.cuda().device();
    let (major, minor) = gpu.properties().compute_capability;
    // The driver's compiler fills its cache, which the processes below share.
    let sm = 10 * major + minor;
    let kernels: Vec<_> = KERNELS.iter().filter(|it| it.min_sm <= sm).collect();
    gpu.load(&kernels)?;
    let jobs: Vec<(Tool, Job)> = Tool::ALL
        .into_iter()
        .flat_map(|tool| {
            let slices = (0..SLICES).map(Job::Slice).chain([Job::Fault]);
            slices.map(move |job| (tool, job))
        })
        .collect();
    let outcomes = run_jobs(&sanitizer, &jobs, stage)?;
    for tool in Tool::ALL {
        let (mut failures, mut processes, mut problems) = (Vec::new(), Vec::new(), 0);
        // One reason for many processes is told once.
        let mut not_started: BTreeMap<&str, u64> = BTreeMap::new();
        let mut planted = None;
        for ((of, job), outcome) in &outcomes {
            match job {
                _ if *of != tool => {}
                Job::Fault => planted = Some(outcome),
                Job::Slice(slice) => {
                    let said = outcome.failures.iter();
                    failures.extend(said.map(|failure| format!("slice {slice}: {failure}")));
                    if let Some(reason) = &outcome.not_started {
                        *not_started.entry(reason).or_default() += 1;
                    }
                    problems += outcome.problems.unwrap_or(0);
                    processes.push(&outcome.launched);
                }
            }
        }
        let tasks = processes.iter().map(|it| it.tasks).sum();
        let coverage = Coverage::new(KERNELS, sm, &processes);
        let refused = not_started.iter();
        failures.extend(refused.map(|(reason, times)| format!("{times} processes: {reason}")));
        if coverage.launched == 0 {
            failures.push("no kernel was launched".to_owned());
        } else if !coverage.missing.is_empty() {
            failures.push(format!("not launched: {}", coverage.missing.join(", ")));
        }
        let unlaunchable = coverage.unlaunchable.len() as u64;
        let name = tool.name();
        findings.judge(
            &format!("{name} over every kernel, bits compared with golden"),
            [
                ("kernels", coverage.launched),
                ("of", KERNELS.len() as u64),
                ("not for this device", unlaunchable),
                ("tasks", tasks),
                ("processes", SLICES as u64),
                ("errors and hazards", problems),
            ],
            &failures,
        )?;
        if let Some(planted) = planted {
            let found = planted.problems.unwrap_or(0);
            let why = planted.not_started.as_ref().unwrap_or(&planted.excerpt);
            let missed = format!("{name} found nothing: {why}");
            findings.judge(
                &format!("{name} over a kernel with a planted fault, which it must find"),
                [("found", found)],
                &Vec::from_iter((found == 0).then_some(missed)),
            )?;
        }
    }
    Ok(())
}

/// All jobs, a few at a time.
fn run_jobs(
    sanitizer: &Sanitizer,
    jobs: &[(Tool, Job)],
    stage: &Stage<'_>,
) -> Result<Vec<((Tool, Job), Outcome)>> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let processes = stage
        .args
        .processes
        .map_or(cores.min(MOST_PROCESSES), |n| n as usize);
    let folder = std::env::temp_dir().join(format!("cake-rmsnorm-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| write_error(&folder, error))?;
    stage.progress.expect(jobs.len() as u64);
    stage.progress.stage("compute-sanitizer");
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..processes {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&(tool, job)) = jobs.get(index) else {
                        break;
                    };
                    let outcome = run_one(sanitizer, stage.args, (tool, job), index, &folder);
                    let outcome = outcome.unwrap_or_else(|error| Outcome {
                        failures: vec![error.to_string()],
                        ..Outcome::default()
                    });
                    stage.progress.advance(1);
                    let mut outcomes = outcomes.lock().unwrap_or_else(|it| it.into_inner());
                    outcomes.push(((tool, job), outcome));
                }
            });
        }
    });
    // Logs that stay behind in the temporary folder harm nobody.
    let _ = std::fs::remove_dir_all(&folder);
    Ok(outcomes.into_inner().unwrap_or_else(|it| it.into_inner()))
}

fn run_one(
    sanitizer: &Sanitizer,
    args: &Args,
    (tool, job): (Tool, Job),
    index: usize,
    folder: &Path,
) -> Result<Outcome> {
    let log_path = folder.join(format!("{}-{index}.log", tool.name()));
    let mut process = sanitizer.command(tool, index, &log_path);
    let name = match job {
        Job::Slice(_) => launches::JOB,
        Job::Fault => FAULT_JOB,
    };
    let child = command(args, name)?;
    process.arg(child.get_program()).args(child.get_args());
    match job {
        Job::Slice(slice) => {
            process.args(["--slice", &format!("{slice}/{SLICES}")]);
            if tool == Tool::Initcheck {
                process.arg("--fresh");
            }
        }
        Job::Fault => {
            process.args(["--slice", tool.name()]);
        }
    }
    let ended = process::run(&mut process, LIMIT)?;
    let log = std::fs::read_to_string(&log_path).unwrap_or_default();
    let mut outcome = Outcome {
        problems: log::problems(tool, &log),
        excerpt: log::excerpt(&log),
        not_started: not_started(&ended, &log),
        ..Outcome::default()
    };
    if matches!(job, Job::Slice(_)) && outcome.not_started.is_none() {
        judge(&ended, &mut outcome);
    }
    Ok(outcome)
}

/// What a slice's process said, and the tool of it.
fn judge(ended: &process::Ended, outcome: &mut Outcome) {
    let said = ended.stdout.lines().rev();
    match said
        .into_iter()
        .find_map(|line| serde_json::from_str(line).ok())
    {
        Some(launched) => outcome.launched = launched,
        None => outcome
            .failures
            .push("it did not say what it launched".to_owned()),
    }
    outcome.failures.append(&mut outcome.launched.failures);
    match (ended.status, outcome.problems) {
        (Some(0), Some(0)) => {}
        (None, _) => outcome
            .failures
            .push(format!("ended after {} s", ended.seconds)),
        (status, problems) => outcome.failures.push(format!(
            "exit status {status:?}, {problems:?} errors: {} | {}",
            outcome.excerpt,
            process::last_lines(&ended.stderr),
        )),
    }
}

fn write_error(path: &Path, error: std::io::Error) -> CliError {
    CliError::Write {
        path: PathBuf::from(path),
        detail: error.to_string(),
    }
}
