//! `cargo xtask sass`: assemble the PTX and read what ptxas says of every kernel.

use crate::{cuda_tools, workspace};
use cake_rmsnorm_kernels::gated::backward_pairs::shared_bytes;
use cake_rmsnorm_kernels::{KERNELS, contract::Program};
use comfy_table::{Table, presets::NOTHING};
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

/// The machines to assemble for, the PTX target that serves each, and the bytes of shared memory
/// that a block can have there.
const MACHINES: &[(&str, u32, u32)] = &[
    ("sm_80", 80, 163 << 10),
    ("sm_89", 80, 99 << 10),
    ("sm_90", 90, 227 << 10),
    ("sm_100a", 90, 227 << 10),
    ("sm_103a", 90, 227 << 10),
    ("sm_120", 90, 99 << 10),
];

/// Arguments of `cargo xtask sass`.
#[derive(clap::Args)]
pub struct Args {
    /// Folder of the PTX [default: ptx].
    #[arg(long, value_name = "DIR")]
    ptx: Option<PathBuf>,
}

/// Why the assembly failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No ptxas.
    #[error(transparent)]
    Tools(#[from] cuda_tools::Error),
    /// A file, or ptxas itself.
    #[error("{path}")]
    Io {
        /// Which.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// ptxas refused a file.
    #[error("ptxas does not assemble {file} for {machine}:\n{log}")]
    Refused {
        /// The file.
        file: String,
        /// The machine.
        machine: &'static str,
        /// What ptxas said.
        log: String,
    },
    /// Kernels that use local memory.
    #[error("stack or spills in\n{}", .0.join("\n"))]
    LocalMemory(Vec<String>),
    /// A folder without PTX.
    #[error("no PTX for sm_{sm} in {folder}; build it with `cargo xtask ptx`")]
    NoPtx {
        /// The folder.
        folder: String,
        /// Compute capability, ten times.
        sm: u32,
    },
}

/// What ptxas says of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The entry.
    pub kernel: String,
    /// Registers a thread.
    pub registers: u32,
    /// Stack frame, in bytes.
    pub stack: u32,
    /// Spill stores and loads, in bytes.
    pub spills: u32,
    /// Static shared memory, in bytes.
    pub shared: u32,
}

/// Runs the command.
///
/// # Errors
/// As [`assemble`].
pub fn run(args: &Args) -> Result<(), Error> {
    assemble(&args.ptx.clone().unwrap_or_else(workspace::ptx))
}

/// Assembles every PTX file in `folder` for every machine and prints a table.
///
/// # Errors
/// There is no ptxas or no PTX, a file does not assemble, or a kernel has a stack or spills.
pub fn assemble(folder: &Path) -> Result<(), Error> {
    let ptxas = cuda_tools::ptxas()?;
    let mut rows = Vec::new();
    for (machine, sm, _) in MACHINES {
        for path in ptx_files(folder, *sm)? {
            let usages = assemble_file(&ptxas, &path, machine)?;
            rows.extend(usages.into_iter().map(|usage| (*machine, usage)));
        }
    }
    println!("{}", table(&rows));
    let offenders: Vec<_> = rows.iter().filter_map(offence).collect();
    if offenders.is_empty() {
        println!(
            "{} kernels assembled: no stack, no spills where they can run",
            rows.len()
        );
        Ok(())
    } else {
        Err(Error::LocalMemory(offenders))
    }
}

fn ptx_files(folder: &Path, sm: u32) -> Result<Vec<PathBuf>, Error> {
    let io_error = |source| Error::Io {
        path: folder.display().to_string(),
        source,
    };
    let entries = fs::read_dir(folder).map_err(io_error)?;
    let end = format!(".sm_{sm}.ptx");
    let mut files: Vec<_> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.to_string_lossy().ends_with(&end))
        .collect();
    files.sort();
    if files.is_empty() {
        return Err(Error::NoPtx {
            folder: folder.display().to_string(),
            sm,
        });
    }
    Ok(files)
}

fn assemble_file(ptxas: &Path, path: &Path, machine: &'static str) -> Result<Vec<Usage>, Error> {
    let output = Command::new(ptxas)
        .args(["-v", "-arch", machine, "-o", "/dev/null"])
        .arg(path)
        .output()
        .map_err(|source| Error::Io {
            path: ptxas.display().to_string(),
            source,
        })?;
    let log = [output.stdout, output.stderr].concat();
    let log = String::from_utf8_lossy(&log);
    if !output.status.success() {
        let file = path.display().to_string();
        return Err(Error::Refused {
            file,
            machine,
            log: log.trim_end().to_owned(),
        });
    }
    Ok(parse(&log))
}

