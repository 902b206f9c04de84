//! The command line: what it accepts, and what its exit status says.

mod accuracy;
mod bench;
mod bench_host;
mod cases;
mod check;
mod device;
mod doctor;
mod error;
mod operands;
mod output;
mod partition;
mod progress;
mod record;
mod reliability;
mod routes;
mod sweep;
mod tensors;
mod tune;

use cake_rmsnorm::{Dtype, RmsNorm};
use clap::{Parser, Subcommand, ValueEnum};
use output::Output;
use std::process::ExitCode;

/// RMSNorm training kernels with the same bits on every device.
///
/// Exit status: 0 when all is well, 1 when a check or a device fails, 2 when the arguments or an
/// input are refused.
#[derive(Parser)]
#[command(name = "cake-rmsnorm", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a forward and a backward and check every output.
    Check(check::Args),
    /// Compare dw of very many rows with exact sums, for many seeds.
    Accuracy(accuracy::Args),
    /// Time forward and backward beside a copy of as many bytes.
    Bench(bench::Args),
    /// Time what operators cost on the host, and check calls in graphs and on two streams.
    BenchHost(bench_host::Args),
    /// Run drawn calls of any shape, types, strides, alignment, options and data, and check every
    /// output.
    Cases(cases::Args),
    /// Run every program that a shape allows, at every small T and beside every edge, and compare
    /// every bit with the golden implementation.
    Sweep(sweep::Args),
    /// Run everything that the library promises to survive on a GPU, and write one record of it.
    Reliability(reliability::Args),
    /// Measure every choice of programs on this GPU, and write routes that the library can load.
    Tune(tune::Args),
    /// Measure what it costs that dw does not depend on the number of multiprocessors.
    Partition(partition::Args),
    /// Print which kernels run for a shape, and how dw is summed.
    Routes(routes::Args),
    /// Look for what is missing on this machine, and say what to do about it.
    Doctor,
}

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DtypeArg {
    Bf16,
    F16,
    F32,
}

impl From<DtypeArg> for Dtype {
    fn from(dtype: DtypeArg) -> Dtype {
        match dtype {
            DtypeArg::Bf16 => Dtype::Bf16,
            DtypeArg::F16 => Dtype::F16,
            DtypeArg::F32 => Dtype::F32,
        }
    }
}

/// The weight's type of an operator that was given one.
fn weight_type(op: &RmsNorm) -> Dtype {
    op.weight().unwrap_or(Dtype::F32)
}

/// How [`Dtype`] is written on the command line and in JSON.
fn dtype_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Bf16 => "bf16",
        Dtype::F16 => "f16",
        Dtype::F32 => "f32",
    }
}

/// Runs the program on the process's arguments.
pub fn main() -> ExitCode {
    let mut out = Output::stdout();
    let result = match Cli::parse().command {
        Command::Check(args) => check::run(&args, &mut out),
        Command::Cases(args) => cases::run(&args, &mut out),
        Command::Accuracy(args) => accuracy::run(&args, &mut out),
        Command::Bench(args) => bench::run(&args, &mut out).map(|()| true),
        Command::BenchHost(args) => bench_host::run(&args, &mut out),
        Command::Sweep(args) => sweep::run(&args, &mut out),
        Command::Reliability(args) => reliability::run(&args, &mut out),
        Command::Partition(args) => partition::run(&args, &mut out),
        Command::Tune(args) => tune::run(&args, &mut out).map(|()| true),
        Command::Routes(args) => routes::run(&args, &mut out).map(|()| true),
        Command::Doctor => doctor::run(&mut out).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            output::report(&error);
            ExitCode::from(if error.is_refusal() { 2 } else { 1 })
        }
    }
}

#[cfg(test)]
mod documented;

#[cfg(test)]
mod tests {
    use super::{Cli, documented};
    use clap::CommandFactory;
    use std::path::Path;

    /// Words before this program's arguments.
    fn arguments_of(words: &[&str]) -> Option<usize> {
        if let ["cargo", "run", rest @ ..] = words {
            let separator = rest.iter().position(|word| *word == "--")?;
            let elsewhere = ["-p", "--package", "--bin", "--example", "--manifest-path"];
            let ours = !rest[..separator]
                .iter()
                .any(|word| elsewhere.contains(word));
            return ours.then_some(2 + separator + 1);
        }
        let program = |word: &&str| {
            Path::new(word)
                .file_name()
                .is_some_and(|name| name == "cake-rmsnorm")
        };
        let position = words.iter().position(program)?;
        // The name alone is the crate's.
        (position + 1 < words.len() && words[0] != "cargo").then_some(position + 1)
    }

    #[test]
    fn command_lines_in_the_documents_are_accepted() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let (count, refused) = documented::check(root, &Cli::command(), arguments_of);
        assert!(refused.is_empty(), "{}", refused.join("\n"));
        assert!(count > 20, "only {count} found");
    }
}
