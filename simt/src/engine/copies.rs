//! Asynchronous copies: issued by a thread, performed when the schedule says.

use super::context::{Context, State};
use super::raw;
use super::run::Site;
use crate::check::{Access, Epoch, Fence, Proxies, View, sites};
use crate::fault::Action;
use crate::memory::GlobalAccess;
use crate::schedule::CopyTiming;
use crate::{Fault, FaultKind, Synchronisation};
use bytemuck::Pod;
use std::collections::{BTreeMap, VecDeque};

/// A thread's copies that complete in groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Bulk stores.
    Bulk,
    /// Copies of a few bytes to shared memory.
    Small,
}

/// One kind of a thread's copies.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Slots of its accesses of shared and of global memory; their clock is the group plus 1.
    slots: Option<(u32, u32)>,
    /// Groups closed so far: the index of the open one.
    closed: u32,
    /// Copies that have not happened, with their groups.
    waiting: VecDeque<(u32, Copy)>,
}

/// A copy between shared and global memory.
#[derive(Clone, Copy, Debug)]
struct Copy {
    thread: u32,
    site: Site,
    shared: u32,
    global: usize,
    bytes: u32,
    on_shared: Action,
    on_global: Action,
}

/// A copy that counts towards a phase of an mbarrier.
#[derive(Debug)]
struct PhaseCopy {
    mbarrier: usize,
    phase: u32,
    copy: Copy,
}

