//! Why a block cannot go on.

use super::context::{Context, State, Waiting};
use super::run::Site;
use crate::{Fault, FaultKind};
use std::panic::Location;

impl Context<'_> {
    /// Whether some thread waits for an answer of the grid.
    pub fn waits_for_grid(&self) -> bool {
        let state = self.state.borrow();
        state
            .threads
            .iter()
            .any(|thread| matches!(thread.waiting, Waiting::Request(_)))
    }

    /// The fault of a block none of whose threads can go on.
    pub fn stuck(&self) -> Fault {
        let state = &*self.state.borrow();
        let (thread, site, kind) = mbarrier(state)
            .or_else(|| exchange(state))
            .or_else(|| barrier(state))
            .unwrap_or_else(|| {
                let kind = FaultKind::Deadlock("no thread of the block can go on".to_string());
                (0, Location::caller(), kind)
            });
        self.run.fault(self.uid, thread, site, kind)
    }
}

type Found = Option<(u32, Site, FaultKind)>;

fn mbarrier(state: &State) -> Found {
    state
        .threads
        .iter()
        .enumerate()
        .find_map(|(index, thread)| match thread.waiting {
            Waiting::Mbarrier(address, site) => Some((index as u32, site, state.missing(address))),
            _ => None,
        })
}

fn exchange(state: &State) -> Found {
    let partial = |warp: &usize| state.warps[*warp].arrived != 0;
    let warp = (0..state.warps.len()).find(partial)?;
    let arrived = state.warps[warp].arrived;
    let first = warp as u32 * 32;
    let waiting = first + arrived.trailing_zeros();
    let absent = state.absent(first + (!arrived).trailing_zeros());
    let Waiting::Exchange(site) = state.threads[waiting as usize].waiting else {
        return None;
    };
    Some((waiting, site, FaultKind::InactiveLane { absent }))
}

fn barrier(state: &State) -> Found {
    let (id, found) = state
        .barriers
        .iter()
        .enumerate()
        .find(|(_, barrier)| !barrier.arrived.is_empty())?;
    let waits = |&&(_, waits): &&(u32, bool)| waits;
    let thread = found.arrived.iter().find(waits)?.0;
    let Waiting::Barrier(_, site) = state.threads[thread as usize].waiting else {
        return None;
    };
    let came = |index: u32| found.arrived.iter().any(|&(thread, _)| thread == index);
    let missing = (0..state.threads.len() as u32).find(|&index| !came(index))?;
    let kind = FaultKind::BarrierDivergence {
        barrier: id as u32,
        arrived: found.arrived.len() as u32,
        expected: found.expected,
        absent: state.absent(missing),
    };
    Some((thread, site, kind))
}
