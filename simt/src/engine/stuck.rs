//! Why a block cannot go on.

use super::context::{Context, Waiting};
use super::run::Site;
use crate::{Fault, FaultKind};
use std::panic::Location;

type Found = Option<(u32, Site, FaultKind)>;

impl Context<'_> {
    /// Whether some thread waits for an answer of the grid.
    pub fn waits_for_grid(&self) -> bool {
        self.waiting
            .iter()
            .any(|waiting| matches!(waiting.get(), Waiting::Request(_)))
    }

    /// The fault of a block none of whose threads can go on.
    pub fn stuck(&self) -> Fault {
        let found = self.stuck_phase().or_else(|| self.stuck_exchange());
        let (thread, site, kind) = found.or_else(|| self.stuck_barrier()).unwrap_or_else(|| {
            let kind = FaultKind::Deadlock("no thread of the block can go on".to_string());
            (0, Location::caller(), kind)
        });
        self.run.fault(self.uid, thread, site, kind)
    }

    fn stuck_phase(&self) -> Found {
        let state = self.state.borrow();
        self.waiting
            .iter()
            .enumerate()
            .find_map(|(index, waiting)| match waiting.get() {
                Waiting::Mbarrier(address, site) => {
                    Some((index as u32, site, state.missing(address)))
                }
                _ => None,
            })
    }

    fn stuck_exchange(&self) -> Found {
        let warp = self.warps.iter().position(|warp| warp.arrived.get() != 0)?;
        let arrived = self.warps[warp].arrived.get();
        let first = warp as u32 * 32;
        let thread = first + arrived.trailing_zeros();
        let absent = self.absent(first + (!arrived).trailing_zeros());
        let Waiting::Exchange(site) = self.waiting[thread as usize].get() else {
            return None;
        };
        Some((thread, site, FaultKind::InactiveLane { absent }))
    }

    fn stuck_barrier(&self) -> Found {
        let state = self.state.borrow();
        let mut barriers = state.barriers.iter().enumerate();
        let (id, found) = barriers.find(|(_, barrier)| !barrier.arrived.is_empty())?;
        let waits = |&&(_, waits): &&(u32, bool)| waits;
        let thread = found.arrived.iter().find(waits)?.0;
        let Waiting::Barrier(_, site) = self.waiting[thread as usize].get() else {
            return None;
        };
        let came = |index: u32| found.arrived.iter().any(|&(thread, _)| thread == index);
        let missing = (0..self.waiting.len() as u32).find(|&index| !came(index))?;
        let kind = FaultKind::BarrierDivergence {
            barrier: id as u32,
            arrived: found.arrived.len() as u32,
            expected: found.expected,
            absent: self.absent(missing),
        };
        Some((thread, site, kind))
    }
}
