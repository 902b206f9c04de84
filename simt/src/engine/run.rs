//! What all blocks of a run share.

use crate::check::{Conflict, ConflictKind, sites};
use crate::fault::{Action, Party, Place, Space};
use crate::{
    Fault, FaultKind, Launch, MbarrierProblem, Memory, Mutation, Schedule, Synchronisation,
};
use std::panic::Location;

pub(crate) type Site = &'static Location<'static>;

/// Address of a block's dynamic shared memory. Not 0, so that a null address is out of bounds.
pub(crate) const SHARED_BASE: u32 = 1024;

/// A run: launches of one stream, and how to execute them.
pub(crate) struct Run<'r> {
    pub memory: &'r Memory,
    pub launches: Vec<Planned<'r>>,
    pub schedule: Schedule,
    pub checks: bool,
    pub stack_bytes: usize,
    pub mutation: Option<&'r dyn Mutation>,
}

/// A launch of a run.
pub(crate) struct Planned<'r> {
    pub launch: Launch<'r>,
    /// Uid of its block 0.
    pub first_uid: u32,
    /// Blocks below have completed before a thread of this launch starts.
    pub start_floor: u32,
    /// May start before its predecessor has completed.
    pub dependent: bool,
    /// The next launch may start before this one has completed.
    pub has_dependent: bool,
}

impl Run<'_> {
    /// Whether a synchronisation is left out.
    pub fn skips(&self, synchronisation: Synchronisation, site: Site) -> bool {
        self.mutation
            .is_some_and(|mutation| mutation.skips(synchronisation, site))
    }

    /// Where an access of global memory goes.
    pub fn displace(&self, action: Action, bytes: u32, site: Site, address: usize) -> usize {
        match self.mutation {
            Some(mutation) => address.wrapping_add_signed(mutation.displaces(action, bytes, site)),
            None => address,
        }
    }

    /// The launch and the block of a uid.
    fn block(&self, uid: u32) -> Option<(&Planned<'_>, u32)> {
        let after = self
            .launches
            .partition_point(|planned| planned.first_uid <= uid);
        let planned = &self.launches[after.checked_sub(1)?];
        Some((planned, uid - planned.first_uid))
    }

    pub fn fault(&self, uid: u32, thread: u32, site: Site, kind: FaultKind) -> Fault {
        let (kernel, block) = match self.block(uid) {
            Some((planned, block)) => (planned.launch.name.to_string(), block),
            None => (String::new(), 0),
        };
        Fault {
            kernel,
            block,
            thread,
            site,
            kind: Box::new(kind),
        }
    }

    pub fn global_place(&self, address: usize) -> Place {
        let description = match self.memory.find(address, 1) {
            Some(range) => {
                format!(
                    "byte {} of {}, which has {}",
                    address - range.address,
                    range.name,
                    range.bytes
                )
            }
            None => self.memory.describe_outside(address),
        };
        Place {
            space: Space::Global,
            address: address as u64,
            description,
        }
    }

    /// The fault that a conflict is.
    pub fn conflict(&self, place: Place, action: Action, conflict: Conflict) -> FaultKind {
        let party = |past: crate::check::Past, action: Action| {
            let (planned, block) = self.block(past.epoch.uid()).expect("a block of this run");
            let thread = past.epoch.slot();
            Party {
                kernel: planned.launch.name.to_string(),
                block,
                thread: (thread < planned.launch.block).then_some(thread),
                action,
                site: sites::site(past.site),
            }
        };
        match conflict.kind {
            ConflictKind::Uninitialised => FaultKind::Uninitialised { action, place },
            ConflictKind::Mbarrier => FaultKind::Mbarrier {
                address: place.address as u32,
                problem: MbarrierProblem::PlainAccess,
            },
            ConflictKind::RaceWithRead(past) => FaultKind::Race {
                action,
                place,
                other: party(past, Action::Read),
            },
            ConflictKind::RaceWithWrite(past) => FaultKind::Race {
                action,
                place,
                other: party(past, Action::Write),
            },
            ConflictKind::RaceWithAtomic(past) => FaultKind::Race {
                action,
                place,
                other: party(past, Action::Atomic),
            },
            ConflictKind::Constant(past) => {
                let other = match action {
                    Action::ConstantRead => Action::Write,
                    _ => Action::ConstantRead,
                };
                FaultKind::NotConstant {
                    action,
                    place,
                    other: party(past, other),
                }
            }
            ConflictKind::ProxyFence(past) => FaultKind::MissingProxyFence {
                action,
                place,
                other: party(past, Action::Write),
            },
        }
    }
}
