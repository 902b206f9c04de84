//! Execution: coroutines for threads, one OS thread for all threads of a block.

mod access;
mod block;
mod context;
mod copies;
mod exchange;
mod grid;
mod mbarrier;
pub(crate) mod raw;
mod request;
mod run;
mod serve;
mod shared_history;
mod stacks;
mod stuck;
mod worker;

pub(crate) use context::{current, with_current};
pub(crate) use copies::Kind;
pub(crate) use request::Operation;
pub use request::Ordering;
pub(crate) use run::SHARED_BASE;

use crate::{Checks, Fault, FaultKind, Launch, Memory, Report, Simulator};
use grid::Grid;
use run::{Planned, Run};
use std::panic::Location;
use worker::Workers;

/// Threads of a launch that must be resident as a whole: more stacks than this do not fit the
/// number of mappings that an operating system allows a process.
const COOPERATIVE_THREADS: u64 = 24 << 10;

#[track_caller]
fn invalid(launch: &Launch<'_>, message: String) -> Fault {
    Fault {
        kernel: launch.name.to_string(),
        block: 0,
        thread: 0,
        site: Location::caller(),
        kind: Box::new(FaultKind::InvalidLaunch(message)),
    }
}

#[track_caller]
fn validate(launch: &Launch<'_>) -> Result<(), Fault> {
    let Launch {
        grid,
        block,
        shared_bytes,
        cooperative,
        ..
    } = *launch;
    let threads = u64::from(grid) * u64::from(block);
    let message = if block == 0 || block > 1024 || block % 32 != 0 {
        format!("{block} threads a block are not a multiple of 32 up to 1024")
    } else if grid == 0 {
        "the grid is empty".to_string()
    } else if shared_bytes > 1 << 20 {
        format!("{shared_bytes} bytes of shared memory are more than a mebibyte")
    } else if cooperative && threads > COOPERATIVE_THREADS {
        format!("{threads} threads cannot be resident together, only {COOPERATIVE_THREADS}")
    } else {
        return Ok(());
    };
    Err(invalid(launch, message))
}

fn plan<'r>(memory: &mut Memory, launches: &[Launch<'r>]) -> Result<Vec<Planned<'r>>, Fault> {
    let mut planned: Vec<Planned<'r>> = Vec::with_capacity(launches.len());
    for (index, &launch) in launches.iter().enumerate() {
        validate(&launch)?;
        let first_uid = memory.number_blocks(launch.grid);
        let first_uid = first_uid.ok_or_else(|| {
            invalid(
                &launch,
                "this memory has seen too many blocks: create a new one".to_string(),
            )
        })?;
        let before = planned.last().filter(|_| launch.dependent);
        planned.push(Planned {
            launch,
            first_uid,
            start_floor: before.map_or(first_uid, |before| before.start_floor),
            dependent: before.is_some(),
            has_dependent: launches.get(index + 1).is_some_and(|next| next.dependent),
        });
    }
    Ok(planned)
}

pub(crate) fn run(
    simulator: &Simulator<'_>,
    memory: &mut Memory,
    launches: &[Launch<'_>],
) -> Result<Report, Fault> {
    let launches = plan(memory, launches)?;
    let checks = simulator.checks == Checks::All;
    if !checks {
        memory.assume_written();
    }
    let blocks = launches
        .iter()
        .map(|planned| planned.launch.grid)
        .max()
        .unwrap_or(0);
    let run = Run {
        memory,
        launches,
        schedule: simulator.schedule,
        checks,
        stack_bytes: simulator.stack_bytes,
        mutation: simulator.mutation,
    };
    let most = run.schedule.resident.unwrap_or(blocks).min(blocks).max(1);
    let workers = simulator.workers.min(most as usize);
    std::thread::scope(|scope| {
        let workers = Workers::new(scope, &run, workers);
        Grid::new(&run, workers, simulator.on_block).execute()
    })
}
