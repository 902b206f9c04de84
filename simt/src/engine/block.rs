//! A resident block: its state and its threads' coroutines. Stays on one OS thread.

use super::context::{Aborted, Context};
use super::request::{Reply, Request};
use super::run::{Planned, Run};
use super::stacks::{self, Stack};
use crate::{CopyTiming, Fault, FaultKind};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::any::Any;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};

type Thread = Coroutine<(), (), (), Stack>;

pub(crate) struct Block<'r> {
    threads: Vec<Thread>,
    context: Box<Context<'r>>,
}

/// What a block did until it could not go on by itself.
pub(crate) struct Outcome {
    pub finished: bool,
    pub requests: Vec<(u32, Request)>,
    pub switches: u64,
    pub order: u64,
}

impl<'r> Block<'r> {
    pub fn new(run: &'r Run<'r>, planned: &'r Planned<'r>, index: u32) -> Result<Self, Fault> {
        let context = Box::new(Context::new(run, planned, index));
        let stacks = stacks::take(planned.launch.block as usize, run.stack_bytes);
        let stacks = stacks.map_err(|error| {
            let message = format!("no memory for the threads' stacks: {error}");
            run.fault(
                context.uid,
                0,
                Location::caller(),
                FaultKind::Limit(message),
            )
        })?;
        let threads = stacks
            .into_iter()
            .map(|stack| spawn(stack, &context))
            .collect();
        Ok(Self { threads, context })
    }

    /// Runs the block until every thread has ended or waits for the grid.
    pub fn run(&mut self, replies: Vec<Reply>) -> Result<Outcome, Fault> {
        self.context.answer(replies);
        let Self { threads, context } = self;
        let copies_any_time = context.run.schedule.copies == CopyTiming::Random;
        context.enter(|| {
            loop {
                while let Some(thread) = context.next() {
                    let result = threads[thread as usize].resume(());
                    if let CoroutineResult::Return(()) = result {
                        // A faulty thread returns too.
                        context.finish();
                        if let Some(fault) = context.take_fault() {
                            return Err(fault);
                        }
                    }
                    if copies_any_time {
                        context.progress_copies(false)?;
                    }
                }
                if !context.progress_copies(true)? {
                    return Ok(());
                }
            }
        })?;
        let (finished, requests) = (context.finished(), context.take_requests());
        if !finished && requests.is_empty() && !context.waits_for_grid() {
            return Err(context.stuck());
        }
        let (switches, order) = context.statistics();
        Ok(Outcome {
            finished,
            requests,
            switches,
            order,
        })
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        let Self { threads, context } = self;
        context.enter(|| {
            let unfinished = |thread: &&mut Thread| thread.started() && !thread.done();
            threads
                .iter_mut()
                .filter(unfinished)
                .for_each(Thread::force_unwind);
        });
        let done = threads
            .drain(..)
            .filter(Thread::done)
            .map(Thread::into_stack);
        stacks::give(done, context.run.stack_bytes);
    }
}

fn spawn(stack: Stack, context: &Context<'_>) -> Thread {
    let main = move |yielder: &Yielder<(), ()>, ()| {
        context.start(yielder);
        if let Err(payload) = catch_unwind(AssertUnwindSafe(context.planned.launch.body)) {
            report(context, payload);
        }
    };
    // SAFETY: a block drops its coroutines before the context, which is boxed and so stays in
    // place; the run outlives the block.
    unsafe { Coroutine::with_stack_unchecked(stack, main) }
}

/// Turns a panic into a fault; lets the unwinding of an unfinished coroutine pass.
fn report(context: &Context<'_>, payload: Box<dyn Any + Send>) {
    if payload.is::<Aborted>() {
        return;
    }
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    match text {
        Some(text) => {
            context.set_fault(Location::caller(), FaultKind::Panic(text.to_string()));
        }
        None => std::panic::resume_unwind(payload),
    }
}
