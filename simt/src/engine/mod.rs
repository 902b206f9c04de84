//! Execution: coroutines for threads, one block at a time on one OS thread.

mod block;
mod context;
mod stacks;

pub(crate) use context::{Aborted, Context, SHARED_BASE, current};

use crate::{Fault, FaultKind, Launch, Memory, Report, Simulator};
use std::panic::Location;

#[track_caller]
fn invalid(launch: &Launch<'_>, message: String) -> Fault {
    Fault {
        kernel: launch.name.to_string(),
        block: 0,
        thread: 0,
        site: Location::caller(),
        kind: FaultKind::InvalidLaunch(message),
    }
}

pub(crate) fn run(
    simulator: &Simulator,
    _memory: &mut Memory,
    launches: &[Launch<'_>],
) -> Result<Report, Fault> {
    let mut report = Report::default();
    for launch in launches {
        if launch.block == 0 || launch.block > 1024 || launch.block % 32 != 0 {
            let message = format!(
                "{} threads a block: not a multiple of 32 up to 1024",
                launch.block
            );
            return Err(invalid(launch, message));
        }
        if launch.grid == 0 {
            return Err(invalid(launch, "an empty grid".to_string()));
        }
        for block in 0..launch.grid {
            report.switches += block::run(simulator, launch, block)?;
            report.blocks += 1;
        }
    }
    Ok(report)
}
