//! The state of one block, as the device functions see it.

use super::copies::{Copies, Queue};
use super::exchange::{Barrier, Warp};
use super::mbarrier::Mbarrier;
use super::request::{Reply, Request};
use super::run::{Planned, Run, SHARED_BASE, Site};
use super::shared_history::SharedHistory;
use crate::check::{Gather, Knowledge, View};
use crate::schedule::Ready;
use crate::{Fault, FaultKind};
use corosensei::Yielder;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::panic::Location;
use std::sync::Arc;

thread_local! {
    static CURRENT: Cell<*const Context<'static>> = const { Cell::new(std::ptr::null()) };
}

/// The payload of the unwinding that ends a faulty thread.
pub(crate) struct Aborted;

/// Calls `f` with the block whose thread calls.
///
/// # Panics
/// Outside a launch.
#[inline(always)]
pub(crate) fn with_current<R>(f: impl FnOnce(&Context<'_>) -> R) -> R {
    // SAFETY: the reference does not leave `f`.
    f(unsafe { current() })
}

/// The block whose thread calls. Where a switch of stacks follows, this is better than
/// [`with_current`], whose closure the compiler may not inline: behind a switch every return is
/// mispredicted.
///
/// # Panics
/// Outside a launch.
///
/// # Safety
/// - The reference is not kept when the device function returns.
#[inline(always)]
pub(crate) unsafe fn current<'a>() -> &'a Context<'a> {
    let context = CURRENT.get();
    assert!(
        !context.is_null(),
        "a device function was called outside a simulated launch"
    );
    // SAFETY: set by `Context::enter` for as long as threads of that block run on this OS
    // thread, where they stay.
    unsafe { &*context }
}

pub(crate) struct Context<'r> {
    pub run: &'r Run<'r>,
    pub planned: &'r Planned<'r>,
    pub block: u32,
    pub uid: u32,
    /// `run.checks`.
    pub checks: bool,
    /// Accesses are neither checked nor displaced.
    pub unchanged: bool,
    /// The thread that runs.
    pub thread: Cell<u32>,
    /// Accesses the thread may make before it must come to a synchronisation.
    pub(super) budget: Cell<u32>,
    /// What each thread waits for.
    pub(super) waiting: Box<[Cell<Waiting>]>,
    pub(super) warps: Box<[Warp]>,
    /// How each thread suspends itself.
    yielders: Box<[Cell<*const Yielder<(), ()>>]>,
    shared: UnsafeCell<Vec<u128>>,
    pub(super) state: RefCell<State>,
}

pub(super) struct State {
    pub ready: Ready,
    pub threads: Vec<Thread>,
    pub barriers: [Barrier; 16],
    pub mbarriers: Vec<Mbarrier>,
    pub copies: Copies,
    /// The history of shared memory.
    pub history: SharedHistory,
    pub requests: Vec<(u32, Request)>,
    pub finished: u32,
    /// What the finished threads knew.
    pub end: Gather,
    pub fault: Option<Fault>,
    pub switches: u64,
    /// A hash of the order in which threads ran.
    pub order: u64,
}

pub(super) struct Thread {
    pub knowledge: Knowledge,
    pub reply: u64,
    /// Its bulk stores, and its small asynchronous copies.
    pub queues: [Queue; 2],
}

/// Why a thread does not run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Waiting {
    /// It runs or could.
    Nothing,
    Barrier(u32, Site),
    Exchange(Site),
    Mbarrier(u32, Site),
    /// For something that the whole grid decides.
    Request(Site),
    Finished,
}

/// Accesses without synchronisation after which a thread is taken to loop for ever.
const BUDGET: u32 = 1 << 28;

impl<'r> Context<'r> {
    pub fn new(run: &'r Run<'r>, planned: &'r Planned<'r>, block: u32) -> Self {
        let launch = &planned.launch;
        let uid = planned.first_uid + block;
        let warps = launch.block / 32;
        // Neighbouring blocks get unrelated sequences.
        let seed = run.schedule.seed ^ u64::from(uid).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let view = Arc::new(View::new(uid, planned.start_floor));
        let thread = |slot| Thread {
            knowledge: Knowledge::new(uid, slot, view.clone()),
            reply: 0,
            queues: Default::default(),
        };
        let checked_bytes = if run.checks { launch.shared_bytes } else { 0 };
        let state = State {
            ready: Ready::new(run.schedule.threads, seed, warps),
            threads: (0..launch.block).map(thread).collect(),
            barriers: Default::default(),
            mbarriers: Vec::new(),
            copies: Copies::default(),
            history: SharedHistory::new(checked_bytes),
            requests: Vec::new(),
            finished: 0,
            end: Gather::default(),
            fault: None,
            switches: 0,
            order: 0,
        };
        Self {
            run,
            planned,
            block,
            uid,
            checks: run.checks,
            unchanged: !run.checks && run.mutation.is_none(),
            thread: Cell::new(0),
            budget: Cell::new(BUDGET),
            waiting: vec![Cell::new(Waiting::Nothing); launch.block as usize].into(),
            warps: vec![Warp::default(); warps as usize].into(),
            yielders: vec![Cell::new(std::ptr::null()); launch.block as usize].into(),
            // Reads as NaN where checks are off.
            shared: UnsafeCell::new(vec![u128::MAX; launch.shared_bytes.div_ceil(16) as usize]),
            state: RefCell::new(state),
        }
    }

