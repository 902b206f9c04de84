//! The program `cake-rmsnorm`: checks the kernels on this machine, prints plans, finds gaps.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
