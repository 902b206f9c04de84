//! Serves the blocks' requests, one at a time, in an order that the seed decides.

use super::grid::{Resident, resume};
use super::raw;
use super::request::{Atomic, Reply, Request};
use super::run::Run;
use super::worker::Command;
use crate::check::{Access, View, sites};
use crate::fault::Action;
use crate::memory::GlobalAccess;
use crate::schedule::BlockOrder;
use crate::{Fault, FaultKind};
use std::collections::HashMap;
use std::sync::Arc;

/// Fruitless requests in a row, for each thread that asks, after which nothing can change.
const PATIENCE: usize = 64;

/// The last atomic write of an address and the read-modify-writes that continue it.
#[derive(Clone)]
struct Published {
    /// Those atomics: whoever reads what they wrote comes after them.
    atomics: Arc<View>,
    /// What they released, for those that acquire.
    released: Option<Arc<View>>,
}

pub(super) struct Server<'r> {
    run: &'r Run<'r>,
    random: fastrand::Rng,
    /// What whoever reads an address learns.
    published: HashMap<usize, Published>,
    /// What each thread read at each address last.
    polled: HashMap<(u32, u32, usize), u64>,
    /// Requests served since the last that changed anything.
    fruitless: usize,
    /// The first launch that is not complete.
    front: usize,
}

impl<'r> Server<'r> {
    pub fn new(run: &'r Run<'r>) -> Self {
        Self {
            run,
            random: fastrand::Rng::with_seed(run.schedule.seed.rotate_left(32)),
            published: HashMap::new(),
            polled: HashMap::new(),
            fruitless: 0,
            front: 0,
        }
    }

    /// Something changed: threads that poll may see it.
    pub fn progressed(&mut self) {
        self.fruitless = 0;
    }

    /// Launches before `front` have completed.
    pub fn set_front(&mut self, front: usize) {
        self.front = front;
    }

    /// Serves some requests; `waiting` blocks have not started for want of room.
    pub fn serve(
        &mut self,
        residents: &mut [Resident],
        waiting: u32,
    ) -> Result<Vec<Command>, Fault> {
        let servable = |resident: &Resident, request: &Request| match request {
            Request::Predecessor => resident.launch <= self.front,
            Request::Atomic(_) | Request::Trigger => true,
        };
        let mut chosen: Vec<(usize, u32)> = Vec::new();
        for (index, resident) in residents.iter().enumerate() {
            let requests = resident.requests.iter();
            let of_resident = requests.filter(|(_, request)| servable(resident, request));
            chosen.extend(of_resident.map(|&(thread, _)| (index, thread)));
        }
        self.give_up(residents, &chosen, waiting)?;
        self.choose(residents, &mut chosen);
        let mut replies: Vec<Vec<Reply>> = residents.iter().map(|_| Vec::new()).collect();
        for (index, thread) in chosen {
            let resident = &mut residents[index];
            let position = resident
                .requests
                .iter()
                .position(|&(asking, _)| asking == thread);
            let (_, request) = resident
                .requests
                .remove(position.expect("one request a thread"));
            replies[index].push(self.answer(resident, thread, &request)?);
        }
        let answered = replies
            .into_iter()
            .enumerate()
            .filter(|(_, replies)| !replies.is_empty());
        Ok(answered
            .map(|(index, replies)| resume(&residents[index], replies))
            .collect())
    }

    /// Decides which of the requests are served now, and in which order.
    fn choose(&mut self, residents: &[Resident], chosen: &mut Vec<(usize, u32)>) {
        let schedule = self.run.schedule;
        // A dependent launch runs ahead of its predecessor, unless it waits for it.
        let ahead = |&(index, _): &(usize, u32)| residents[index].launch > self.front;
        if schedule.early_dependents && self.patient(chosen) && chosen.iter().any(ahead) {
            chosen.retain(ahead);
        }
        match schedule.blocks {
            // The residents' order is that in which they started.
            BlockOrder::Ascending | BlockOrder::Descending => {}
            BlockOrder::Random => {
                self.random.shuffle(chosen);
                let most = chosen.len().max(1);
                chosen.truncate(self.random.usize(0..most) + 1);
            }
            BlockOrder::Late => {
                let on_time = |&(index, _): &(usize, u32)| !residents[index].late;
                if self.patient(chosen) && chosen.iter().any(on_time) {
                    chosen.retain(on_time);
                }
            }
        }
    }

    /// Whether those that are held back need not be served yet: the others may be waiting for
    /// them.
    fn patient(&self, chosen: &[(usize, u32)]) -> bool {
        self.fruitless <= 2 * chosen.len()
    }

    /// Reports a run in which everybody only polls.
    fn give_up(
        &self,
        residents: &[Resident],
        chosen: &[(usize, u32)],
        waiting: u32,
    ) -> Result<(), Fault> {
        if self.fruitless <= PATIENCE * (chosen.len() + 1) {
            return Ok(());
        }
        let poll = residents.iter().find_map(|resident| {
            resident
                .requests
                .iter()
                .find_map(|(thread, request)| match request {
                    Request::Atomic(atomic) => Some((resident.uid, *thread, atomic.site)),
                    _ => None,
                })
        });
        let Some((uid, thread, site)) = poll else {
            return Ok(());
        };
        let kind = if waiting > 0 {
            FaultKind::AssumedResidency { waiting }
        } else {
            let message = "every thread that could go on polls memory that nobody changes";
            FaultKind::Deadlock(message.to_string())
        };
        Err(self.run.fault(uid, thread, site, kind))
    }