    /// Makes this the current block while `f` runs.
    pub fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                CURRENT.set(std::ptr::null());
            }
        }
        CURRENT.set(std::ptr::from_ref(self).cast());
        let _leave = Leave;
        f()
    }

    /// Picks the next thread to resume.
    pub fn next(&self) -> Option<u32> {
        let state = &mut *self.state.borrow_mut();
        let thread = state.ready.pop()?;
        self.waiting[thread as usize].set(Waiting::Nothing);
        state.switches += 1;
        state.order = (state.order ^ u64::from(thread)).wrapping_mul(0x0000_0100_0000_01b3);
        self.thread.set(thread);
        self.budget.set(BUDGET);
        Some(thread)
    }

    /// Called by each thread before its body.
    pub fn start(&self, yielder: &Yielder<(), ()>) {
        self.yielders[self.thread.get() as usize].set(yielder);
    }

    /// Called when a thread's body has returned.
    pub fn finish(&self) {
        let state = &mut *self.state.borrow_mut();
        let index = self.thread.get() as usize;
        self.drain_copies(state, index);
        state.finished += 1;
        self.waiting[index].set(Waiting::Finished);
        if self.checks
            && let Err((thread, site, kind)) = self.check_end(state, index)
        {
            let fault = self.run.fault(self.uid, thread, site, kind);
            state.fault.get_or_insert(fault);
        }
    }

    /// Checks, when the last thread ends, that somebody has waited for every copy.
    fn check_end(&self, state: &mut State, thread: usize) -> Result<(), (u32, Site, FaultKind)> {
        let limit = |kind| (thread as u32, Location::caller(), kind);
        state
            .end
            .add(&mut state.threads[thread].knowledge)
            .map_err(limit)?;
        if state.finished < self.planned.launch.block {
            return Ok(());
        }
        let unwaited = state
            .end
            .take()
            .and_then(|view| state.copies.unwaited(self.uid, &view));
        unwaited.map_or(Ok(()), |(thread, site)| {
            Err((thread, site, FaultKind::CopyNotAwaited))
        })
    }

    pub fn finished(&self) -> bool {
        self.state.borrow().finished == self.planned.launch.block
    }

    pub fn take_fault(&self) -> Option<Fault> {
        self.state.borrow_mut().fault.take()
    }

    pub fn take_requests(&self) -> Vec<(u32, Request)> {
        std::mem::take(&mut self.state.borrow_mut().requests)
    }

    /// How often threads were resumed, and a hash of their order.
    pub fn statistics(&self) -> (u64, u64) {
        let state = self.state.borrow();
        (state.switches, state.order)
    }

    /// Lets threads go on whose requests were answered.
    pub fn answer(&self, replies: Vec<Reply>) {
        let state = &mut *self.state.borrow_mut();
        for reply in replies {
            let thread = &mut state.threads[reply.thread as usize];
            thread.reply = reply.value;
            if let Some(view) = &reply.acquired {
                thread.knowledge.learn(view);
            }
            if let Some(view) = &reply.read {
                thread.knowledge.read_relaxed(view);
            }
            state.ready.push(reply.thread);
        }
    }

    /// Records a fault of the current thread.
    pub fn set_fault(&self, site: Site, kind: FaultKind) {
        let fault = self.run.fault(self.uid, self.thread.get(), site, kind);
        self.state.borrow_mut().fault.get_or_insert(fault);
    }

    /// Ends the current thread with a fault.
    #[cold]
    pub fn raise(&self, site: Site, kind: FaultKind) -> ! {
        self.set_fault(site, kind);
        std::panic::resume_unwind(Box::new(Aborted))
    }

    /// Calls `f` with the block's state and the current thread's index; a fault ends the thread.
    pub(super) fn with<R>(
        &self,
        site: Site,
        f: impl FnOnce(&mut State, usize) -> Result<R, FaultKind>,
    ) -> R {
        // The borrow must end before the thread unwinds.
        let result = f(&mut self.state.borrow_mut(), self.thread.get() as usize);
        result.unwrap_or_else(|kind| self.raise(site, kind))
    }

    /// Lets others run until somebody pushes the current thread to the ready ones. What it waits
    /// for has been noted.
    #[inline(always)]
    pub(super) fn suspend(&self) {
        let yielder = self.yielders[self.thread.get() as usize].get();
        // SAFETY: set at the thread's start to its own yielder, which lives on its stack.
        unsafe { (*yielder).suspend(()) }
    }

    /// The host address of `bytes` bytes at a shared address, if they are in bounds.
    #[inline]
    pub(super) fn shared_pointer(&self, address: u32, bytes: u32) -> Option<*mut u8> {
        let offset = address.checked_sub(SHARED_BASE)?;
        let end = offset.checked_add(bytes)?;
        // SAFETY: the vector is never resized, and only this OS thread touches it, through
        // pointers that no reference outlives.
        let start = unsafe { (*self.shared.get()).as_mut_ptr().cast::<u8>() };
        // SAFETY: the offset is within the vector.
        (end <= self.planned.launch.shared_bytes).then(|| unsafe { start.add(offset as usize) })
    }
}
