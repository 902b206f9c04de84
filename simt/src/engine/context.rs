//! The state of one block, as the device functions see it.

use crate::{Fault, FaultKind, Launch, Order, Simulator};
use corosensei::Yielder;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::VecDeque;
use std::panic::Location;

pub(crate) type Site = &'static Location<'static>;

/// Address of a block's dynamic shared memory. Not 0, so that a null address is out of bounds.
pub(crate) const SHARED_BASE: u32 = 1024;

thread_local! {
    static CURRENT: Cell<*const Context> = const { Cell::new(std::ptr::null()) };
}

/// The payload of the unwinding that ends a faulty thread.
pub(crate) struct Aborted;

/// The block whose thread calls.
///
/// # Panics
/// Outside a launch.
#[inline]
pub(crate) fn current<'a>() -> &'a Context {
    let context = CURRENT.get();
    assert!(
        !context.is_null(),
        "a device function was called outside a simulated launch"
    );
    // SAFETY: set by `Context::enter` for as long as threads of that block run.
    unsafe { &*context }
}

pub(crate) struct Context {
    pub kernel: String,
    pub grid: u32,
    pub block_dim: u32,
    pub block: u32,
    pub thread: Cell<u32>,
    shared: UnsafeCell<Vec<u128>>,
    shared_bytes: u32,
    state: RefCell<State>,
}

struct State {
    ready: VecDeque<u32>,
    order: Order,
    random: fastrand::Rng,
    yielders: Vec<*const Yielder<(), ()>>,
    warps: Vec<Warp>,
    barrier: Vec<u32>,
    finished: u32,
    fault: Option<Fault>,
}

/// One shuffle in progress. Values are double-buffered: a lane may reach the next shuffle before
/// another has read this one's values, but not the one after.
#[derive(Clone, Default)]
struct Warp {
    arrived: u32,
    turn: [u8; 32],
    values: [[u32; 32]; 2],
}

impl Context {
    pub fn new(simulator: &Simulator, launch: &Launch<'_>, block: u32) -> Self {
        let seed = simulator.schedule.seed ^ (u64::from(block) << 32);
        let state = State {
            ready: (0..launch.block).collect(),
            order: simulator.schedule.threads,
            random: fastrand::Rng::with_seed(seed),
            yielders: vec![std::ptr::null(); launch.block as usize],
            warps: vec![Warp::default(); launch.block as usize / 32],
            barrier: Vec::new(),
            finished: 0,
            fault: None,
        };
        Self {
            kernel: launch.name.to_string(),
            grid: launch.grid,
            block_dim: launch.block,
            block,
            thread: Cell::new(0),
            shared: UnsafeCell::new(vec![u128::MAX; launch.shared_bytes.div_ceil(16) as usize]),
            shared_bytes: launch.shared_bytes,
            state: RefCell::new(state),
        }
    }

    pub fn enter(&self) {
        CURRENT.set(self);
    }

    pub fn leave() {
        CURRENT.set(std::ptr::null());
    }

    /// The next thread to resume.
    pub fn next(&self) -> Option<u32> {
        let state = &mut *self.state.borrow_mut();
        let thread = match state.order {
            Order::RoundRobin => state.ready.pop_front(),
            Order::LastReady => state.ready.pop_back(),
            Order::Random if state.ready.is_empty() => None,
            Order::Random => state
                .ready
                .swap_remove_back(state.random.usize(0..state.ready.len())),
        }?;
        self.thread.set(thread);
        Some(thread)
    }

    pub fn set_yielder(&self, yielder: &Yielder<(), ()>) {
        self.state.borrow_mut().yielders[self.thread.get() as usize] = yielder;
    }

    pub fn finish(&self) {
        self.state.borrow_mut().finished += 1;
    }

    pub fn take_fault(&self) -> Option<Fault> {
        self.state.borrow_mut().fault.take()
    }

    #[track_caller]
    pub fn fault(&self, site: Site, kind: FaultKind) -> Fault {
        let (block, thread) = (self.block, self.thread.get());
        Fault {
            kernel: self.kernel.clone(),
            block,
            thread,
            site,
            kind,
        }
    }

    pub fn set_fault(&self, fault: Fault) {
        self.state.borrow_mut().fault.get_or_insert(fault);
    }

    #[track_caller]
    pub fn unfinished(&self) -> Option<Fault> {
        let finished = self.state.borrow().finished;
        (finished != self.block_dim).then(|| {
            let message = format!("{} threads wait for ever", self.block_dim - finished);
            self.fault(Location::caller(), FaultKind::Deadlock(message))
        })
    }

    fn suspend(&self) {
        let yielder = self.state.borrow().yielders[self.thread.get() as usize];
        // SAFETY: set at the thread's start to its own yielder, which lives on its stack.
        unsafe { (*yielder).suspend(()) }
    }

    pub fn sync_threads(&self, _site: Site) {
        {
            let state = &mut *self.state.borrow_mut();
            state.barrier.push(self.thread.get());
            if state.barrier.len() == self.block_dim as usize {
                state.barrier.sort_unstable();
                state.ready.extend(state.barrier.drain(..));
            }
        }
        self.suspend();
    }

    pub fn shuffle(&self, _site: Site, value: u32, source: impl Fn(u32) -> u32) -> u32 {
        let thread = self.thread.get();
        let (warp, lane) = ((thread / 32) as usize, (thread % 32) as usize);
        let turn;
        {
            let state = &mut *self.state.borrow_mut();
            let w = &mut state.warps[warp];
            turn = w.turn[lane] as usize;
            w.turn[lane] ^= 1;
            w.values[turn][lane] = value;
            w.arrived += 1;
            if w.arrived == 32 {
                w.arrived = 0;
                let first = warp as u32 * 32;
                state.ready.extend(first..first + 32);
            }
        }
        self.suspend();
        let state = self.state.borrow();
        state.warps[warp].values[turn][(source(lane as u32) % 32) as usize]
    }

    /// The host address of `bytes` bytes at a shared address.
    pub fn shared(&self, address: u32, bytes: u32) -> *mut u8 {
        let offset = address.wrapping_sub(SHARED_BASE);
        assert!(
            offset
                .checked_add(bytes)
                .is_some_and(|end| end <= self.shared_bytes),
            "shared address out of bounds"
        );
        // SAFETY: the vector is never resized, and only this OS thread touches it.
        unsafe {
            (*self.shared.get())
                .as_mut_ptr()
                .cast::<u8>()
                .add(offset as usize)
        }
    }
}
