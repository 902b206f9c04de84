//! What the committed PTX was built from. Compiled into `build.rs` and into `xtask`, which must
//! agree on every byte of it.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// File name of the manifest, beside the PTX.
pub const FILE: &str = "manifest.json";

/// The device compiler that the committed PTX comes from (a rustup toolchain with `rust-src`).
pub const TOOLCHAIN: &str = "nightly-2026-05-20";

/// One PTX target: a compute capability, and the PTX version its files declare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Compute capability, ten times.
    pub sm: u32,
    /// PTX version, ten times. The lowest that the kernels' instructions allow: a driver refuses
    /// PTX newer than itself.
    pub ptx_version: u32,
}

/// The targets. `sm_80` serves Ampere and Ada, `sm_90` Hopper and, through the driver's
/// compiler, everything newer.
pub const TARGETS: &[Target] = &[
    Target {
        sm: 80,
        ptx_version: 75,
    },
    Target {
        sm: 90,
        ptx_version: 80,
    },
];

/// Compiler flags of every device build. Jump threading clones barriers into divergent branches.
pub const FLAGS: &[&str] = &["-Zmir-enable-passes=-JumpThreading"];

/// Settings of the release profile in a device build, whatever the workspace's are.
pub const PROFILE: &[(&str, &str)] = &[
    ("CODEGEN_UNITS", "1"),
    ("DEBUG", "0"),
    ("DEBUG_ASSERTIONS", "false"),
    ("INCREMENTAL", "false"),
    ("LTO", "off"),
    ("OPT_LEVEL", "3"),
    ("OVERFLOW_CHECKS", "false"),
    ("PANIC", "abort"),
    ("STRIP", "none"),
];

/// `ptx/manifest.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`source_hash`] of the kernel sources.
    pub sources: String,
    /// The compiler's own description of itself.
    pub compiler: String,
    /// Flags of the build, for the reader; they are part of `sources`.
    pub flags: Vec<String>,
    /// The modules, sorted by file name.
    pub modules: Vec<Module>,
}

/// One PTX file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// File name.
    pub file: String,
    /// The module's name, as in the kernels' contracts.
    pub name: String,
    /// Compute capability, ten times.
    pub sm: u32,
    /// SHA-256 of the file with LF line ends.
    pub sha256: String,
}

impl Manifest {
    /// Reads `manifest.json` in `folder`.
    ///
    /// # Errors
    /// The file cannot be read, or it is no manifest.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let text = fs::read_to_string(folder.join(FILE))?;
        serde_json::from_str(&text).map_err(io::Error::from)
    }
}

/// File name of a module's PTX.
pub fn file_name(module: &str, sm: u32) -> String {
    format!("{module}.sm_{sm}.ptx")
}

/// The flags of every target, in the words of the manifest.
pub fn flags() -> Vec<String> {
    let common = FLAGS.iter().map(|flag| (*flag).to_owned());
    let profile = PROFILE
        .iter()
        .map(|(key, value)| format!("profile {key}={value}"));
    let targets = TARGETS.iter().map(|target| target_flags(*target).join(" "));
    common.chain(profile).chain(targets).collect()
}

/// The compiler flags that choose a target.
pub fn target_flags(target: Target) -> [String; 2] {
    [
        format!("-Ctarget-cpu=sm_{}", target.sm),
        format!("-Ctarget-feature=+ptx{}", target.ptx_version),
    ]
}

/// SHA-256 of everything the PTX depends on but the compiler's build: the device crate's sources
/// and manifest, the flags and the pinned toolchain. The same wherever the checkout lies and
/// whatever its line ends.
///
/// # Errors
/// A source file cannot be read.
pub fn source_hash(kernels: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    for path in source_files(kernels)? {
        let name = path.strip_prefix(kernels).unwrap_or(&path);
        let name: Vec<_> = name.iter().map(|part| part.to_string_lossy()).collect();
        let text = with_lf(&fs::read(&path)?);
        hash.update(format!("{} {}\n", name.join("/"), text.len()));
        hash.update(text);
    }
    for flag in flags() {
        hash.update(format!("{flag}\n"));
    }
    hash.update(TOOLCHAIN);
    Ok(hex(hash))
}

/// The files of the device crate that a device build reads, sorted. The simulator's half of the
/// vocabulary and test modules are not among them.
///
/// # Errors
/// A folder cannot be read.
pub fn source_files(kernels: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = vec![kernels.join("Cargo.toml")];
    let mut folders = vec![kernels.join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            if matches!(stem, Some("sim" | "tests")) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// SHA-256 of a text with its line ends made LF.
pub fn text_hash(text: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(with_lf(text));
    hex(hash)
}

fn with_lf(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for (i, byte) in text.iter().enumerate() {
        if *byte != b'\r' || text.get(i + 1) != Some(&b'\n') {
            out.push(*byte);
        }
    }
    out
}

fn hex(hash: Sha256) -> String {
    hash.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
