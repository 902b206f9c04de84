//! What can go wrong in the program.

use std::io;
use std::path::PathBuf;

/// An error of the program.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The library refused an argument, or a device failed.
    #[error(transparent)]
    Library(#[from] cake_rmsnorm::Error),
    /// An option makes no sense here.
    #[error("{option}: {reason}")]
    Usage {
        /// As written on the command line.
        option: &'static str,
        /// Why not, and what is accepted.
        reason: String,
    },
    /// An input file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// An input file is not what it should be.
    #[error("{file} is not a valid safetensors file: {detail}")]
    Safetensors {
        /// The file.
        file: String,
        /// What the reader found.
        detail: String,
    },
    /// A tensor is not in the input file.
    #[error("{file}: tensor {tensor} is missing: found are {found}, needed are x, dy and w")]
    MissingTensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: &'static str,
        /// The tensors that are there.
        found: String,
    },
    /// A tensor has the wrong type or shape.
    #[error("{file}: tensor {tensor} is {found}, accepted is {accepted}")]
    Tensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: &'static str,
        /// Its type or shape.
        found: String,
        /// What would have been accepted.
        accepted: String,
    },
    /// The metadata of the input file cannot be used.
    #[error("{file}: metadata {key} is {found:?}, accepted is {accepted}")]
    Metadata {
        /// The file.
        file: String,
        /// The metadata's key.
        key: &'static str,
        /// Its value.
        found: String,
        /// What would have been accepted.
        accepted: &'static str,
    },
    /// The device asked for is not there.
    #[error("device {device} is not available: {reason}")]
    NoDevice {
        /// As written on the command line.
        device: &'static str,
        /// Why, and what to do about it.
        reason: String,
    },
    /// Memory cannot be had.
    #[error("no memory for {bytes} bytes ({purpose})")]
    Memory {
        /// What for.
        purpose: &'static str,
        /// How much.
        bytes: u64,
    },
    /// The results cannot be written.
    #[error("{}: {detail}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        detail: String,
    },
    /// This program, run again by itself, failed.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    #[error("{command}: {detail}")]
    Child {
        /// Its arguments.
        command: &'static str,
        /// What it said.
        detail: String,
    },
    /// Standard output is broken (a closed pipe is not an error).
    #[error("standard output: {0}")]
    Stdout(#[source] io::Error),
}

impl CliError {
    /// What a program without feature `cuda` says when it is asked for a GPU.
    #[cfg(not(feature = "cuda"))]
    pub fn no_cuda() -> Self {
        let reason =
            "built without feature cuda (cargo build --release --features cuda)".to_owned();
        CliError::NoDevice {
            device: "cuda",
            reason,
        }
    }

    /// Whether there is not enough memory, on the host or on a device.
    pub fn is_out_of_memory(&self) -> bool {
        const CUDA_ERROR_OUT_OF_MEMORY: u32 = 2;
        match self {
            CliError::Memory { .. } => true,
            CliError::Library(cake_rmsnorm::Error::Cuda { code, .. }) => {
                *code == CUDA_ERROR_OUT_OF_MEMORY
            }
            _ => false,
        }
    }

    /// Whether the user's arguments or input were refused, rather than something failed.
    pub fn is_refusal(&self) -> bool {
        use cake_rmsnorm::Error::{Cuda, Simulator};
        let failed = matches!(
            self,
            CliError::Library(Cuda { .. } | Simulator(_))
                | CliError::Memory { .. }
                | CliError::Write { .. }
                | CliError::Child { .. }
                | CliError::Stdout(_)
        );
        !failed
    }
}

/// A result of the program.
pub type Result<T> = std::result::Result<T, CliError>;
