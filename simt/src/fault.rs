//! What a run reports when a kernel does something that a GPU would not define.

use std::fmt;
use std::panic::Location;

/// A kernel's error: who did what, where.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{kernel}: block {block}, thread {thread}, {site}: {kind}")]
pub struct Fault {
    /// The launch's name.
    pub kernel: String,
    /// The block's index in the grid.
    pub block: u32,
    /// The thread's index in its block.
    pub thread: u32,
    /// The source line that called the device function.
    pub site: &'static Location<'static>,
    /// What went wrong.
    pub kind: Box<FaultKind>,
}

/// A memory that kernels access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Global memory.
    Global,
    /// The block's shared memory.
    Shared,
}

/// A way to access memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A read.
    Read,
    /// A read that relies on nobody writing during the launch.
    ConstantRead,
    /// A write.
    Write,
    /// An atomic operation.
    Atomic,
}

/// Where in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The memory.
    pub space: Space,
    /// The address of the first byte concerned.
    pub address: u64,
    /// The same in words: the buffer's name and the offset in it.
    pub description: String,
}

/// The other party of a conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party {
    /// The launch's name.
    pub kernel: String,
    /// The block.
    pub block: u32,
    /// The thread; `None` for an asynchronous copy.
    pub thread: Option<u32>,
    /// What it did.
    pub action: Action,
    /// Where in the source.
    pub site: &'static Location<'static>,
}

/// Another thread of the block that does not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The thread's index in the block.
    pub thread: u32,
    /// What it does instead.
    pub doing: String,
}

