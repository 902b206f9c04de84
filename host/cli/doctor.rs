//! `doctor`: what is there, what is missing, and what to do about it. Never fails.

use super::error::Result;
use super::output::Output;
use cake_rmsnorm::kernels::KERNELS;
use cake_rmsnorm::kernels::contract::Kernel;
use cake_rmsnorm::ptx;
use std::collections::BTreeSet;
use std::process::{Command, Stdio};

/// The device compiler that `ptx/manifest.rs` pins.
const DEVICE_TOOLCHAIN: &str = "nightly-2026-05-20";

/// What was found of one thing.
struct Finding {
    what: &'static str,
    state: State,
    detail: String,
    /// What to do.
    advice: Option<String>,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Fine,
    /// Something only some users need.
    Absent,
    Wrong,
}

impl Finding {
    fn fine(what: &'static str, detail: impl Into<String>) -> Self {
        Finding {
            what,
            state: State::Fine,
            detail: detail.into(),
            advice: None,
        }
    }

    fn absent(what: &'static str, detail: impl Into<String>, advice: impl Into<String>) -> Self {
        let advice = Some(advice.into());
        Finding {
            what,
            state: State::Absent,
            detail: detail.into(),
            advice,
        }
    }

    fn wrong(what: &'static str, detail: impl Into<String>, advice: impl Into<String>) -> Self {
        let advice = Some(advice.into());
        Finding {
            what,
            state: State::Wrong,
            detail: detail.into(),
            advice,
        }
    }
}

/// Looks, and prints what was found.
pub fn run(out: &mut Output) -> Result<()> {
    let findings = [
        program(),
        rust(),
        device_toolchain(),
        embedded_ptx(),
        feature(),
        gpu(),
        nvidia_smi(),
    ];
    for finding in &findings {
        let mark = match finding.state {
            State::Fine => "ok     ",
            State::Absent => "absent ",
            State::Wrong => "wrong  ",
        };
        out.line(format!("{mark} {:<17} {}", finding.what, finding.detail))?;
        for line in finding.advice.iter().flat_map(|advice| advice.lines()) {
            out.line(format!("{:26}-> {line}", ""))?;
        }
    }
    let wrong = findings
        .iter()
        .filter(|finding| finding.state == State::Wrong)
        .count();
    out.line(match wrong {
        0 => "Nothing is wrong; what is absent is optional.".to_owned(),
        1 => "1 thing is wrong.".to_owned(),
        wrong => format!("{wrong} things are wrong."),
    })
}

fn program() -> Finding {
    let profile = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    let built_by = option_env!("CAKE_RMSNORM_RUSTC").unwrap_or("an unrecorded rustc");
    let detail = format!(
        "{} {profile}, built by {built_by}",
        env!("CARGO_PKG_VERSION")
    );
    if cfg!(debug_assertions) {
        let advice = "checks are many times faster built with `--release`";
        return Finding {
            advice: Some(advice.to_owned()),
            ..Finding::fine("cake-rmsnorm", detail)
        };
    }
    Finding::fine("cake-rmsnorm", detail)
}

fn rust() -> Finding {
    let minimum = env!("CARGO_PKG_RUST_VERSION");
    match output_of("rustc", &["--version"]) {
        Some(version) if minor(&version) >= minor(&format!("rustc {minimum}")) => {
            Finding::fine("Rust", version)
        }
        Some(version) => {
            let detail = format!("{version}, needed is {minimum} or newer");
            Finding::wrong("Rust", detail, "rustup update stable")
        }
        None => {
            let advice = "needed to build only: https://rustup.rs";
            Finding::absent("Rust", "rustc is not on the PATH", advice)
        }
    }
}

/// The second number of `rustc 1.95.0 (…)`.
fn minor(version: &str) -> Option<u32> {
    version
        .split_whitespace()
        .nth(1)?
        .split('.')
        .nth(1)?
        .parse()
        .ok()
}

