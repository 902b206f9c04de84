//! mbarriers: phases that complete when all arrivals and all announced bytes have come.

use super::context::{Context, State, Waiting};
use super::run::Site;
use crate::check::{ConflictKind, Epoch, Fence, Gather, View};
use crate::fault::Action;
use crate::{FaultKind, MbarrierProblem, Synchronisation};
use std::sync::Arc;

/// Most arrivals of a phase.
const MAX_ARRIVALS: u32 = (1 << 20) - 1;

#[derive(Debug)]
pub(super) struct Mbarrier {
    address: u32,
    count: u32,
    /// Arrivals that the current phase misses.
    pub pending: u32,
    /// Bytes announced for the current phase, less those that came.
    pub bytes: i64,
    /// The current phase, from 0.
    pub phase: u32,
    /// The slot of its copies; their clock is the phase plus 1.
    pub slot: u32,
    init: Epoch,
    gather: Gather,
    /// What arrivals of the completed phases knew.
    released: Option<Arc<View>>,
    /// A view before and after it learnt that: most waiters share one.
    learnt: Option<(Arc<View>, Arc<View>)>,
    waiters: Vec<u32>,
}

fn fault(address: u32, problem: MbarrierProblem) -> FaultKind {
    FaultKind::Mbarrier { address, problem }
}

impl State {
    /// The index of the mbarrier at an address.
    pub fn mbarrier(&self, address: u32) -> Result<usize, FaultKind> {
        let index = self
            .mbarriers
            .iter()
            .position(|mbarrier| mbarrier.address == address);
        index.ok_or_else(|| fault(address, MbarrierProblem::NotInitialised))
    }

    /// Completes the phase of an mbarrier if nothing is missing.
    pub fn settle(&mut self, index: usize) -> Result<(), FaultKind> {
        let mbarrier = &mut self.mbarriers[index];
        let (address, phase) = (mbarrier.address, mbarrier.phase);
        if mbarrier.pending > 0 || mbarrier.bytes > 0 {
            return Ok(());
        }
        if mbarrier.bytes < 0 {
            let bytes = mbarrier.bytes.unsigned_abs();
            return Err(fault(
                address,
                MbarrierProblem::TooManyBytes { phase, bytes },
            ));
        }
        if let Some(bytes) = self.copies.under_way(index, phase) {
            return Err(fault(
                address,
                MbarrierProblem::CompletedEarly { phase, bytes },
            ));
        }
        if let Some(mut view) = mbarrier.gather.take() {
            if let Some(released) = &mbarrier.released {
                view.join(released);
            }
            view.set(mbarrier.slot, phase + 1);
            mbarrier.released = Some(Arc::new(view));
            mbarrier.learnt = None;
        }
        mbarrier.phase += 1;
        mbarrier.pending = mbarrier.count;
        mbarrier
            .waiters
            .drain(..)
            .for_each(|thread| self.ready.push(thread));
        Ok(())
    }

    /// What a thread misses that waits for an mbarrier for ever.
    pub fn missing(&self, address: u32) -> FaultKind {
        let index = match self.mbarrier(address) {
            Ok(index) => index,
            Err(kind) => return kind,
        };
        let Mbarrier {
            phase,
            pending: arrivals,
            bytes,
            ..
        } = self.mbarriers[index];
        fault(
            address,
            MbarrierProblem::NeverCompletes {
                phase,
                arrivals,
                bytes,
            },
        )
    }
}

