//! Asynchronous copies: issued by a thread, performed when the schedule says.

use super::context::{Context, State};
use super::raw;
use super::run::{SHARED_BASE, Site};
use crate::check::{Access, Epoch, Fence, GRANULE, Proxies, View, sites};
use crate::fault::Action;
use crate::memory::GlobalAccess;
use crate::schedule::CopyTiming;
use crate::{Fault, FaultKind};
use std::collections::BTreeMap;

/// Which of a thread's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Bulk stores, in groups.
    Bulk,
    /// Copies of a few bytes to shared memory, in groups.
    Small,
}

/// A thread's copies that complete in groups.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Queue {
    /// Slots of its accesses of shared and of global memory.
    slots: Option<(u32, u32)>,
    /// Groups closed so far: the index of the open one.
    closed: u32,
}

#[derive(Clone, Copy, Debug)]
enum Tracking {
    /// Counts towards a phase of an mbarrier.
    Phase { mbarrier: usize, phase: u32 },
    /// Belongs to a group of the issuing thread's queue.
    Group { kind: Kind, group: u32 },
}

#[derive(Clone, Copy, Debug)]
struct Copy {
    thread: u32,
    site: Site,
    shared: u32,
    global: usize,
    bytes: u32,
    to_global: bool,
    tracking: Tracking,
}

/// The copies of a block.
#[derive(Debug, Default)]
pub(super) struct Copies {
    in_flight: Vec<Copy>,
    /// For each slot after the threads', whether it belongs to the asynchronous proxy.
    pub queues: Vec<bool>,
    /// The last copy of each slot that must be waited for: its clock, thread and place.
    last: BTreeMap<u32, (u32, u32, Site)>,
}

impl Copies {
    /// A new slot for the accesses of copies.
    pub fn add_slot(&mut self, threads: u32, asynchronous: bool) -> Result<u32, FaultKind> {
        let slot = threads + self.queues.len() as u32;
        if slot >= 1 << 12 {
            let message = "too many mbarriers and copying threads in one block".to_string();
            return Err(FaultKind::Limit(message));
        }
        self.queues.push(asynchronous);
        Ok(slot)
    }

    /// The bytes of some copy that counts towards a phase and has not happened yet.
    pub fn under_way(&self, mbarrier: usize, phase: u32) -> Option<u32> {
        let counts = |copy: &&Copy| matches!(copy.tracking, Tracking::Phase { mbarrier: m, phase: p } if m == mbarrier && p == phase);
        self.in_flight.iter().find(counts).map(|copy| copy.bytes)
    }

    /// The thread and place of a copy whose end `view` does not know of.
    pub fn unwaited(&self, uid: u32, view: &View) -> Option<(u32, Site)> {
        let unknown = |&(&slot, &(clock, ..)): &(&u32, &(u32, u32, Site))| {
            !view.knows(Epoch::new(uid, slot, clock))
        };
        self.last
            .iter()
            .find(unknown)
            .map(|(_, &(_, thread, site))| (thread, site))
    }
}