fn device_toolchain() -> Finding {
    let what = "device toolchain";
    let toolchain = format!("+{DEVICE_TOOLCHAIN}");
    // The toolchain is named in the environment too: a proxy that misses it must not install it.
    let advice = format!(
        "needed to change kernels only: rustup toolchain install {DEVICE_TOOLCHAIN} --profile \
         minimal -c rust-src"
    );
    let installed = output_of("rustup", &["toolchain", "list"]).unwrap_or_default();
    if !installed
        .lines()
        .any(|line| line.starts_with(DEVICE_TOOLCHAIN))
    {
        return Finding::absent(what, format!("{DEVICE_TOOLCHAIN} is not installed"), advice);
    }
    let version = output_of("rustc", &[&toolchain, "--version"]);
    let sysroot = output_of("rustc", &[&toolchain, "--print", "sysroot"]);
    let source = sysroot
        .map(|sysroot| std::path::Path::new(&sysroot).join("lib/rustlib/src/rust/library/core"));
    match (version, source) {
        (Some(version), Some(source)) if source.is_dir() => Finding::fine(
            what,
            format!("{DEVICE_TOOLCHAIN} with rust-src ({version})"),
        ),
        _ => Finding::absent(what, format!("{DEVICE_TOOLCHAIN} lacks rust-src"), advice),
    }
}

fn embedded_ptx() -> Finding {
    let what = "PTX";
    let targets: BTreeSet<u32> = ptx::MODULES.iter().map(|module| module.sm).collect();
    let targets: Vec<String> = targets.iter().map(|sm| format!("sm_{sm}")).collect();
    let detail = format!(
        "{} modules ({}) by {}",
        ptx::MODULES.len(),
        targets.join(", "),
        ptx::COMPILER
    );
    let is_missing = |kernel: &&Kernel| {
        let entry = format!(".entry {}(", kernel.name);
        let mut modules = ptx::MODULES
            .iter()
            .filter(|module| module.name == kernel.module);
        !modules.any(|module| module.ptx.contains(&entry))
    };
    let missing: Vec<&str> = KERNELS
        .iter()
        .filter(is_missing)
        .map(|kernel| kernel.name)
        .collect();
    if !missing.is_empty() {
        let some = missing[..missing.len().min(3)].join(", ");
        let detail = format!("{detail}; without {} kernels ({some}, ...)", missing.len());
        return Finding::wrong(what, detail, "cargo xtask ptx, then build again");
    }
    if ptx::STALE {
        let detail = format!("{detail}; older than the kernel sources it was built beside");
        return Finding::wrong(what, detail, "cargo xtask ptx, then build again");
    }
    Finding::fine(what, format!("{detail}; as the kernel sources"))
}

fn feature() -> Finding {
    if cfg!(feature = "cuda") {
        return Finding::fine("feature cuda", "compiled in");
    }
    let advice = "to run on a GPU, build with `--features cuda`; on a machine without CUDA, after \
                  `cargo xtask cuda-stub`";
    Finding::absent("feature cuda", "not compiled in", advice)
}

#[cfg(feature = "cuda")]
fn gpu() -> Finding {
    match super::device::describe_gpu() {
        Ok(description) => Finding::fine("GPU", description),
        Err(error) => {
            let advice = "a driver for compute capability 8.0 or newer, whose libcuda.so.1 the \
                          loader finds (LD_LIBRARY_PATH)";
            Finding::wrong("GPU", error.to_string(), advice)
        }
    }
}

#[cfg(not(feature = "cuda"))]
fn gpu() -> Finding {
    Finding::absent(
        "GPU",
        "not looked for: the driver is reached through feature cuda",
        "see above",
    )
}

fn nvidia_smi() -> Finding {
    let what = "nvidia-smi";
    let query = [
        "--query-gpu=name,compute_cap,driver_version",
        "--format=csv,noheader",
    ];
    match output_of("nvidia-smi", &query) {
        Some(gpus) => Finding::fine(what, gpus.lines().collect::<Vec<_>>().join("; ")),
        None => Finding::absent(
            what,
            "finds no GPU, or is not on the PATH",
            "needed for nothing",
        ),
    }
}

/// What a command prints, trimmed, if it succeeds with something to say.
fn output_of(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    // Cargo's choice of toolchain for this program is not what is asked about, and asking must
    // not install anything.
    command
        .env_remove("RUSTUP_TOOLCHAIN")
        .env("RUSTUP_AUTO_INSTALL", "0");
    let output = command.args(arguments).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_toolchain_is_the_pinned_one() {
        let manifest = include_str!("../../ptx/manifest.rs");
        assert!(manifest.contains(&format!("TOOLCHAIN: &str = {DEVICE_TOOLCHAIN:?};")));
    }

    #[test]
    fn versions_compare_by_number() {
        assert_eq!(minor("rustc 1.95.0 (59807616e 2026-04-14)"), Some(95));
        assert!(minor("rustc 1.100.0") > minor("rustc 1.90"));
        assert_eq!(minor("nonsense"), None);
    }
}
