//! Checks the `cudarc` backend on the first GPU: every bit against the CPU implementation, every
//! gradient against FP64, dependencies between streams, and a training loop run twice.
//!
//! ```sh
//! cargo run --release --features cudarc --example check_cudarc
//! ```

mod drawn;
mod gated;
mod rows;
mod streams;
mod training;

use cake_rmsnorm::backend::cudarc::Cudarc;
use cudarc::driver::CudaContext;
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// What the parts found wrong.
#[derive(Default)]
struct Findings {
    checks: usize,
    failures: Vec<String>,
}

impl Findings {
    fn check(&mut self, ok: bool, what: impl FnOnce() -> String) {
        self.checks += 1;
        if !ok {
            let what = what();
            println!("  WRONG  {what}");
            self.failures.push(what);
        }
    }

    /// Elements must be the same to the bit.
    fn same<E: bytemuck::NoUninit>(&mut self, what: &str, found: &[E], expected: &[E]) {
        let (found, expected): (&[u8], &[u8]) =
            (bytemuck::cast_slice(found), bytemuck::cast_slice(expected));
        self.check(found == expected, || {
            let wrong = found.iter().zip(expected).filter(|(a, b)| a != b).count();
            format!("{what}: {wrong} bytes of {} differ", expected.len())
        });
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(findings) if findings.failures.is_empty() => {
            println!("{} checks: PASS", findings.checks);
            ExitCode::SUCCESS
        }
        Ok(findings) => {
            let (failures, checks) = (findings.failures.len(), findings.checks);
            println!("{failures} of {checks} checks: FAIL");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<Findings> {
    let stream = CudaContext::new(0)?.new_stream()?;
    let gpu = Cudarc::new(&stream)?;
    println!("device  {}", gpu.device().name());
    let mut findings = Findings::default();
    type Part = fn(&Cudarc, &mut Findings) -> Result;
    let parts: [(&str, Part); 5] = [
        ("slices of every type, plain and residual", rows::check),
        ("gated", gated::check),
        ("drawn cases, by address", drawn::check),
        ("streams that wait for each other", streams::check),
        (
            "200 steps of training, twice, and on the CPU",
            training::check,
        ),
    ];
    for gpu in [gpu.clone(), gpu.with_graph_launches()] {
        let by = ["", ", launched by graphs"][usize::from(gpu.graph_launches())];
        for (name, part) in parts {
            let (before, start) = (findings.checks, Instant::now());
            part(&gpu, &mut findings)?;
            let (checks, time) = (findings.checks - before, start.elapsed().as_secs_f64());
            println!("{name}{by}: {checks} checks in {time:.1} s");
        }
    }
    Ok(findings)
}