impl Context<'_> {
    /// A bulk copy from global to shared memory that an mbarrier tracks.
    pub fn bulk_load(&self, site: Site, shared: u32, global: usize, bytes: u32, mbarrier: u32) {
        self.with(site, |state, thread| {
            let mbarrier = self.fenced_mbarrier(state, thread, mbarrier)?;
            let (slot, phase) = (
                state.mbarriers[mbarrier].slot,
                state.mbarriers[mbarrier].phase,
            );
            let tracking = Tracking::Phase { mbarrier, phase };
            let thread = thread as u32;
            let copy = Copy {
                thread,
                site,
                shared,
                global,
                bytes,
                to_global: false,
                tracking,
            };
            self.issue(state, copy, 16, (slot, slot), phase + 1)
        });
    }

    /// A bulk copy from shared to global memory, in the thread's open group.
    pub fn bulk_store(&self, site: Site, shared: u32, global: usize, bytes: u32) {
        self.group_copy(site, shared, global, bytes, Kind::Bulk);
    }

    /// A copy of 4, 8 or 16 bytes from global to shared memory, in the thread's open group.
    pub fn small_copy(&self, site: Site, shared: u32, global: usize, bytes: u32) {
        self.group_copy(site, shared, global, bytes, Kind::Small);
    }

    fn group_copy(&self, site: Site, shared: u32, global: usize, bytes: u32, kind: Kind) {
        self.with(site, |state, thread| {
            let threads = self.planned.launch.block;
            let bulk = kind == Kind::Bulk;
            let queue = &mut state.threads[thread].queues[kind as usize];
            if queue.slots.is_none() {
                let of_shared = state.copies.add_slot(threads, bulk)?;
                let of_global = if bulk {
                    state.copies.add_slot(threads, bulk)?
                } else {
                    of_shared
                };
                queue.slots = Some((of_shared, of_global));
            }
            let slots = queue.slots.unwrap_or_default();
            let group = queue.closed;
            let tracking = Tracking::Group { kind, group };
            let thread = thread as u32;
            let copy = Copy {
                thread,
                site,
                shared,
                global,
                bytes,
                to_global: bulk,
                tracking,
            };
            self.issue(state, copy, if bulk { 16 } else { bytes }, slots, group + 1)
        });
    }

    fn issue(
        &self,
        state: &mut State,
        copy: Copy,
        align: u32,
        (of_shared, of_global): (u32, u32),
        clock: u32,
    ) -> Result<(), FaultKind> {
        let Copy {
            shared,
            global,
            bytes,
            to_global,
            ..
        } = copy;
        if bytes == 0 || !bytes.is_multiple_of(align) {
            return Err(FaultKind::InvalidCopy { bytes });
        }
        let (to, from) = (Action::Write, Action::Read);
        let (on_shared, on_global) = if to_global { (from, to) } else { (to, from) };
        self.shared_range(shared, bytes, align, on_shared)?;
        if self.run.checks {
            self.global_range(global, bytes, align, on_global, to_global)?;
            self.check_shared(
                state,
                &copy,
                Epoch::new(self.uid, of_shared, clock),
                on_shared,
            )?;
            self.check_global(
                state,
                &copy,
                Epoch::new(self.uid, of_global, clock),
                on_global,
            )?;
            state
                .copies
                .last
                .insert(of_shared, (clock, copy.thread, copy.site));
        }
        if self.run.schedule.copies == CopyTiming::Immediate {
            return self.perform(state, copy);
        }
        state.copies.in_flight.push(copy);
        Ok(())
    }

    fn check_shared(
        &self,
        state: &mut State,
        copy: &Copy,
        stamp: Epoch,
        action: Action,
    ) -> Result<(), FaultKind> {
        let State {
            threads,
            granules,
            copies,
            ..
        } = state;
        let access = self.copy_access(
            copy,
            stamp,
            Fence::Shared,
            &threads[copy.thread as usize].knowledge,
            &copies.queues,
        );
        let first = (copy.shared - SHARED_BASE) as usize / GRANULE;
        let range = first..first + copy.bytes as usize / GRANULE;
        let result = match action {
            Action::Write => granules.write(range, &access),
            _ => granules.read(range, &access, false),
        };
        result.map_err(|conflict| {
            let address = SHARED_BASE + (conflict.granule * GRANULE) as u32;
            self.run
                .conflict(self.shared_place(address), action, conflict)
        })
    }

    fn check_global(
        &self,
        state: &State,
        copy: &Copy,
        stamp: Epoch,
        action: Action,
    ) -> Result<(), FaultKind> {
        let knowledge = &state.threads[copy.thread as usize].knowledge;
        let access = self.copy_access(copy, stamp, Fence::Global, knowledge, &state.copies.queues);
        let kind = match action {
            Action::Write => GlobalAccess::Write,
            _ => GlobalAccess::Read,
        };
        let range = self.global_range(copy.global, copy.bytes, 1, action, copy.to_global)?;
        range
            .access(copy.global, copy.bytes as usize, &access, kind)
            .map_err(|(address, conflict)| {
                self.run
                    .conflict(self.run.global_place(address), action, conflict)
            })
    }

    fn copy_access<'a>(
        &self,
        copy: &Copy,
        stamp: Epoch,
        fence: Fence,
        knowledge: &'a super::knowledge::Knowledge,
        queues: &'a [bool],
    ) -> Access<'a> {
        let small = matches!(
            copy.tracking,
            Tracking::Group {
                kind: Kind::Small,
                ..
            }
        );
        let proxies = Proxies {
            fence,
            threads: self.planned.launch.block,
            queues,
        };
        Access {
            stamp,
            own: knowledge.epoch(self.uid),
            site: sites::number(copy.site),
            view: &knowledge.view,
            launch: self.planned.first_uid,
            proxies: (!small).then_some(proxies),
        }
    }

    fn perform(&self, state: &mut State, copy: Copy) -> Result<(), FaultKind> {
        let shared = self
            .shared_pointer(copy.shared, copy.bytes)
            .expect("checked when issued");
        let global = std::ptr::with_exposed_provenance_mut::<u8>(copy.global);
        let bytes = copy.bytes as usize;
        // SAFETY: both ranges were checked when the copy was issued (the global one is the
        // kernel's obligation where checks are off); only this OS thread touches shared memory.
        unsafe {
            if copy.to_global {
                raw::copy_out(global, shared, bytes);
            } else {
                raw::copy_in(shared, global, bytes);
            }
        }
        if let Tracking::Phase { mbarrier, .. } = copy.tracking {
            state.mbarriers[mbarrier].bytes -= i64::from(copy.bytes);
            state.settle(mbarrier)?;
        }
        Ok(())
    }

    /// Performs a copy now and then; with `must`, one if there is any. Says whether it did.
    pub fn progress_copies(&self, must: bool) -> Result<bool, Fault> {
        let state = &mut *self.state.borrow_mut();
        let count = state.copies.in_flight.len();
        let timing = self.run.schedule.copies;
        let now = must || timing == CopyTiming::Random && state.ready.random().u8(0..16) == 0;
        if count == 0 || !now {
            return Ok(false);
        }
        let index = if self.run.schedule.seed == 0 {
            0
        } else {
            state.ready.random().usize(0..count)
        };
        let copy = state.copies.in_flight.remove(index);
        let result = self.perform(state, copy);
        result.map_err(|kind| self.run.fault(self.uid, copy.thread, copy.site, kind))?;
        Ok(true)
    }

    /// Closes the thread's open group.
    pub fn close_group(&self, site: Site, kind: Kind) {
        self.with(site, |state, thread| {
            state.threads[thread].queues[kind as usize].closed += 1;
            Ok(())
        });
    }

    /// Waits until all but the last `pending` closed groups of the thread have read their
    /// source, and with `entirely`, have written too.
    pub fn wait_groups(&self, site: Site, kind: Kind, pending: u32, entirely: bool) {
        self.with(site, |state, thread| {
            let queue = state.threads[thread].queues[kind as usize];
            let done = queue.closed.saturating_sub(pending);
            let waited = |copy: &Copy| {
                let of_queue = matches!(copy.tracking, Tracking::Group { kind: k, group } if k == kind && group < done);
                of_queue && copy.thread == thread as u32
            };
            while let Some(index) = state.copies.in_flight.iter().position(waited) {
                let copy = state.copies.in_flight.remove(index);
                self.perform(state, copy)?;
            }
            if let Some((of_shared, of_global)) = queue.slots.filter(|_| self.run.checks) {
                let knowledge = &mut state.threads[thread].knowledge;
                knowledge.learn_slot(of_shared, done);
                if entirely {
                    knowledge.learn_slot(of_global, done);
                }
            }
            Ok(())
        });
    }
}
