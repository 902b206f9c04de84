//! Processes that are ended when they take too long.

use crate::cli::error::{CliError, Result};
use std::io::{IsTerminal, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How a process ended.
pub struct Ended {
    /// Its exit status, −1 for a signal; `None` where it was ended here.
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    pub seconds: f64,
}

/// Runs a process for at most so long. What it writes to standard error is kept.
#[cfg_attr(not(any(feature = "cuda", test)), allow(dead_code))]
pub fn run(command: &mut Command, limit: Duration) -> Result<Ended> {
    run_with(command, limit, Stdio::piped())
}

/// The same, but for a terminal, which is shown what the process writes to standard error: its
/// progress.
pub fn run_shown(command: &mut Command, limit: Duration) -> Result<Ended> {
    let stderr = match std::io::stderr().is_terminal() {
        true => Stdio::inherit(),
        false => Stdio::piped(),
    };
    run_with(command, limit, stderr)
}

fn run_with(command: &mut Command, limit: Duration, stderr: Stdio) -> Result<Ended> {
    let failed = |error: std::io::Error| CliError::Child {
        command: "reliability",
        detail: error.to_string(),
    };
    let begin = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .map_err(failed)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (status, stdout, stderr) = std::thread::scope(|scope| {
        // A full pipe would make the process wait.
        let stdout = scope.spawn(|| read(stdout));
        let stderr = scope.spawn(|| read(stderr));
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break Ok(Some(status.code().unwrap_or(-1))),
                Ok(None) if begin.elapsed() < limit => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Ok(None) => {
                    // One that ended just now needs no ending.
                    let _ = child.kill();
                    let _ = child.wait();
                    break Ok(None);
                }
                Err(error) => break Err(error),
            }
        };
        let text =
            |thread: std::thread::ScopedJoinHandle<'_, String>| thread.join().unwrap_or_default();
        (status, text(stdout), text(stderr))
    });
    Ok(Ended {
        status: status.map_err(failed)?,
        stdout,
        stderr,
        seconds: (begin.elapsed().as_secs_f64() * 10.0).round() / 10.0,
    })
}

fn read(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // What came before an error is what there is to tell.
        let _ = pipe.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The end of a text, in one line.
pub fn last_lines(text: &str) -> String {
    const LINES: usize = 6;
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    lines[lines.len().saturating_sub(LINES)..].join(" | ")
}
