//! Faults put into a kernel from outside, to see that its tests notice them.

use crate::Action;
use std::panic::Location;

/// A synchronisation that a kernel makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Synchronisation {
    /// The block barrier.
    Barrier,
    /// A named barrier, waited at or not.
    NamedBarrier,
    /// The warp barrier.
    WarpBarrier,
    /// A fence of global memory.
    Fence,
    /// A fence towards the asynchronous proxy.
    ProxyFence,
    /// A wait for a phase of an mbarrier.
    PhaseWait,
    /// A wait for groups of asynchronous copies.
    GroupWait,
    /// A wait for the preceding launch.
    LaunchWait,
}

/// A change of what kernels do, by place in the source. The default changes nothing.
pub trait Mutation: Sync {
    /// Whether to leave out a synchronisation.
    fn skips(&self, synchronisation: Synchronisation, site: &Location<'static>) -> bool {
        let _ = (synchronisation, site);
        false
    }

    /// By how many bytes to move the address of an access of `bytes` bytes of global memory.
    fn displaces(&self, action: Action, bytes: u32, site: &Location<'static>) -> isize {
        let _ = (action, bytes, site);
        0
    }
}
