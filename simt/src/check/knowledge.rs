//! What threads know, and how barriers pass it on.

use super::{Epoch, Fence, MAX_CLOCK, View};
use crate::FaultKind;
use std::sync::Arc;

/// A thread's clock and view.
#[derive(Clone, Debug)]
pub(crate) struct Knowledge {
    uid: u32,
    slot: u32,
    clock: u32,
    /// What happened before, except for its own accesses.
    view: Arc<View>,
    /// Up to which clock it has waited for the slots of its own copies. Apart from the view,
    /// which most threads of a block share.
    copies: Vec<(u32, u32)>,
    /// The slot of its atomics, and how many there were. They have a slot of their own because
    /// whoever reads what an atomic wrote knows of that atomic, but not of what came before it.
    atomics: Option<(u32, u32)>,
    /// Published by the last fence.
    fenced: Option<Arc<View>>,
    /// Read by relaxed atomics; learnt at the next fence.
    read: Option<View>,
}

impl Knowledge {
    pub fn new(uid: u32, slot: u32, view: Arc<View>) -> Self {
        Self {
            uid,
            slot,
            clock: 1,
            view,
            copies: Vec::new(),
            atomics: None,
            fenced: None,
            read: None,
        }
    }

    /// The stamp of the thread's accesses now.
    pub fn epoch(&self) -> Epoch {
        Epoch::new(self.uid, self.slot, self.clock)
    }

    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// Replaces the view by one that holds all of it.
    pub fn set_view(&mut self, view: Arc<View>) {
        self.view = view;
    }

    pub fn knows(&self, epoch: Epoch) -> bool {
        self.is_own(epoch) || self.view.knows(epoch) || self.waited_for(epoch)
    }

    /// The stamp of the next atomic.
    pub fn next_atomic(
        &mut self,
        new_slot: impl FnOnce() -> Result<u32, FaultKind>,
    ) -> Result<Epoch, FaultKind> {
        let (slot, count) = match self.atomics {
            Some(atomics) => atomics,
            None => (new_slot()?, 0),
        };
        if count + 1 >= MAX_CLOCK {
            return Err(FaultKind::Limit(format!(
                "{MAX_CLOCK} atomics of one thread"
            )));
        }
        self.atomics = Some((slot, count + 1));
        Ok(Epoch::new(self.uid, slot, count + 1))
    }

    /// Whether it is a plain access of the thread itself.
    fn is_own(&self, epoch: Epoch) -> bool {
        epoch.uid() == self.uid && epoch.slot() == self.slot
    }

    /// Whether it is one of its atomics, or of its copies and waited for.
    fn waited_for(&self, epoch: Epoch) -> bool {
        let of = |&(slot, clock): &(u32, u32)| slot == epoch.slot() && epoch.clock() <= clock;
        epoch.uid() == self.uid && self.copies.iter().chain(&self.atomics).any(of)
    }

    /// Later accesses are not covered by what was published so far.
    fn tick(&mut self) -> Result<(), FaultKind> {
        self.clock += 1;
        if self.clock >= MAX_CLOCK {
            let message = format!("{MAX_CLOCK} synchronisations of one thread");
            return Err(FaultKind::Limit(message));
        }
        Ok(())
    }

    /// Adds its own accesses and copies to a view.
    fn add_own(&self, view: &mut View) {
        view.set(self.slot, self.clock);
        let others = self.copies.iter().chain(&self.atomics);
        others.for_each(|&(slot, clock)| view.set(slot, clock));
    }

    /// Everything the thread knows, its own accesses included.
    pub fn publish(&mut self) -> Result<Arc<View>, FaultKind> {
        let mut view = View::clone(&self.view);
        self.add_own(&mut view);
        self.tick()?;
        Ok(Arc::new(view))
    }

    pub fn learn(&mut self, other: &View) {
        Arc::make_mut(&mut self.view).join(other);
    }

    /// It has waited for its copies of a slot up to a clock.
    pub fn wait_for(&mut self, slot: u32, clock: u32) {
        match self.copies.iter_mut().find(|(known, _)| *known == slot) {
            Some((_, known)) => *known = clock.max(*known),
            None => self.copies.push((slot, clock)),
        }
    }

    /// Makes everything known, its own accesses included, visible to the asynchronous proxy.
    pub fn fence_proxy(&mut self, fence: Fence) -> Result<(), FaultKind> {
        let mut view = View::clone(&self.view);
        self.add_own(&mut view);
        view.fence(fence);
        self.view = Arc::new(view);
        self.tick()
    }

    /// A fence: atomics before it acquire, atomics after it release.
    pub fn fence(&mut self) -> Result<(), FaultKind> {
        if let Some(read) = self.read.take() {
            self.learn(&read);
        }
        self.fenced = Some(self.publish()?);
        Ok(())
    }

    /// What a relaxed atomic publishes.
    pub fn fenced(&self) -> Option<Arc<View>> {
        self.fenced.clone()
    }

    /// A relaxed atomic read something published.
    pub fn read_relaxed(&mut self, other: &View) {
        match &mut self.read {
            Some(read) => read.join(other),
            none => {
                let mut view = View::clone(&self.view);
                view.join(other);
                *none = Some(view);
            }
        }
    }
}

/// Collects what several threads know.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    joined: Option<View>,
    /// The view joined last: most threads share one.
    recent: Option<Arc<View>>,
}

impl Gather {
    /// Adds a thread's knowledge, which is published thereby.
    pub fn add(&mut self, knowledge: &mut Knowledge) -> Result<(), FaultKind> {
        let view = &knowledge.view;
        let joined = match &mut self.joined {
            None => self.joined.insert(View::clone(view)),
            Some(joined) => {
                if !self
                    .recent
                    .as_ref()
                    .is_some_and(|recent| Arc::ptr_eq(recent, view))
                {
                    joined.join(view);
                }
                joined
            }
        };
        knowledge.add_own(joined);
        self.recent = Some(view.clone());
        knowledge.tick()
    }

    /// What all of them know together; starts anew.
    pub fn take(&mut self) -> Option<View> {
        self.recent = None;
        self.joined.take()
    }
}
