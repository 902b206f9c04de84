//! What a launch reports when a kernel does something a GPU would not define.

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
    pub kind: FaultKind,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultKind {
    /// The launch's configuration is not one that a GPU accepts.
    #[error("invalid launch: {0}")]
    InvalidLaunch(String),
    /// The kernel panicked.
    #[error("the kernel panicked: {0}")]
    Panic(String),
    /// No thread can go on.
    #[error("deadlock: {0}")]
    Deadlock(String),
}