impl Context<'_> {
    pub fn mbarrier_init(&self, site: Site, address: u32, count: u32) {
        self.with(site, |state, thread| {
            self.shared_range(address, 8, 8, Action::Write)?;
            if count == 0 || count > MAX_ARRIVALS {
                return Err(fault(address, MbarrierProblem::InvalidCount(count)));
            }
            if state.mbarrier(address).is_ok() {
                return Err(fault(address, MbarrierProblem::AlreadyInitialised));
            }
            let knowledge = &state.threads[thread].knowledge;
            let init = knowledge.epoch();
            if self.checks {
                let access = self.plain_access(knowledge, site);
                let result = state.history.make_mbarrier(address, &access);
                result.map_err(|(address, conflict)| match conflict.kind {
                    ConflictKind::Mbarrier => fault(address, MbarrierProblem::AlreadyInitialised),
                    _ => self
                        .run
                        .conflict(self.shared_place(address), Action::Write, conflict),
                })?;
            }
            let slot = state.copies.add_slot(self.planned.launch.block, true)?;
            state.mbarriers.push(Mbarrier {
                address,
                count,
                pending: count,
                bytes: 0,
                phase: 0,
                slot,
                init,
                gather: Gather::default(),
                released: None,
                learnt: None,
                waiters: Vec::new(),
            });
            Ok(())
        });
    }

    /// A fence towards the asynchronous proxy.
    pub fn fence_proxy(&self, site: Site, fence: Fence) {
        if self.checks && !self.run.skips(Synchronisation::ProxyFence, site) {
            self.with(site, |state, thread| {
                state.threads[thread].knowledge.fence_proxy(fence)
            });
        }
    }

    /// The mbarrier at an address, whose initialisation the thread knows of.
    pub(super) fn known_mbarrier(
        &self,
        state: &State,
        thread: usize,
        address: u32,
    ) -> Result<usize, FaultKind> {
        let index = state.mbarrier(address)?;
        let (init, knowledge) = (
            state.mbarriers[index].init,
            &state.threads[thread].knowledge,
        );
        let known = knowledge.knows(init);
        if self.checks && !known {
            return Err(fault(address, MbarrierProblem::InitNotOrdered(init.slot())));
        }
        Ok(index)
    }

    /// The same for a copy: its initialisation must be fenced too.
    pub(super) fn fenced_mbarrier(
        &self,
        state: &State,
        thread: usize,
        address: u32,
    ) -> Result<usize, FaultKind> {
        let index = self.known_mbarrier(state, thread, address)?;
        let (init, view) = (
            state.mbarriers[index].init,
            state.threads[thread].knowledge.view(),
        );
        let fenced = view.fenced(Fence::Init, init) || view.fenced(Fence::Shared, init);
        if self.checks && !fenced {
            return Err(fault(address, MbarrierProblem::InitNotFenced));
        }
        Ok(index)
    }

    /// One arrival that announces `bytes` bytes.
    pub fn mbarrier_arrive(&self, site: Site, address: u32, bytes: u32) {
        self.with(site, |state, thread| {
            let index = self.known_mbarrier(state, thread, address)?;
            let mbarrier = &mut state.mbarriers[index];
            if mbarrier.pending == 0 {
                let phase = mbarrier.phase;
                return Err(fault(address, MbarrierProblem::TooManyArrivals { phase }));
            }
            mbarrier.bytes += i64::from(bytes);
            mbarrier.pending -= 1;
            if self.checks {
                mbarrier.gather.add(&mut state.threads[thread].knowledge)?;
            }
            state.settle(index)
        });
    }

    /// Waits until the phase of a parity has completed.
    pub fn mbarrier_wait(&self, site: Site, address: u32, parity: u32) {
        if self.run.skips(Synchronisation::PhaseWait, site) {
            return;
        }
        let parity = parity & 1;
        loop {
            let done = self.with(site, |state, thread| {
                let index = self.known_mbarrier(state, thread, address)?;
                let mbarrier = &mut state.mbarriers[index];
                if mbarrier.phase & 1 == parity {
                    mbarrier.waiters.push(thread as u32);
                    self.waiting[thread].set(Waiting::Mbarrier(address, site));
                    return Ok(false);
                }
                let Some(released) = &mbarrier.released else {
                    return Ok(true);
                };
                let knowledge = &mut state.threads[thread].knowledge;
                match &mbarrier.learnt {
                    Some((before, after)) if Arc::ptr_eq(before, knowledge.view()) => {
                        knowledge.set_view(after.clone());
                    }
                    _ => {
                        let before = knowledge.view().clone();
                        knowledge.learn(released);
                        mbarrier.learnt = Some((before, knowledge.view().clone()));
                    }
                }
                Ok(true)
            });
            if done {
                return;
            }
            self.suspend();
        }
    }
}
