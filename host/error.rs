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
    DwBf16,
    Workspace,
    Z,
    Dz,
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
            Argument::DwBf16 => "dw_bf16",
            Argument::Workspace => "workspace",
            Argument::Z => "z",
            Argument::Dz => "dz",
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
    /// The groups of a gated operator have no kernel.
    #[error(
        "rows of {hidden} elements in {groups} groups are not supported: accepted are at most \
         65,536 elements in whole groups of a multiple of 8 from 8 to 8,192"
    )]
    UnsupportedWidth {
        /// H as given.
        hidden: u64,
        /// Groups as given.
        groups: u64,
    },
    /// eps is not a number that can be added to a mean square.
    #[error("eps = {eps} is not accepted: it must be finite and not negative")]
    InvalidEps {
        /// eps as given.
        eps: f32,
    },
    /// A weight offset is not a number that can be added.
    #[error("a weight offset of {offset} is not accepted: it must be finite")]
    InvalidWeightOffset {
        /// The offset as given.
        offset: f32,
    },
    /// A weight offset was given to an operator without a weight.
    #[error("a weight offset of {offset} is not accepted: the operator has no weight to add it to")]
    OffsetWithoutWeight {
        /// The offset as given.
        offset: f32,
    },
    /// An argument that the operator needs is not there.
    #[error("{argument} is missing: the operator has a weight")]
    Missing {
        /// The argument.
        argument: Argument,
    },
    /// An argument that the operator has no use for.
    #[error("{argument} is given: accepted is none, for the operator has no weight")]
    Unexpected {
        /// The argument.
        argument: Argument,
    },
    /// A backward has nothing to do.
    #[error("neither dx nor dw is wanted: accepted are one of them or both")]
    NoGradient,
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
    /// A tensor has another number of heads than the first input.
    #[error("{argument} has {found} heads, expected {expected}")]
    Heads {
        /// The tensor.
        argument: Argument,
        /// Its heads.
        found: u64,
        /// The heads of the first input.
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
    /// The rows of an output with two leading dimensions overlap each other, or run backwards.
    #[error(
        "{argument} is an output and has token stride {token_stride} and head stride {head_stride}: \
         accepted are those whose rows of {hidden} elements do not overlap"
    )]
    OutputStrides {
        /// The output.
        argument: Argument,
        /// Elements between tokens.
        token_stride: i64,
        /// Elements between heads.
        head_stride: i64,
        /// H.
        hidden: u64,
    },
    /// A stride of the gated form is larger than its kernels can count.
    #[error("{argument} has a stride of {stride} elements: accepted are at most 2^34 - 8")]
    StrideTooLarge {
        /// The tensor.
        argument: Argument,
        /// The stride in elements.
        stride: i64,
    },
    /// A stride of the gated form is not a multiple of what 16-byte access needs.
    #[error("{argument} has a stride of {stride}: accepted are multiples of {multiple} elements")]
    StrideMultiple {
        /// The tensor.
        argument: Argument,
        /// The stride in elements.
        stride: i64,
        /// Elements.
        multiple: u64,
    },
    /// An output's groups of rows overlap each other, or run backwards.
    #[error(
        "{argument} is an output and has groups at a distance of {stride}: accepted are at least \
         {needed} elements, or groups that lie in each other's gaps"
    )]
    OutputGroups {
        /// The output.
        argument: Argument,
        /// The distance between its groups in elements.
        stride: i64,
        /// Elements from a group's first to behind its last.
        needed: i128,
    },
    /// Rows do not make whole groups.
    #[error("{argument} has {rows} rows in groups of {group}: accepted are whole groups")]
    RowGroups {
        /// The tensor.
        argument: Argument,
        /// Its rows.
        rows: u64,
        /// Rows of a group.
        group: u64,
    },
    /// Two tensors of a call have their rows in different groups.
    #[error(
        "{argument} has its rows in groups of {found}, another argument in groups of {expected}: \
         accepted is one size"
    )]
    GroupsDiffer {
        /// The tensor.
        argument: Argument,
        /// Rows of its groups.
        found: u64,
        /// Rows of the groups of the argument before.
        expected: u64,
    },
    /// A shape has not as many strides as dimensions, or none.
    #[error("a shape of {shape} dimensions has {strides} strides: accepted are as many, from 1 on")]
    Dimensions {
        /// Dimensions.
        shape: usize,
        /// Strides.
        strides: usize,
    },
    /// A tensor's last dimension is not contiguous.
    #[error("the last dimension has stride {stride}: accepted is 1")]
    ColumnStride {
        /// Its stride in elements.
        stride: i64,
    },
    /// A tensor's leading dimensions are no rows with at most two strides.
    #[error(
        "the leading dimensions of shape {shape:?} with strides {strides:?} do not join to two: \
         accepted are tensors whose other leading dimensions each continue the next"
    )]
    Uncollapsible {
        /// The shape.
        shape: Vec<u64>,
        /// The strides in elements.
        strides: Vec<i64>,
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
    /// A tensor's rows reach beyond the slice that they are said to lie in.
    #[error(
        "{argument} reaches from element {first} up to {end} of its slice: accepted are those from 0 \
         up to {found}"
    )]
    OutOfBounds {
        /// The tensor.
        argument: Argument,
        /// Its first element.
        first: i128,
        /// The one behind its last.
        end: i128,
        /// Elements of the slice.
        found: u64,
    },
    /// A slice belongs to another context than the stream.
    #[error("{argument} lies in another context: accepted are slices of the stream's context")]
    OtherContext {
        /// The tensor.
        argument: Argument,
    },
    /// A tensor with elements has no address.
    #[error("{argument} is a null pointer although it has elements")]
    NullPointer {
        /// The tensor.
        argument: Argument,
    },
    /// An output shares memory with another argument.
    #[error(
        "{output} overlaps {other}: accepted are outputs apart from all other arguments, and y or h \
         in the place of x or residual, dx in the place of dy, x or dh"
    )]
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
         form (plain or residual, ordinary or any views) first"
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
    /// A route's program cannot serve the call.
    #[error("{program:?} does not serve this call: {reason}")]
    Route {
        /// The program.
        program: cake_rmsnorm_kernels::contract::Program,
        /// The condition of its launch contract that is not kept.
        reason: &'static str,
    },
    /// A file of routes cannot be used.
    #[error("routes {path}: {detail}")]
    RouteFile {
        /// The file.
        path: String,
        /// What is wrong, where, and what is accepted.
        detail: String,
    },
    /// The simulator found a fault in a kernel.
    #[error("simulator: {0}")]
    Simulator(String),
}

/// A result of the library.
pub type Result<T> = std::result::Result<T, Error>;
