//! compute-sanitizer itself: its options, which differ between versions, and whether it started.

use super::Tool;
use crate::cli::reliability::process::{self, Ended};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What compute-sanitizer exits with when it found something.
const FOUND: i32 = 86;
/// The first port by which compute-sanitizer and its process talk, and how many each pair has.
const FIRST_PORT: usize = 49_152;
const PORTS: usize = 16;
/// Seconds that a process may take to start.
const START: &str = "120";
/// How long it may take to say what its options are.
const HELP_LIMIT: Duration = Duration::from_secs(60);

/// A compute-sanitizer that is installed.
#[derive(Debug)]
pub struct Sanitizer {
    path: PathBuf,
    options: BTreeSet<String>,
}

impl Sanitizer {
    /// Asks the program for its options; an error says why it cannot be used.
    pub fn ask(path: &Path) -> Result<Self, String> {
        let ended = process::run(Command::new(path).arg("--help"), HELP_LIMIT);
        let ended = ended.map_err(|error| format!("{}: {error}", path.display()))?;
        let options = options(&[&*ended.stdout, "\n", &*ended.stderr].concat());
        if !options.contains("--tool") {
            return Err(format!(
                "{} --help names no option --tool: {}",
                path.display(),
                said(&ended)
            ));
        }
        let path = path.to_owned();
        Ok(Self { path, options })
    }

    /// The command that runs a tool, but for the program that it watches. Commands that run at the
    /// same time have an `index` each.
    pub fn command(&self, tool: Tool, index: usize, log: &Path) -> Command {
        let mut command = Command::new(&self.path);
        command
            .args(["--tool", tool.name()])
            .args(["--error-exitcode", &FOUND.to_string()])
            .arg("--log-file")
            .arg(log);
        let port = (FIRST_PORT + PORTS * index).to_string();
        for (option, value) in [("--launch-timeout", START), ("--base-port", &port)] {
            if self.options.contains(option) {
                command.args([option, value]);
            }
        }
        command
    }
}

/// The long names of options in a help text: those that begin a line, not those that descriptions
/// mention.
fn options(help: &str) -> BTreeSet<String> {
    /// Descriptions go on further to the right.
    const INDENT: usize = 8;
    let lines = help.lines().filter(|line| {
        let name = line.trim_start();
        name.starts_with('-') && line.len() - name.len() < INDENT
    });
    let names = lines.flat_map(|line| {
        // Two spaces part the names from the description.
        let names = line.trim().split("  ").next().unwrap_or_default();
        names.split([' ', ',', '=', '[', ']'])
    });
    let long = names.filter(|name| name.len() > 2 && name.starts_with("--"));
    long.map(str::to_owned).collect()
}

/// Why a tool watched no process, in a line; `None` where its log says that it did.
pub fn not_started(ended: &Ended, log: &str) -> Option<String> {
    let watched = log.contains("COMPUTE-SANITIZER");
    // One that was ended may have waited for its process.
    let status = ended.status.filter(|&status| status != 0 && !watched)?;
    Some(format!(
        "compute-sanitizer did not start (exit status {status}): {}",
        said(ended)
    ))
}

/// The end of what a process said, in a line.
fn said(ended: &Ended) -> String {
    match process::last_lines(&[ended.stdout.trim(), "\n", ended.stderr.trim()].concat()) {
        nothing if nothing.is_empty() => "it says nothing".to_owned(),
        said => said,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELP: &str = "\
NVIDIA (R) Compute Sanitizer
Usage: compute-sanitizer [options] app [app options]

General options:
  -h [ --help ]                         Produce this help message.
  -v [ --version ]                      Produce the version.
  --tool arg (=memcheck)                Set the tool to use: memcheck, racecheck.
  --launch-timeout arg (=60)            Timeout in seconds, as with
                                        --base-port and --kill.
  --log-file=arg                        Where to write; see --save.
  -p, --print-level <level>             Least severity.
";

    #[test]
    fn options_are_those_that_the_help_text_lists() {
        let found = options(HELP);
        let listed = [
            "--help",
            "--launch-timeout",
            "--log-file",
            "--print-level",
            "--tool",
            "--version",
        ];
        assert_eq!(Vec::from_iter(&found), listed);
        assert!(options("unrecognised option '--help'\n--------\n").len() < 2);

        let arguments = |options: BTreeSet<String>| -> Vec<String> {
            let path = PathBuf::from("compute-sanitizer");
            let sanitizer = Sanitizer { path, options };
            let command = sanitizer.command(Tool::Memcheck, 2, Path::new("l"));
            let arguments = command.get_args().map(|it| it.to_string_lossy());
            arguments.map(|it| it.into_owned()).collect()
        };
        let without = arguments(found.clone());
        assert!(without.contains(&"--launch-timeout".to_owned()));
        assert!(!without.contains(&"--base-port".to_owned()), "{without:?}");
        let with = arguments(options(&[HELP, "  --base-port arg  The port.\n"].concat()));
        assert_eq!(with[with.len() - 2..], ["--base-port", "49184"]);
    }

    fn ended(status: Option<i32>, stderr: &str) -> Ended {
        Ended {
            status,
            stdout: String::new(),
            stderr: stderr.to_owned(),
            seconds: 0.1,
        }
    }

    #[test]
    fn a_tool_that_does_not_start_says_why() {
        let refused = ended(Some(255), "unrecognised option '--base-port'\n");
        let why = not_started(&refused, "").expect("it did not start");
        assert!(
            why.contains("255") && why.contains("'--base-port'"),
            "{why}"
        );
        assert!(!why.contains('\n'));
        // It watched a process, which failed; it was ended; it found nothing.
        let log = "========= COMPUTE-SANITIZER\n";
        assert_eq!(not_started(&ended(Some(255), "panicked"), log), None);
        assert_eq!(not_started(&ended(None, ""), ""), None);
        assert_eq!(not_started(&ended(Some(0), ""), ""), None);
    }

    #[cfg(unix)]
    #[test]
    fn a_program_without_tools_is_refused() {
        for (program, reason) in [("/bin/false", "no option --tool"), ("/no/such", "/no/such")] {
            let refusal = Sanitizer::ask(Path::new(program)).expect_err("it has no options");
            assert!(refusal.contains(reason), "{refusal}");
        }
    }
}