    fn answer(
        &mut self,
        resident: &Resident,
        thread: u32,
        request: &Request,
    ) -> Result<Reply, Fault> {
        match request {
            Request::Atomic(atomic) => {
                let kind = |kind| self.run.fault(resident.uid, thread, atomic.site, kind);
                self.check(resident, atomic).map_err(kind)?;
                Ok(self.perform(resident.uid, thread, atomic))
            }
            Request::Trigger => {
                self.progressed();
                Ok(Reply {
                    thread,
                    value: 0,
                    acquired: None,
                    read: None,
                })
            }
            Request::Predecessor => {
                self.progressed();
                let first = self.run.launches[resident.launch].first_uid;
                let acquired = Some(Arc::new(View::new(resident.uid, first)));
                Ok(Reply {
                    thread,
                    value: 0,
                    acquired,
                    read: None,
                })
            }
        }
    }

    fn check(&self, resident: &Resident, atomic: &Atomic) -> Result<(), FaultKind> {
        if !self.run.checks {
            return Ok(());
        }
        let access = Access {
            stamp: atomic.stamp,
            by: &atomic.by,
            site: sites::number(atomic.site),
            launch: self.run.launches[resident.launch].first_uid,
            proxies: None,
        };
        let bytes = atomic.bytes as usize;
        let kind = GlobalAccess::Atomic {
            modifies: !atomic.operation.only_reads(),
            stores: atomic.operation.only_writes(),
        };
        let range = self
            .run
            .memory
            .find(atomic.address, bytes)
            .expect("checked when requested");
        range
            .access(atomic.address, bytes, &access, kind)
            .map_err(|(address, conflict)| {
                self.run
                    .conflict(self.run.global_place(address), Action::Atomic, conflict)
            })
    }

    fn perform(&mut self, uid: u32, thread: u32, atomic: &Atomic) -> Reply {
        let &Atomic {
            address,
            bytes,
            operation,
            ..
        } = atomic;
        let pointer = std::ptr::with_exposed_provenance_mut::<u8>(address);
        // SAFETY: bounds and rights were checked when the atomic was requested, or are the
        // kernel's obligation where checks are off.
        let old = unsafe {
            match bytes {
                4 => u64::from(raw::load::<u32>(pointer.cast())),
                _ => raw::load::<u64>(pointer.cast()),
            }
        };
        let new = operation.apply(old, bytes);
        if let Some(new) = new {
            // SAFETY: as above.
            unsafe {
                match bytes {
                    4 => raw::store(pointer.cast(), new as u32),
                    _ => raw::store(pointer.cast(), new),
                }
            }
        }
        let last = self.polled.insert((uid, thread, address), old);
        if new.is_some_and(|new| new != old) || last != Some(old) {
            self.progressed();
        } else {
            self.fruitless += 1;
        }
        self.order(thread, atomic, old, new.is_some())
    }

    /// Passes on what atomics publish.
    fn order(&mut self, thread: u32, atomic: &Atomic, value: u64, modified: bool) -> Reply {
        let mut reply = Reply {
            thread,
            value,
            acquired: None,
            read: None,
        };
        if !self.run.checks {
            return reply;
        }
        let writes_only = atomic.operation.only_writes();
        let found = self
            .published
            .get(&atomic.address)
            .filter(|_| !writes_only)
            .cloned();
        if modified {
            let new = self.publish(atomic, found.as_ref());
            self.published.insert(atomic.address, new);
        }
        let Some(Published { atomics, released }) = found else {
            return reply;
        };
        match released {
            Some(released) if atomic.acquires => {
                let mut all = View::clone(&atomics);
                all.join(&released);
                reply.acquired = Some(Arc::new(all));
            }
            released => {
                reply.acquired = Some(atomics);
                reply.read = released;
            }
        }
        reply
    }

    /// What is published at an address after an atomic wrote it, which read `before`.
    fn publish(&self, atomic: &Atomic, before: Option<&Published>) -> Published {
        let stamp = atomic.stamp;
        let mut atomics = before.map_or_else(
            || View::new(stamp.uid(), 0),
            |before| View::clone(&before.atomics),
        );
        let mut own = View::new(stamp.uid(), 0);
        own.set(stamp.slot(), stamp.clock());
        atomics.join(&own);
        let before = before.and_then(|before| before.released.as_ref());
        let released = match (before, &atomic.release) {
            (Some(before), Some(release)) => {
                let mut view = View::clone(before);
                view.join(release);
                Some(Arc::new(view))
            }
            (before, release) => before.or(release.as_ref()).cloned(),
        };
        Published {
            atomics: Arc::new(atomics),
            released,
        }
    }
}
