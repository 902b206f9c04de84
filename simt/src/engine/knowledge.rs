//! What threads know, and how barriers pass it on.

use crate::FaultKind;
use crate::check::{Epoch, Fence, MAX_CLOCK, View};
use std::sync::Arc;

/// A thread's clock and view.
#[derive(Clone, Debug)]
pub(crate) struct Knowledge {
    clock: u32,
    slot: u32,
    pub view: Arc<View>,
    /// Published by the last fence.
    fenced: Option<Arc<View>>,
    /// Read by relaxed atomics; learnt at the next fence.
    read: Option<View>,
}

impl Knowledge {
    pub fn new(slot: u32, view: Arc<View>) -> Self {
        Self {
            clock: 1,
            slot,
            view,
            fenced: None,
            read: None,
        }
    }

    /// The stamp of the thread's accesses now.
    pub fn epoch(&self, uid: u32) -> Epoch {
        Epoch::new(uid, self.slot, self.clock)
    }

    /// Later accesses are not covered by what was published so far.
    pub fn tick(&mut self) -> Result<(), FaultKind> {
        self.clock += 1;
        if self.clock >= MAX_CLOCK {
            let message = format!("{MAX_CLOCK} synchronisations of one thread");
            return Err(FaultKind::Limit(message));
        }
        Ok(())
    }

    /// Everything the thread knows, its own accesses included.
    pub fn publish(&mut self) -> Result<Arc<View>, FaultKind> {
        let mut view = View::clone(&self.view);
        view.set(self.slot, self.clock);
        self.tick()?;
        Ok(Arc::new(view))
    }

    pub fn learn(&mut self, other: &View) {
        Arc::make_mut(&mut self.view).join(other);
    }

    /// Learns of accesses of a queue of copies.
    pub fn learn_slot(&mut self, slot: u32, clock: u32) {
        Arc::make_mut(&mut self.view).set(slot, clock);
    }

    /// Makes everything known, its own accesses included, visible to the asynchronous proxy.
    pub fn fence_proxy(&mut self, fence: Fence) -> Result<(), FaultKind> {
        let view = Arc::make_mut(&mut self.view);
        view.set(self.slot, self.clock);
        view.fence(fence);
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
        joined.set(knowledge.slot, knowledge.clock);
        self.recent = Some(view.clone());
        knowledge.tick()
    }

    /// What all of them know together; starts anew.
    pub fn take(&mut self) -> Option<View> {
        self.recent = None;
        self.joined.take()
    }
}
