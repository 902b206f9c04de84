//! Runs one block to its end.

use super::{Aborted, Context, stacks};
use crate::{Fault, FaultKind, Launch, Simulator};
use corosensei::{Coroutine, CoroutineResult, Yielder, stack::DefaultStack};
use std::any::Any;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};

type Thread = Coroutine<(), (), (), DefaultStack>;

/// Runs block `index` and returns how often its threads were resumed.
#[track_caller]
pub(crate) fn run(simulator: &Simulator, launch: &Launch<'_>, index: u32) -> Result<u64, Fault> {
    let context = Context::new(simulator, launch, index);
    let stack_error = |error: std::io::Error| {
        let message = format!("no memory for the threads' stacks: {error}");
        context.fault(Location::caller(), FaultKind::InvalidLaunch(message))
    };
    let stacks = stacks::take(launch.block as usize, simulator.stack_bytes).map_err(stack_error)?;
    let mut threads: Vec<Thread> = stacks
        .into_iter()
        .map(|s| spawn(s, &context, launch))
        .collect();
    context.enter();
    let result = resume_all(&context, &mut threads);
    for thread in &mut threads {
        if thread.started() && !thread.done() {
            thread.force_unwind();
        }
    }
    Context::leave();
    let (done, _): (Vec<_>, Vec<_>) = threads.into_iter().partition(Thread::done);
    stacks::give(
        done.into_iter().map(Thread::into_stack),
        simulator.stack_bytes,
    );
    result
}

fn resume_all(context: &Context, threads: &mut [Thread]) -> Result<u64, Fault> {
    let mut switches = 0;
    while let Some(thread) = context.next() {
        switches += 1;
        if let CoroutineResult::Return(()) = threads[thread as usize].resume(()) {
            context.finish();
            if let Some(fault) = context.take_fault() {
                return Err(fault);
            }
        }
    }
    context.unfinished().map_or(Ok(switches), Err)
}

fn spawn(stack: DefaultStack, context: &Context, launch: &Launch<'_>) -> Thread {
    let body = launch.body;
    let main = move |yielder: &Yielder<(), ()>, ()| {
        context.set_yielder(yielder);
        if let Err(payload) = catch_unwind(AssertUnwindSafe(body)) {
            report(context, payload);
        }
    };
    // SAFETY: `run` drops every coroutine before it returns, while the borrows still live.
    unsafe { Coroutine::with_stack_unchecked(stack, main) }
}

/// Turns a panic into a fault; lets the simulator's own unwinding pass.
fn report(context: &Context, payload: Box<dyn Any + Send>) {
    if payload.is::<Aborted>() {
        return;
    }
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    if let Some(text) = text {
        let kind = FaultKind::Panic(text.to_string());
        context.set_fault(context.fault(Location::caller(), kind));
    } else {
        std::panic::resume_unwind(payload);
    }
}
