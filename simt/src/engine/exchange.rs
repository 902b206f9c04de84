//! Barriers of the block and exchanges of the warp.

use super::context::{Context, State, Waiting};
use super::run::Site;
use crate::check::Gather;
use crate::fault::Absent;
use crate::{FaultKind, Synchronisation};
use std::cell::Cell;
use std::sync::Arc;

/// A barrier of the block: 0 is the one of all threads.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    pub expected: u32,
    /// Threads that came, and whether they wait.
    pub arrived: Vec<(u32, bool)>,
    /// For each warp, where its threads came.
    sites: [Option<Site>; 32],
    /// One bit for each thread that came.
    came: [u64; 16],
    gather: Gather,
}

/// An exchange in progress. Values are double-buffered: a lane may reach the next exchange
/// before another has read this one's values, but not the one after.
#[derive(Clone, Debug, Default)]
pub(super) struct Warp {
    /// Lanes that came.
    pub arrived: Cell<u32>,
    site: Cell<Option<Site>>,
    /// Which buffer each lane uses next.
    turns: Cell<u32>,
    values: [[Cell<u32>; 32]; 2],
}

impl Context<'_> {
    /// What a thread does instead of coming.
    pub fn absent(&self, thread: u32) -> Absent {
        let doing = match self.waiting[thread as usize].get() {
            Waiting::Nothing => "has not come".to_string(),
            Waiting::Barrier(barrier, site) => format!("waits at barrier {barrier} ({site})"),
            Waiting::Exchange(site) => format!("waits in an exchange of its warp ({site})"),
            Waiting::Mbarrier(address, site) => {
                format!("waits for the mbarrier at {address:#x} ({site})")
            }
            Waiting::Request(site) => format!("waits at {site}"),
            Waiting::Finished => "has ended".to_string(),
        };
        Absent { thread, doing }
    }

    /// A barrier of `expected` threads; the caller waits or only arrives.
    ///
    /// The threads of a warp must come from one place in the source, and for barrier 0 all
    /// threads of the block.
    #[inline(always)]
    pub fn barrier(&self, site: Site, id: u32, expected: u32, waits: bool) {
        if self.arrive(site, id, expected, waits) {
            self.suspend();
        }
    }

    /// Arrives at a barrier; says whether to wait.
    #[inline(never)]
    fn arrive(&self, site: Site, id: u32, expected: u32, waits: bool) -> bool {
        let named = if id == 0 {
            Synchronisation::Barrier
        } else {
            Synchronisation::NamedBarrier
        };
        if self.run.skips(named, site) {
            return false;
        }
        self.with(site, |state, thread| {
            let block = self.planned.launch.block;
            let warp = if id == 0 { 0 } else { thread / 32 };
            let barrier = &mut state.barriers[id as usize];
            if barrier.arrived.is_empty() {
                barrier.expected = expected;
                barrier.sites = [None; 32];
                barrier.came = [0; 16];
            }
            let found = expected;
            if found != barrier.expected {
                let others = barrier.expected;
                let message = format!("barrier {id}: {found} threads, but {others} by others");
                return Err(FaultKind::InvalidBarrier(message));
            }
            if found == 0 || found > block || !found.is_multiple_of(32) {
                let message = format!("barrier {id}: {found} threads of {block}, in warps of 32");
                return Err(FaultKind::InvalidBarrier(message));
            }
            let first = *barrier.sites[warp].get_or_insert(site);
            if !std::ptr::eq(first, site) && first != site {
                let together = |&&(other, _): &&(u32, bool)| id == 0 || other as usize / 32 == warp;
                let other = barrier
                    .arrived
                    .iter()
                    .find(together)
                    .map_or(0, |arrival| arrival.0);
                let arrived = barrier.arrived.len() as u32;
                let absent = self.absent(other);
                return Err(FaultKind::BarrierDivergence {
                    barrier: id,
                    arrived,
                    expected,
                    absent,
                });
            }
            let word = &mut barrier.came[thread / 64];
            if *word >> (thread % 64) & 1 == 1 {
                let message = format!("barrier {id}: thread {thread} comes twice");
                return Err(FaultKind::InvalidBarrier(message));
            }
            *word |= 1 << (thread % 64);
            barrier.arrived.push((thread as u32, waits));
            if waits {
                self.waiting[thread].set(Waiting::Barrier(id, site));
            }
            if self.checks {
                barrier.gather.add(&mut state.threads[thread].knowledge)?;
            }
            if barrier.arrived.len() == expected as usize {
                complete(state, id as usize);
            }
            Ok(())
        });
        waits
    }

    /// One of the barriers 1 to 15.
    #[inline(always)]
    pub fn named_barrier(&self, site: Site, id: u32, expected: u32, waits: bool) {
        if !(1..16).contains(&id) {
            let message = format!("barrier {id} is not one of the named barriers 1 to 15");
            self.raise(site, FaultKind::InvalidBarrier(message));
        }
        self.barrier(site, id, expected, waits);
    }

    /// Waits for all lanes of the warp, and orders their memory accesses.
    pub fn sync_warp(&self, site: Site) {
        if !self.run.skips(Synchronisation::WarpBarrier, site) {
            self.exchange(site, 0, true, |_, _| ());
        }
    }

    /// Gives each lane of the warp the values of all; `pick` chooses. `orders` makes earlier
    /// memory accesses of each lane known to all.
    // Inlined into the kernel: behind a switch of stacks every return is mispredicted.
    #[inline(always)]
    pub fn exchange<R>(
        &self,
        site: Site,
        value: u32,
        orders: bool,
        pick: impl FnOnce(&[Cell<u32>; 32], u32) -> R,
    ) -> R {
        let (thread, lane) = (self.thread.get(), self.thread.get() % 32);
        let warp = &self.warps[thread as usize / 32];
        let arrived = warp.arrived.get();
        if arrived == 0 {
            warp.site.set(Some(site));
        } else if !warp
            .site
            .get()
            .is_some_and(|first| std::ptr::eq(first, site))
        {
            self.check_exchange(site, warp);
        }
        let turn = (warp.turns.get() >> lane & 1) as usize;
        warp.turns.set(warp.turns.get() ^ 1 << lane);
        warp.values[turn][lane as usize].set(value);
        warp.arrived.set(arrived | 1 << lane);
        self.waiting[thread as usize].set(Waiting::Exchange(site));
        if warp.arrived.get() == u32::MAX {
            self.complete_exchange(site, warp, orders);
        }
        self.suspend();
        pick(&warp.values[turn], lane)
    }

    /// Compares the place of an exchange with the first lane's.
    #[cold]
    fn check_exchange(&self, site: Site, warp: &Warp) {
        if warp.site.get().is_some_and(|first| first != site) {
            let first = self.thread.get() / 32 * 32;
            let absent = self.absent(first + warp.arrived.get().trailing_zeros());
            self.raise(site, FaultKind::InactiveLane { absent });
        }
    }

    #[inline(never)]
    fn complete_exchange(&self, site: Site, warp: &Warp, orders: bool) {
        warp.arrived.set(0);
        self.with(site, |state, thread| {
            if orders && self.checks {
                order_warp(state, thread / 32 * 32)?;
            }
            state.ready.push_warp(thread as u32 / 32);
            Ok(())
        });
    }
}

fn complete(state: &mut State, id: usize) {
    let barrier = &mut state.barriers[id];
    let joined = barrier.gather.take().map(Arc::new);
    for (thread, waits) in barrier.arrived.drain(..) {
        if waits {
            if let Some(view) = &joined {
                state.threads[thread as usize]
                    .knowledge
                    .set_view(view.clone());
            }
            state.ready.push(thread);
        }
    }
}

fn order_warp(state: &mut State, first: usize) -> Result<(), FaultKind> {
    let mut gather = Gather::default();
    let lanes = &mut state.threads[first..first + 32];
    lanes
        .iter_mut()
        .try_for_each(|lane| gather.add(&mut lane.knowledge))?;
    if let Some(view) = gather.take().map(Arc::new) {
        lanes
            .iter_mut()
            .for_each(|lane| lane.knowledge.set_view(view.clone()));
    }
    Ok(())
}
