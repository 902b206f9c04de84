//! Accesses and what can be wrong with them.

use super::readers::Past;
use super::{Epoch, Fence, Knowledge};

/// Which proxy wrote: slots of a block that belong to the asynchronous one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proxies<'a> {
    /// The fence that an earlier generic write needs.
    pub fence: Fence,
    /// Slots of the issuing block from this one on are queues; those listed are asynchronous.
    pub threads: u32,
    /// For each queue, whether it belongs to the asynchronous proxy.
    pub queues: &'a [bool],
}

/// An access to check and record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access<'a> {
    /// What to record.
    pub stamp: Epoch,
    /// The thread that accesses, or that issued the copy.
    pub by: &'a Knowledge,
    pub site: u16,
    /// The first block of the launch.
    pub launch: u32,
    /// Set for an access of the asynchronous proxy.
    pub proxies: Option<Proxies<'a>>,
}

impl Access<'_> {
    pub fn knows(&self, epoch: Epoch) -> bool {
        self.by.knows(epoch)
    }

    /// Whether a known write is visible to this access's proxy.
    pub fn sees(&self, write: Epoch) -> bool {
        let Some(proxies) = self.proxies else {
            return true;
        };
        let queue = write.slot().checked_sub(proxies.threads);
        let asynchronous = write.uid() == self.by.epoch().uid()
            && queue.is_some_and(|queue| proxies.queues[queue as usize]);
        asynchronous || self.by.view().fenced(proxies.fence, write)
    }
}

/// Why an access is wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conflict {
    /// Offset of the first byte concerned.
    pub byte: usize,
    pub kind: ConflictKind,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ConflictKind {
    Uninitialised,
    /// The bytes are an mbarrier.
    Mbarrier,
    RaceWithRead(Past),
    RaceWithWrite(Past),
    RaceWithAtomic(Past),
    /// A read relies on nobody writing during the launch, and somebody does.
    Constant(Past),
    /// A generic write is ordered before, but not fenced.
    ProxyFence(Past),
}
