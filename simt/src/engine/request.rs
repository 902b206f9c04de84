//! What a thread asks of the whole grid. The grid answers between the rounds in which blocks
//! run, one request at a time, so that a seed decides the order.

use super::context::{Context, State, Waiting};
use super::run::Site;
use crate::Synchronisation;
use crate::check::{Epoch, Knowledge, View};
use crate::fault::Action;
use std::sync::Arc;

/// What a global atomic does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Load,
    Store(u64),
    Add(u64),
    Exchange(u64),
    CompareExchange { expected: u64, new: u64 },
}

/// How an atomic orders other accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordering {
    /// Not at all; a fence may.
    Relaxed,
    /// Accesses before the release it reads from happened before.
    Acquire,
    /// Earlier accesses happen before an acquire that reads it.
    Release,
    /// Both.
    AcquireRelease,
}

#[derive(Clone, Debug)]
pub(crate) struct Atomic {
    pub address: usize,
    /// 4 or 8.
    pub bytes: u32,
    pub operation: Operation,
    pub site: Site,
    pub by: Knowledge,
    pub stamp: Epoch,
    /// What it publishes.
    pub release: Option<Arc<View>>,
    /// Whether what it reads is learnt at once, or at the next fence.
    pub acquires: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Request {
    Atomic(Box<Atomic>),
    /// The block lets the dependent launch start.
    Trigger,
    /// Wait for the preceding launch.
    Predecessor,
}

/// The grid's answer.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub thread: u32,
    pub value: u64,
    pub acquired: Option<Arc<View>>,
    pub read: Option<Arc<View>>,
}

impl Operation {
    /// The new value, if any.
    pub fn apply(self, old: u64, bytes: u32) -> Option<u64> {
        let mask = if bytes == 4 {
            u64::from(u32::MAX)
        } else {
            u64::MAX
        };
        match self {
            Self::Load => None,
            Self::Store(value) | Self::Exchange(value) => Some(value),
            Self::Add(value) => Some(old.wrapping_add(value) & mask),
            Self::CompareExchange { expected, new } => (old == expected).then_some(new),
        }
    }

    pub fn only_reads(self) -> bool {
        self == Self::Load
    }

    pub fn only_writes(self) -> bool {
        matches!(self, Self::Store(_))
    }
}

impl Context<'_> {
    /// A global atomic; returns the old value.
    pub fn atomic(
        &self,
        site: Site,
        address: usize,
        bytes: u32,
        operation: Operation,
        ordering: Ordering,
    ) -> u64 {
        let address = self.run.displace(Action::Atomic, bytes, site, address);
        self.with(site, |state, thread| {
            if self.checks {
                let writes = !operation.only_reads();
                self.global_range(address, bytes, bytes, Action::Atomic, writes)?;
            }
            let State {
                threads, copies, ..
            } = state;
            let knowledge = &mut threads[thread].knowledge;
            // The view is that before the atomic, the release includes it.
            let by = knowledge.clone();
            let block = self.planned.launch.block;
            let stamp = knowledge.next_atomic(|| copies.add_slot(block, false))?;
            let releases = matches!(ordering, Ordering::Release | Ordering::AcquireRelease);
            let release = match releases {
                _ if !self.checks || operation.only_reads() => None,
                true => Some(knowledge.publish()?),
                false => knowledge.fenced(),
            };
            let acquires = matches!(ordering, Ordering::Acquire | Ordering::AcquireRelease);
            let atomic = Atomic {
                address,
                bytes,
                operation,
                site,
                by,
                stamp,
                release,
                acquires,
            };
            self.waiting[thread].set(Waiting::Request(site));
            state
                .requests
                .push((thread as u32, Request::Atomic(Box::new(atomic))));
            Ok(())
        });
        self.suspend();
        self.state.borrow().threads[self.thread.get() as usize].reply
    }

    /// Orders atomics and other accesses: acquires for those before, releases for those after.
    pub fn fence(&self, site: Site) {
        if self.checks && !self.run.skips(Synchronisation::Fence, site) {
            self.with(site, |state, thread| {
                state.threads[thread].knowledge.fence()
            });
        }
    }

    /// Lets the dependent launch start.
    pub fn trigger(&self, site: Site) {
        if self.planned.has_dependent {
            self.request(site, Request::Trigger);
        }
    }

    /// Waits for the preceding launch.
    pub fn wait_for_predecessor(&self, site: Site) {
        if self.planned.dependent && !self.run.skips(Synchronisation::LaunchWait, site) {
            self.request(site, Request::Predecessor);
        }
    }

    fn request(&self, site: Site, request: Request) {
        self.with(site, |state, thread| {
            self.waiting[thread].set(Waiting::Request(site));
            state.requests.push((thread as u32, request));
            Ok(())
        });
        self.suspend();
    }
}