/// The copies of a block.
#[derive(Debug, Default)]
pub(super) struct Copies {
    in_flight: Vec<PhaseCopy>,
    /// For each slot after the threads', whether it belongs to the asynchronous proxy.
    queues: Vec<bool>,
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
        let counts = |copy: &&PhaseCopy| (copy.mbarrier, copy.phase) == (mbarrier, phase);
        self.in_flight
            .iter()
            .find(counts)
            .map(|other| other.copy.bytes)
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
            let (on_shared, on_global) = (Action::Write, Action::Read);
            let thread = thread as u32;
            let global = self.run.displace(on_global, bytes, site, global);
            let copy = Copy {
                thread,
                site,
                shared,
                global,
                bytes,
                on_shared,
                on_global,
            };
            self.check_copy(state, &copy, None, (slot, slot), phase + 1)?;
            state.copies.in_flight.push(PhaseCopy {
                mbarrier,
                phase,
                copy,
            });
            if !self.checks || self.run.schedule.copies == CopyTiming::Immediate {
                let last = state.copies.in_flight.len() - 1;
                self.perform_phase_copy(state, last)?;
            }
            Ok(())
        });
    }

    /// A bulk copy from shared to global memory, in the thread's open group.
    pub fn bulk_store(&self, site: Site, shared: u32, global: usize, bytes: u32) {
        let (on_shared, on_global) = (Action::Read, Action::Write);
        let thread = self.thread.get();
        let global = self.run.displace(on_global, bytes, site, global);
        let copy = Copy {
            thread,
            site,
            shared,
            global,
            bytes,
            on_shared,
            on_global,
        };
        self.group_copy(copy, Kind::Bulk);
    }

    /// A copy of 4, 8 or 16 bytes from global to shared memory, in the thread's open group.
    /// `on_global` says whether the source is constant.
    #[inline(always)]
    pub fn small_copy<T: Pod>(&self, site: Site, shared: u32, source: *const T, on_global: Action) {
        let bytes = size_of::<T>() as u32;
        if self.unchanged
            && let Some(to) = self.shared_pointer(shared, bytes)
        {
            // SAFETY: the destination is in bounds, and only this OS thread touches shared
            // memory; where checks are off the source is the kernel's obligation.
            return unsafe { to.cast::<T>().write_unaligned(raw::load(source)) };
        }
        self.queue_small_copy(site, shared, source as usize, bytes, on_global);
    }

    #[inline(never)]
    fn queue_small_copy(
        &self,
        site: Site,
        shared: u32,
        global: usize,
        bytes: u32,
        on_global: Action,
    ) {
        let (thread, on_shared) = (self.thread.get(), Action::Write);
        let global = self.run.displace(on_global, bytes, site, global);
        let copy = Copy {
            thread,
            site,
            shared,
            global,
            bytes,
            on_shared,
            on_global,
        };
        self.group_copy(copy, Kind::Small);
    }

    fn group_copy(&self, copy: Copy, kind: Kind) {
        if !self.checks {
            return self.perform(copy);
        }
        self.with(copy.site, |state, thread| {
            let threads = self.planned.launch.block;
            let bulk = kind == Kind::Bulk;
            let State {
                copies,
                threads: all,
                ready,
                ..
            } = state;
            let queue = &mut all[thread].queues[kind as usize];
            let slots = match queue.slots {
                Some(slots) => slots,
                None => {
                    let shared = copies.add_slot(threads, bulk)?;
                    let global = if bulk {
                        copies.add_slot(threads, bulk)?
                    } else {
                        shared
                    };
                    *queue.slots.insert((shared, global))
                }
            };
            let group = queue.closed;
            let now = match self.run.schedule.copies {
                CopyTiming::Immediate => true,
                CopyTiming::Random => ready.random().bool(),
                CopyTiming::Late => false,
            };
            self.check_copy(state, &copy, Some(kind), slots, group + 1)?;
            if now {
                self.perform(copy);
            } else {
                let queue = &mut state.threads[thread].queues[kind as usize];
                queue.waiting.push_back((group, copy));
            }
            Ok(())
        });
    }

    /// Checks and records the accesses of a copy at its issue: until it is waited for they
    /// conflict with those of every thread.
    fn check_copy(
        &self,
        state: &mut State,
        copy: &Copy,
        kind: Option<Kind>,
        (of_shared, of_global): (u32, u32),
        clock: u32,
    ) -> Result<(), FaultKind> {
        let &Copy {
            shared,
            global,
            bytes,
            on_shared,
            on_global,
            ..
        } = copy;
        let align = if kind == Some(Kind::Small) { bytes } else { 16 };
        if bytes == 0 || !bytes.is_multiple_of(align) {
            return Err(FaultKind::InvalidCopy { bytes });
        }
        self.shared_range(shared, bytes, align, on_shared)?;
        if !self.checks {
            return Ok(());
        }
        let writes = on_global == Action::Write;
        let range = self.global_range(global, bytes, align, on_global, writes)?;
        let State {
            threads,
            history,
            copies,
            ..
        } = state;
        let by = &threads[copy.thread as usize].knowledge;
        let proxies = |fence| Proxies {
            fence,
            threads: self.planned.launch.block,
            queues: &copies.queues,
        };
        let access = |slot, fence| Access {
            stamp: Epoch::new(self.uid, slot, clock),
            by,
            site: sites::number(copy.site),
            launch: self.planned.first_uid,
            proxies: (kind != Some(Kind::Small)).then(|| proxies(fence)),
        };
        let result = history.access(shared, bytes, &access(of_shared, Fence::Shared), on_shared);
        result.map_err(|(address, conflict)| {
            self.run
                .conflict(self.shared_place(address), on_shared, conflict)
        })?;
        let kind = GlobalAccess::plain(on_global);
        let result = range.access(
            global,
            bytes as usize,
            &access(of_global, Fence::Global),
            kind,
        );
        result.map_err(|(address, conflict)| {
            self.run
                .conflict(self.run.global_place(address), on_global, conflict)
        })?;
        state
            .copies
            .last
            .insert(of_shared, (clock, copy.thread, copy.site));
        Ok(())
    }

    fn perform(&self, copy: Copy) {
        let Some(shared) = self.shared_pointer(copy.shared, copy.bytes) else {
            // Only where checks are off, and then at the issue.
            let (action, bytes) = (copy.on_shared, copy.bytes);
            let place = self.shared_place(copy.shared);
            self.raise(
                copy.site,
                FaultKind::OutOfBounds {
                    action,
                    bytes,
                    place,
                },
            );
        };
        let global = std::ptr::with_exposed_provenance_mut::<u8>(copy.global);
        let bytes = copy.bytes as usize;
        // SAFETY: both ranges were checked when the copy was issued (the global one is the
        // kernel's obligation where checks are off); only this OS thread touches shared memory.
        unsafe {
            if copy.on_global == Action::Write {
                raw::copy_out(global, shared, bytes);
            } else {
                raw::copy_in(shared, global, bytes);
            }
        }
    }

    fn perform_phase_copy(&self, state: &mut State, index: usize) -> Result<(), FaultKind> {
        let PhaseCopy { mbarrier, copy, .. } = state.copies.in_flight.remove(index);
        self.perform(copy);
        state.mbarriers[mbarrier].bytes -= i64::from(copy.bytes);
        state.settle(mbarrier)
    }

    /// Performs one of the copies that an mbarrier tracks: now and then, or with `must`.
    /// Says whether it did.
    pub fn progress_copies(&self, must: bool) -> Result<bool, Fault> {
        let state = &mut *self.state.borrow_mut();
        let count = state.copies.in_flight.len();
        if count == 0 {
            return Ok(false);
        }
        if !must && state.ready.random().u8(0..16) != 0 {
            return Ok(false);
        }
        let random = self.run.schedule.seed != 0;
        let index = if random {
            state.ready.random().usize(0..count)
        } else {
            0
        };
        let Copy { thread, site, .. } = state.copies.in_flight[index].copy;
        let result = self.perform_phase_copy(state, index);
        result.map_err(|kind| self.run.fault(self.uid, thread, site, kind))?;
        Ok(true)
    }

    /// Closes the thread's open group.
    pub fn close_group(&self, site: Site, kind: Kind) {
        if !self.checks {
            return;
        }
        self.with(site, |state, thread| {
            state.threads[thread].queues[kind as usize].closed += 1;
            Ok(())
        });
    }

    /// Waits until all but the last `pending` closed groups of the thread have read their
    /// source, and with `entirely`, have written too.
    pub fn wait_groups(&self, site: Site, kind: Kind, pending: u32, entirely: bool) {
        if !self.checks || self.run.skips(Synchronisation::GroupWait, site) {
            return;
        }
        self.with(site, |state, thread| {
            let thread = &mut state.threads[thread];
            let queue = &mut thread.queues[kind as usize];
            let done = queue.closed.saturating_sub(pending);
            let ready = |&(group, _): &(u32, Copy)| group < done;
            let count = queue.waiting.iter().take_while(|copy| ready(copy)).count();
            for (_, copy) in queue.waiting.drain(..count) {
                self.perform(copy);
            }
            if let Some((of_shared, of_global)) = queue.slots {
                thread.knowledge.wait_for(of_shared, done);
                if entirely {
                    thread.knowledge.wait_for(of_global, done);
                }
            }
            Ok(())
        });
    }

    /// Performs what is left of a thread's copies when it ends.
    pub(super) fn drain_copies(&self, state: &mut State, thread: usize) {
        for queue in &mut state.threads[thread].queues {
            queue
                .waiting
                .drain(..)
                .for_each(|(_, copy)| self.perform(copy));
        }
    }
}
