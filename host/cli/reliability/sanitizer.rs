//! Every kernel under every tool of compute-sanitizer, several processes at a time.

#[cfg(feature = "cuda")]
pub mod faults;
mod log;
#[cfg(any(feature = "cuda", test))]
mod program;
#[cfg(feature = "cuda")]
mod run;

use super::finding::Findings;
use super::launches::Launched;
use super::{Stage, opened};
use crate::cli::error::Result;
use cake_rmsnorm::kernels::contract::Kernel;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The job that runs a kernel with a fault.
#[cfg(feature = "cuda")]
pub const FAULT_JOB: &str = "fault";

/// A tool of compute-sanitizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    Memcheck,
    Racecheck,
    Initcheck,
    Synccheck,
}

impl Tool {
    /// All of them, the slowest first.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub const ALL: [Tool; 4] = [
        Tool::Racecheck,
        Tool::Initcheck,
        Tool::Memcheck,
        Tool::Synccheck,
    ];

    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub fn name(self) -> &'static str {
        match self {
            Tool::Memcheck => "memcheck",
            Tool::Racecheck => "racecheck",
            Tool::Initcheck => "initcheck",
            Tool::Synccheck => "synccheck",
        }
    }
}

/// Runs them.
pub fn run(stage: &Stage<'_>, findings: &mut Findings<'_>) -> Result<()> {
    if !stage.opened.is_gpu() {
        return findings.skip("all of it", opened::NEEDS_GPU);
    }
    let Some(sanitizer) = find(stage.args.sanitizer.as_deref()) else {
        let reason =
            "compute-sanitizer is neither on PATH nor in /usr/local/cuda*/bin (--sanitizer)";
        return findings.skip("all of it", reason);
    };
    #[cfg(feature = "cuda")]
    return run::run(&sanitizer, stage, findings);
    #[cfg(not(feature = "cuda"))]
    return findings.skip(&sanitizer.display().to_string(), opened::NEEDS_GPU);
}

/// compute-sanitizer: the one asked for, or one that is installed.
fn find(asked: Option<&Path>) -> Option<PathBuf> {
    if let Some(path) = asked {
        return path.is_file().then(|| path.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    if let Ok(entries) = std::fs::read_dir("/usr/local") {
        let names = entries.flatten().map(|entry| entry.path());
        let cuda = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with("cuda")
        };
        let mut installed: Vec<PathBuf> = names.filter(cuda).collect();
        installed.sort();
        // The newest.
        folders.extend(installed.into_iter().rev().map(|path| path.join("bin")));
    }
    let programs = folders.into_iter().map(|it| it.join("compute-sanitizer"));
    programs.into_iter().find(|program| program.is_file())
}

/// Which of the kernels were launched.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// They were.
    pub launched: u64,
    /// They were not, though the device can.
    pub missing: Vec<&'static str>,
    /// The device cannot launch them.
    pub unlaunchable: Vec<&'static str>,
}

impl Coverage {
    /// Of `kernels`, on a device of that compute capability (ten times), by those processes.
    #[cfg_attr(not(any(feature = "cuda", test)), allow(dead_code))]
    pub fn new(kernels: &'static [Kernel], sm: u32, processes: &[&Launched]) -> Self {
        let launched: BTreeSet<&str> = processes
            .iter()
            .flat_map(|process| process.kernels.iter().map(String::as_str))
            .collect();
        let mut coverage = Coverage::default();
        for kernel in kernels {
            if launched.contains(kernel.name) {
                coverage.launched += 1;
            } else if kernel.min_sm > sm {
                coverage.unlaunchable.push(kernel.name);
            } else {
                coverage.missing.push(kernel.name);
            }
        }
        coverage
    }
}
