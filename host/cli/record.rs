//! When, where and of what a record was made, as `docs/measurements` wants it.

use serde::Serialize;
use std::path::Path;
use std::process::{Command, Stdio};

/// When, where and of what.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    pub date: String,
    pub gpu: String,
    pub driver: String,
    pub command: String,
    pub commit: String,
}

impl Record {
    /// Of this command, on that GPU.
    pub fn now(gpu: String, driver: String) -> Self {
        Self {
            date: time::OffsetDateTime::now_utc().date().to_string(),
            gpu,
            driver,
            command: command(),
            commit: commit(),
        }
    }
}

/// The version of the NVIDIA driver that is loaded; `-` where there is none.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub fn driver_version() -> String {
    let version = std::fs::read_to_string("/sys/module/nvidia/version");
    version.map_or("-".to_owned(), |version| version.trim().to_owned())
}

/// The command line, the program without its folder.
fn command() -> String {
    let mut arguments = std::env::args();
    let program = arguments.next().unwrap_or_default();
    let program = Path::new(&program).file_name();
    let program = program.map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    [program]
        .into_iter()
        .chain(arguments)
        .collect::<Vec<_>>()
        .join(" ")
}

/// The commit of the sources that this program was built from, if they are still there.
fn commit() -> String {
    let mut git = Command::new("git");
    git.args(["-C", env!("CARGO_MANIFEST_DIR"), "describe"])
        .args(["--always", "--abbrev=40", "--exclude=*", "--dirty"])
        .stdin(Stdio::null());
    let text = git.output().ok().filter(|output| output.status.success());
    let text = text.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.filter(|text| !text.is_empty())
        .unwrap_or_else(|| "unknown".to_owned())
}
