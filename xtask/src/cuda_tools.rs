//! ptxas: NVIDIA's assembler, from the machine or from PyPI.

use crate::workspace;
use std::{
    env, io,
    path::{Path, PathBuf},
    process::Command,
};

/// The PyPI package that carries ptxas. 13.x assembles for Ampere to Blackwell.
const PACKAGE: &str = "nvidia-cuda-nvcc==13.5.*";

/// Where ptxas lies in the package.
const IN_PACKAGE: &str = "nvidia/cu13/bin/ptxas";

/// Why there is no ptxas.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `$PTXAS` names no program.
    #[error("PTXAS names {0}, which is no file")]
    Variable(PathBuf),
    /// pip is missing or could not fetch the package.
    #[error(
        "no ptxas: none in PATH, and `pip install {PACKAGE}` failed ({0}). Put ptxas in PATH, or \
         name it in PTXAS"
    )]
    Fetch(String),
    /// The package does not hold it.
    #[error("{PACKAGE} from PyPI has no {IN_PACKAGE}")]
    Package,
}

/// Finds ptxas: `$PTXAS`, then `PATH`, then `target/cuda-tools`, where it is fetched to once.
///
/// # Errors
/// `$PTXAS` is wrong, or ptxas is nowhere and cannot be fetched.
pub fn ptxas() -> Result<PathBuf, Error> {
    if let Some(path) = env::var_os("PTXAS").map(PathBuf::from) {
        return if path.is_file() {
            Ok(path)
        } else {
            Err(Error::Variable(path))
        };
    }
    let paths = env::var_os("PATH").unwrap_or_default();
    if let Some(path) = env::split_paths(&paths)
        .map(|p| p.join("ptxas"))
        .find(|p| p.is_file())
    {
        return Ok(path);
    }
    let folder = workspace::target().join("cuda-tools");
    let path = folder.join(IN_PACKAGE);
    if !path.is_file() {
        eprintln!("fetching ptxas ({PACKAGE}, 47 MB) to {}", folder.display());
        fetch(&folder)?;
    }
    if path.is_file() {
        Ok(path)
    } else {
        Err(Error::Package)
    }
}

fn fetch(folder: &Path) -> Result<(), Error> {
    let output = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"])
        .args([
            "--disable-pip-version-check",
            "--root-user-action=ignore",
            "--target",
        ])
        .arg(folder)
        .arg(PACKAGE)
        .output()
        .map_err(|error| Error::Fetch(not_started("python3", &error)))?;
    if output.status.success() {
        return Ok(());
    }
    let log = String::from_utf8_lossy(&output.stderr);
    let last = log.trim().lines().last().unwrap_or("pip says nothing");
    Err(Error::Fetch(last.to_owned()))
}

fn not_started(program: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!("{program} is not installed"),
        _ => format!("{program}: {error}"),
    }
}
