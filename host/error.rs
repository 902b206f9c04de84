//! What can be refused, and why.

use std::fmt;

/// The arguments of an operator, as errors name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Argument {
    X,
    Residual,
    W,
    H,
    Y,
    Rstd,
    Dy,
    Dh,
    Dx,
    Dw,
    Workspace,
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Argument::X => "x",
            Argument::Residual => "residual",
            Argument::W => "w",
            Argument::H => "h",
            Argument::Y => "y",
            Argument::Rstd => "rstd",
            Argument::Dy => "dy",
            Argument::Dh => "dh",
            Argument::Dx => "dx",
            Argument::Dw => "dw",
            Argument::Workspace => "workspace",
        })
    }
}

/// An error of the library. Bad input is refused before anything is launched or written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The hidden size has no kernel.
    #[error("hidden size {hidden} is not supported: accepted are 1 to 65,536")]
    UnsupportedHidden {
        /// H as given.
        hidden: u64,
    },
    /// eps is not a number that can be added to a mean square.
    #[error("eps = {eps} is not accepted: it must be finite and not negative")]
    InvalidEps {
        /// eps as given.
        eps: f32,
    },
    /// A tensor has another element type than the operator works on.
    #[error("{argument} is {found}, accepted is {accepted}")]
    Dtype {
        /// The tensor.
        argument: Argument,
        /// Its element type.
        found: crate::Dtype,
        /// The type that the operator works on.
        accepted: crate::Dtype,
    },
    /// A tensor's hidden size or length does not match the operator.
    #[error("{argument} has {found} elements a row, expected {expected}")]
    Length {
        /// The tensor.
        argument: Argument,
        /// Its elements a row (or elements, for a vector).
        found: u64,
        /// What the operator's hidden size, or the number of rows, asks for.
        expected: u64,
    },
    /// A tensor has another number of rows than x (or dy).
    #[error("{argument} has {found} rows, expected {expected}")]
    Rows {
        /// The tensor.
        argument: Argument,
        /// Its rows.
        found: u64,
        /// The rows of the first input.
        expected: u64,
    },
    /// More rows than a launch can index.
    #[error("{rows} rows are too many: accepted are at most 2^31 - 1")]
    TooManyRows {
        /// T as given.
        rows: u64,
    },
    /// An output's rows overlap each other, or run backwards.
    #[error(
        "{argument} is an output and has row stride {stride}: accepted are at least {hidden} elements"
    )]
    OutputStride {
        /// The output.
        argument: Argument,
        /// Its row stride in elements.
        stride: i64,
        /// H.
        hidden: u64,
    },
    /// An address is not aligned.
    #[error("{argument} is at address {address:#x}: accepted are multiples of {alignment} bytes")]
    Misaligned {
        /// The tensor.
        argument: Argument,
        /// Its address.
        address: u64,
        /// Bytes.
        alignment: u64,
    },
    /// The last row lies beyond what 64-bit addresses reach.
    #[error("{argument} with {rows} rows of stride {stride} leaves the address space")]
    AddressOverflow {
        /// The tensor.
        argument: Argument,
        /// Its rows.
        rows: u64,
        /// Its row stride in elements.
        stride: i64,
    },
    /// A tensor with elements has no address.
    #[error("{argument} is a null pointer although it has elements")]
    NullPointer {
        /// The tensor.
        argument: Argument,
    },
    /// An output shares memory with another argument.
    #[error("{output} overlaps {other}: outputs must not share memory with other arguments")]
    Overlap {
        /// The output.
        output: Argument,
        /// The other argument.
        other: Argument,
    },
    /// The workspace is smaller than the plan needs.
    #[error("the workspace has {found} bytes, needed are {needed}")]
    WorkspaceTooSmall {
        /// Bytes given.
        found: u64,
        /// Bytes that the plan needs.
        needed: u64,
    },
    /// One of h and residual, or of their shapes, is missing.
    #[error("{given} is given without {missing}: the residual form needs both")]
    Unpaired {
        /// The argument that is there.
        given: Argument,
        /// The one that is not.
        missing: Argument,
    },
    /// The device cannot run the kernels.
    #[error("compute capability {major}.{minor} is not supported: accepted are 8.0 and newer")]
    UnsupportedDevice {
        /// Major version.
        major: u32,
        /// Minor version.
        minor: u32,
    },
    /// A device with this little shared memory, or with none of its properties known.
    #[error("{needed} bytes of shared memory a block are needed, the device has {found}")]
    SharedMemory {
        /// Bytes that the smallest program needs.
        needed: u32,
        /// Bytes a block may have.
        found: u32,
    },
    /// A call needs a kernel that was not loaded. Calls load nothing themselves: that takes
    /// milliseconds, and a stream under capture does not allow it.
    #[error(
        "kernel {kernel} is not loaded on this device: call `prepare` for the operator and its \
         form (plain or residual) first"
    )]
    NotPrepared {
        /// The kernel's entry.
        kernel: &'static str,
    },
    /// The driver gave a kernel so many registers that a block of its size cannot run.
    #[error(
        "kernel {kernel} is launched with blocks of {needed} threads, the driver's compilation \
         allows {found}"
    )]
    BlockThreads {
        /// The kernel's entry.
        kernel: &'static str,
        /// Threads of its largest block.
        needed: u32,
        /// Threads that a block may have.
        found: u32,
    },
    /// The CUDA driver refused a call.
    #[error("CUDA driver: {call} failed with {code} ({name}){detail}")]
    Cuda {
        /// The driver function.
        call: &'static str,
        /// Its `CUresult`.
        code: u32,
        /// The driver's name for it.
        name: String,
        /// What else is known: the JIT log, the PTX and the GPU.
        detail: String,
    },
    /// The simulator found a fault in a kernel.
    #[error("simulator: {0}")]
    Simulator(String),
}

/// A result of the library.
pub type Result<T> = std::result::Result<T, Error>;