/// What is wrong with the use of an mbarrier.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MbarrierProblem {
    /// There is no mbarrier at the address.
    #[error("it is not initialised")]
    NotInitialised,
    /// There is one already.
    #[error("it is initialised twice")]
    AlreadyInitialised,
    /// The number of arrivals is 0 or above 2²⁰ − 1.
    #[error("{0} arrivals a phase are not between 1 and 1048575")]
    InvalidCount(u32),
    /// Its initialisation by another thread is not ordered before this use.
    #[error("its initialisation by thread {0} is not ordered before")]
    InitNotOrdered(u32),
    /// Its initialisation is not visible to the asynchronous proxy: a fence is missing.
    #[error("no fence makes its initialisation visible to asynchronous copies")]
    InitNotFenced,
    /// It is accessed by ordinary loads, stores or copies.
    #[error("its 8 bytes are accessed as plain memory")]
    PlainAccess,
    /// A phase expects fewer arrivals.
    #[error("phase {phase} waits for bytes only, and expects no more arrivals")]
    TooManyArrivals {
        /// The phase, from 0.
        phase: u32,
    },
    /// Copies bring more bytes than the phase expects.
    #[error("phase {phase} got {bytes} bytes more than it expects")]
    TooManyBytes {
        /// The phase, from 0.
        phase: u32,
        /// How many more.
        bytes: u64,
    },
    /// The phase completed although a copy that counts towards it is under way.
    #[error("phase {phase} completes without {bytes} bytes of a copy that is under way")]
    CompletedEarly {
        /// The phase, from 0.
        phase: u32,
        /// The copy's bytes.
        bytes: u32,
    },
    /// Nobody can complete the phase that a thread waits for.
    #[error("phase {phase} never completes: {arrivals} arrivals and {bytes} bytes are missing")]
    NeverCompletes {
        /// The phase, from 0.
        phase: u32,
        /// Arrivals that are missing.
        arrivals: u32,
        /// Announced bytes that no copy brings.
        bytes: i64,
    },
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultKind {
    /// The launch's configuration is not one that the simulator accepts.
    #[error("invalid launch: {0}")]
    InvalidLaunch(String),
    /// The kernel panicked.
    #[error("the kernel panicked: {0}")]
    Panic(String),
    /// An access outside of the registered memory, or outside of the block's shared memory.
    #[error("{action} of {bytes} bytes out of bounds at {place}")]
    OutOfBounds {
        /// How.
        action: Action,
        /// Size of the access.
        bytes: u32,
        /// Where.
        place: Place,
    },
    /// An address that is not a multiple of the access's size (16 for bulk copies).
    #[error("misaligned {action} of {bytes} bytes at {place}")]
    Misaligned {
        /// How.
        action: Action,
        /// Size of the access.
        bytes: u32,
        /// Where.
        place: Place,
    },
    /// A write to memory that is registered for reading.
    #[error("{action} to read-only memory at {place}")]
    ReadOnly {
        /// How.
        action: Action,
        /// Where.
        place: Place,
    },
    /// A read of memory that nobody has written.
    #[error("{action} of uninitialised memory at {place}")]
    Uninitialised {
        /// How.
        action: Action,
        /// Where.
        place: Place,
    },
    /// Two conflicting accesses that nothing orders.
    #[error("data race: {action} at {place} and {other} are not ordered")]
    Race {
        /// How.
        action: Action,
        /// Where.
        place: Place,
        /// The earlier access in this run.
        other: Party,
    },
    /// A write during a launch that relies on the memory being constant.
    #[error("{action} at {place} and {other} in one launch: the memory is not constant")]
    NotConstant {
        /// How.
        action: Action,
        /// Where.
        place: Place,
        /// The earlier access in this run.
        other: Party,
    },
    /// An asynchronous copy reads or overwrites what a thread wrote, and no proxy fence lies
    /// between.
    #[error("asynchronous {action} at {place} after {other} without a proxy fence")]
    MissingProxyFence {
        /// How.
        action: Action,
        /// Where.
        place: Place,
        /// The thread's write.
        other: Party,
    },
    /// A barrier that some of its threads do not reach.
    #[error("barrier {barrier}: {arrived} of {expected} threads came; {absent}")]
    BarrierDivergence {
        /// The barrier: 0 is the block's.
        barrier: u32,
        /// Threads that came.
        arrived: u32,
        /// Threads that must come.
        expected: u32,
        /// One that does not.
        absent: Absent,
    },
    /// A named barrier that does not exist, or on whose number of threads they disagree.
    #[error("{0}")]
    InvalidBarrier(String),
    /// A shuffle or vote that some lanes of the warp do not reach.
    #[error("a lane of the warp does not take part in the exchange: {absent}")]
    InactiveLane {
        /// The lane that does not.
        absent: Absent,
    },
    /// An mbarrier is misused.
    #[error("mbarrier at shared address {address:#x}: {problem}")]
    Mbarrier {
        /// The mbarrier's address.
        address: u32,
        /// What is wrong.
        problem: MbarrierProblem,
    },
    /// An asynchronous copy of a size that is not a positive multiple of 16.
    #[error("an asynchronous copy of {bytes} bytes: not a positive multiple of 16")]
    InvalidCopy {
        /// The size.
        bytes: u32,
    },
    /// The block ends although copies from or to its shared memory were not waited for.
    #[error("the block ends without waiting for its asynchronous copies")]
    CopyNotAwaited,
    /// No thread can go on.
    #[error("deadlock: {0}")]
    Deadlock(String),
    /// A block waits for one that has not started and need not start before it ends.
    #[error("waits for a block that need not be resident: {waiting} blocks have not started")]
    AssumedResidency {
        /// Blocks that have not started.
        waiting: u32,
    },
    /// The simulator's own limits.
    #[error("limit of the simulator: {0}")]
    Limit(String),
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Global => "global",
            Self::Shared => "shared",
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::ConstantRead => "constant read",
            Self::Write => "write",
            Self::Atomic => "atomic access",
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} address {:#x} ({})",
            self.space, self.address, self.description
        )
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by block {}, ", self.action, self.block)?;
        match self.thread {
            Some(thread) => write!(f, "thread {thread}")?,
            None => f.write_str("an asynchronous copy")?,
        }
        write!(f, " ({}, {})", self.kernel, self.site)
    }
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {} {}", self.thread, self.doing)
    }
}