/// Reads the log of `ptxas -v`, sorted by kernel.
fn parse(log: &str) -> Vec<Usage> {
    let mut usages: Vec<Usage> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let kernel = rest.split('\'').next().unwrap_or(rest).to_owned();
            usages.push(Usage {
                kernel,
                ..Usage::default()
            });
        }
        let Some(usage) = usages.last_mut() else {
            continue;
        };
        if line.contains("bytes stack frame") {
            usage.stack = number_before(line, "bytes stack frame");
            usage.spills = number_before(line, "bytes spill stores")
                + number_before(line, "bytes spill loads");
        } else if line.contains("registers") {
            usage.registers = number_before(line, "registers");
            usage.shared = number_before(line, "bytes smem");
        }
    }
    usages.sort_by(|a, b| a.kernel.cmp(&b.kernel));
    usages
}

/// The number that stands before `unit`, 0 without one.
fn number_before(line: &str, unit: &str) -> u32 {
    let before = line.split_once(unit).map(|(before, _)| before.trim_end());
    let word = before.and_then(|before| before.rsplit([' ', ',', ':']).next());
    word.and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// What is wrong with a kernel, if a plan may launch it on that machine.
fn offence((machine, usage): &(&str, Usage)) -> Option<String> {
    let local = usage.stack > 0 || usage.spills > 0;
    (local && fits(machine, &usage.kernel)).then(|| {
        format!(
            "  {} for {machine}: {} bytes of stack, {} bytes of spills",
            usage.kernel, usage.stack, usage.spills
        )
    })
}

/// Whether a block of a kernel can have the shared memory that it needs on a machine: plans launch no
/// others, whose registers do not matter there.
fn fits(machine: &str, kernel: &str) -> bool {
    let kernel = KERNELS.iter().find(|known| known.name == kernel);
    let least = kernel.map_or(0, |kernel| match kernel.program {
        Program::GatedBackwardPairs { lanes, .. } => {
            let positions = kernel.max_threads / lanes;
            shared_bytes(kernel.max_threads, positions, positions.ilog2())
        }
        _ => 0,
    });
    let machine = MACHINES.iter().find(|(name, ..)| *name == machine);
    machine.is_none_or(|(.., most)| least <= *most)
}

fn table(rows: &[(&str, Usage)]) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table.set_header([
        "machine",
        "kernel",
        "registers",
        "stack",
        "spills",
        "static smem",
    ]);
    for (machine, usage) in rows {
        let numbers = [usage.registers, usage.stack, usage.spills, usage.shared];
        let names = [(*machine).to_owned(), usage.kernel.clone()];
        table.add_row(
            names
                .into_iter()
                .chain(numbers.map(|number| number.to_string())),
        );
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'second' for 'sm_90'
ptxas info    : Function properties for second
    64 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 64 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 4.802 ms
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for first
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 22 registers, used 1 barriers, 392 bytes cmem[0]
";

    #[test]
    fn the_log_gives_registers_stack_spills_and_shared_memory() {
        let first = Usage {
            kernel: "first".into(),
            registers: 22,
            ..Usage::default()
        };
        let second = Usage {
            kernel: "second".into(),
            registers: 255,
            stack: 64,
            spills: 20,
            shared: 1024,
        };
        assert_eq!(parse(LOG), [first, second]);
    }

    #[test]
    fn stack_or_spills_are_refused() {
        let usages = parse(LOG);
        assert_eq!(offence(&("sm_90", usages[0].clone())), None);
        let text = offence(&("sm_90", usages[1].clone())).expect("a stack");
        assert!(
            text.contains("second for sm_90: 64 bytes of stack, 20 bytes of spills"),
            "{text}"
        );
        let spilled = Usage {
            stack: 0,
            ..usages[1].clone()
        };
        assert!(offence(&("sm_90", spilled)).is_some());
    }

    #[test]
    fn registers_do_not_matter_where_shared_memory_is_short() {
        let spilled = |kernel: &str| Usage {
            kernel: kernel.into(),
            spills: 8,
            ..Usage::default()
        };
        let refused = |machine, kernel| offence(&(machine, spilled(kernel))).is_some();
        let pairs = "gated_backward_f32_l16p";
        assert_eq!(
            ["sm_80", "sm_89", "sm_90", "sm_120"].map(|machine| refused(machine, pairs)),
            [true, false, true, false]
        );
        assert!(refused("sm_89", "gated_backward_f32_l16v1"));
    }

    #[test]
    fn a_folder_without_ptx_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let found = ptx_files(folder.path(), 90);
        assert!(
            matches!(found, Err(Error::NoPtx { sm: 90, .. })),
            "{found:?}"
        );
    }
}
