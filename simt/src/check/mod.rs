//! Happens-before: who may know of which access.
//!
//! Every access is stamped with an [`Epoch`]: a block, a slot in it (a thread, or a queue of
//! asynchronous copies) and the slot's clock. A thread's [`View`] says up to which clock it knows
//! each slot; barriers, mbarriers, atomics and the order of launches pass views on. Two
//! conflicting accesses of which neither is known to the other's thread are a race, whichever
//! came first in this run.

mod access;
mod clocks;
mod epoch;
mod granules;
mod knowledge;
mod readers;
pub(crate) mod sites;

pub(crate) use access::{Access, Conflict, ConflictKind, Proxies};
pub(crate) use clocks::{Fence, View};
pub(crate) use epoch::{Epoch, MAX_CLOCK, MAX_UID};
pub(crate) use granules::Granules;
pub(crate) use knowledge::{Gather, Knowledge};
pub(crate) use readers::Past;
