//! Vector clocks: dense for the own block, sparse for others.

use super::Epoch;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Up to which clock each slot is known. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Clocks {
    uid: u32,
    block: Arc<Vec<u32>>,
    foreign: Option<Arc<BTreeMap<u32, Arc<Vec<u32>>>>>,
}

/// Raises each clock of `known` to that of `other`.
fn raise(known: &mut Arc<Vec<u32>>, other: &Arc<Vec<u32>>) {
    if Arc::ptr_eq(known, other) {
        return;
    }
    let known = Arc::make_mut(known);
    if known.len() < other.len() {
        known.resize(other.len(), 0);
    }
    for (clock, &new) in known.iter_mut().zip(other.iter()) {
        *clock = new.max(*clock);
    }
}

impl Clocks {
    fn new(uid: u32) -> Self {
        Self {
            uid,
            block: Arc::default(),
            foreign: None,
        }
    }

    fn knows(&self, epoch: Epoch) -> bool {
        let of = |clocks: &[u32]| clocks.get(epoch.slot() as usize).copied().unwrap_or(0);
        let known = if epoch.uid() == self.uid {
            of(&self.block)
        } else {
            let foreign = self.foreign.as_ref().and_then(|all| all.get(&epoch.uid()));
            foreign.map_or(0, |clocks| of(clocks))
        };
        epoch.clock() <= known
    }

    fn set(&mut self, slot: u32, clock: u32) {
        let block = Arc::make_mut(&mut self.block);
        let slot = slot as usize;
        if block.len() <= slot {
            block.resize(slot + 1, 0);
        }
        block[slot] = block[slot].max(clock);
    }

    fn join_block(&mut self, uid: u32, clocks: &Arc<Vec<u32>>) {
        if uid == self.uid {
            raise(&mut self.block, clocks);
        } else if !clocks.is_empty() {
            let foreign = Arc::make_mut(self.foreign.get_or_insert_default());
            let known = foreign.entry(uid).or_insert_with(|| clocks.clone());
            raise(known, clocks);
        }
    }

    fn join(&mut self, other: &Self) {
        self.join_block(other.uid, &other.block);
        let Some(theirs) = &other.foreign else { return };
        if self
            .foreign
            .as_ref()
            .is_some_and(|ours| Arc::ptr_eq(ours, theirs))
        {
            return;
        }
        for (&uid, clocks) in theirs.iter() {
            self.join_block(uid, clocks);
        }
    }
}

/// A fence towards the asynchronous proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fence {
    /// Shared memory.
    Shared,
    /// Global memory.
    Global,
    /// Initialisations of mbarriers.
    Init,
}

/// What a thread knows: accesses that happened before, and which of them the asynchronous proxy
/// knows too.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// Blocks with a smaller uid have completed.
    pub floor: u32,
    clocks: Clocks,
    fenced: [Option<Clocks>; 3],
}

impl View {
    pub fn new(uid: u32, floor: u32) -> Self {
        Self {
            floor,
            clocks: Clocks::new(uid),
            fenced: [const { None }; 3],
        }
    }

    pub fn knows(&self, epoch: Epoch) -> bool {
        epoch.uid() < self.floor || self.clocks.knows(epoch)
    }

    /// Whether the access was fenced towards the asynchronous proxy.
    pub fn fenced(&self, fence: Fence, epoch: Epoch) -> bool {
        let fenced = &self.fenced[fence as usize];
        epoch.uid() < self.floor || fenced.as_ref().is_some_and(|clocks| clocks.knows(epoch))
    }

    /// Learns of a slot of the own block.
    pub fn set(&mut self, slot: u32, clock: u32) {
        self.clocks.set(slot, clock);
    }

    /// Fences everything known.
    pub fn fence(&mut self, fence: Fence) {
        match &mut self.fenced[fence as usize] {
            Some(fenced) => fenced.join(&self.clocks),
            none => *none = Some(self.clocks.clone()),
        }
    }

    /// Learns all that `other` knows.
    pub fn join(&mut self, other: &Self) {
        self.floor = self.floor.max(other.floor);
        self.clocks.join(&other.clocks);
        for (ours, theirs) in self.fenced.iter_mut().zip(&other.fenced) {
            match (ours, theirs) {
                (_, None) => {}
                (Some(ours), Some(theirs)) => ours.join(theirs),
                (none, Some(theirs)) => {
                    let mut clocks = Clocks::new(self.clocks.uid);
                    clocks.join(theirs);
                    *none = Some(clocks);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knowledge_is_passed_on_across_blocks() {
        let access = Epoch::new(5, 3, 7);
        let mut writer = View::new(5, 4);
        writer.set(3, 7);
        let mut middle = View::new(6, 4);
        assert!(!middle.knows(access));
        middle.join(&writer);
        let mut reader = View::new(7, 4);
        reader.join(&middle);
        assert!(reader.knows(access));
        assert!(
            !reader.knows(Epoch::new(5, 3, 8)),
            "a later access is not known"
        );
        assert!(!reader.knows(Epoch::new(5, 2, 1)), "nor another thread's");
        assert!(
            reader.knows(Epoch::new(3, 9, 9)),
            "blocks below the floor have completed"
        );
    }

    #[test]
    fn a_fence_covers_what_was_known_before_it() {
        let mut view = View::new(1, 1);
        view.set(0, 1);
        view.fence(Fence::Shared);
        view.set(0, 2);
        assert!(view.fenced(Fence::Shared, Epoch::new(1, 0, 1)));
        assert!(!view.fenced(Fence::Shared, Epoch::new(1, 0, 2)));
        assert!(!view.fenced(Fence::Global, Epoch::new(1, 0, 1)));
        let mut other = View::new(1, 1);
        other.join(&view);
        assert!(other.fenced(Fence::Shared, Epoch::new(1, 0, 1)));
    }
}
