//! Developer commands: `cargo xtask --help`.

mod api;
mod assemble;
mod breakages;
mod counts;
mod cuda_tools;
mod device_build;
mod header;
mod lint;
mod plots;
mod postprocess;
mod ptx;
mod ptx_text;
mod rust_cuda;
mod stub;
mod tables;
mod toolchain;
mod workspace;

#[path = "../../ptx/manifest.rs"]
mod manifest;

use clap::{Parser, Subcommand};
use std::{error::Error, process::ExitCode};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of cake-rmsnorm")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compile the kernels to PTX, or check the committed PTX.
    Ptx(ptx::Args),
    /// Check every kernel's PTX against its launch contract, then assemble it.
    LintPtx(lint::Args),
    /// Assemble the PTX with ptxas and print registers, stack, spills and shared memory.
    Sass(assemble::Args),
    /// Build a stand-in for the CUDA driver, for linking feature `cuda` without CUDA.
    CudaStub(stub::Args),
    /// Write the tables of the documents from `docs/measurements/`.
    Tables(tables::Args),
    /// Draw the pictures of the documents from `docs/measurements/` and from the plans.
    Plots(plots::Args),
    /// Write the C header from the sources of the C interface.
    Header(header::Args),
    /// List the library's public items, or check that none is gone.
    Api(api::Args),
    /// Break every promise of docs/testing.md, and see its tests fail.
    Breakages(breakages::Args),
}

fn main() -> ExitCode {
    let result: Result<(), Box<dyn Error>> = match Cli::parse().command {
        Command::Ptx(args) => ptx::run(&args).map_err(Into::into),
        Command::LintPtx(args) => lint::run(&args).map_err(Into::into),
        Command::Sass(args) => assemble::run(&args).map_err(Into::into),
        Command::CudaStub(args) => stub::run(&args).map_err(Into::into),
        Command::Tables(args) => tables::run(&args).map_err(Into::into),
        Command::Plots(args) => plots::run(&args).map_err(Into::into),
        Command::Header(args) => header::run(&args).map_err(Into::into),
        Command::Api(args) => api::run(&args).map_err(Into::into),
        Command::Breakages(args) => breakages::run(&args).map_err(Into::into),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            let mut source = error.source();
            while let Some(cause) = source {
                eprintln!("  caused by: {cause}");
                source = cause.source();
            }
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
#[path = "../../host/cli/documented.rs"]
mod documented;

#[cfg(test)]
mod tests {
    use super::{Cli, documented, workspace};
    use clap::CommandFactory;

    /// Words before the arguments of `cargo xtask`, within `$(…)` too.
    fn arguments_of(words: &[&str]) -> Option<usize> {
        let cargo = |word: &&str| word.ends_with("cargo");
        let position = words.iter().position(cargo)?;
        (words.get(position + 1) == Some(&"xtask")).then_some(position + 2)
    }

    #[test]
    fn command_lines_in_the_documents_are_accepted() {
        let (count, refused) = documented::check(workspace::root(), &Cli::command(), arguments_of);
        assert!(refused.is_empty(), "{}", refused.join("\n"));
        assert!(count > 20, "only {count} found");
    }
}
