//! Drawn cases against golden, on many threads.

use super::finding::Findings;
use super::{Opened, Stage, Where};
use crate::cli::cases::Reached;
use crate::cli::error::Result;
use cake_rmsnorm::cases::Case;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Seeds of the first cases, sizes and counts: on a GPU, and elsewhere.
const DRAWS: [(u64, usize, u64, u64); 2] = [(0, 4096, 10_000, 12), (1_000_000, 300_000, 500, 0)];
const MOST_THREADS: usize = 16;

/// Runs them.
pub fn run(stage: &Stage<'_>, findings: &mut Findings<'_>) -> Result<()> {
    let total = DRAWS.map(|(_, _, full, few)| stage.count(full, few));
    stage.progress.expect(total.iter().sum());
    for (seed, elements, full, few) in DRAWS {
        let count = stage.count(full, few);
        if count == 0 {
            continue;
        }
        let threads = match stage.args.device {
            Where::Cuda => thread::available_parallelism().map_or(1, usize::from),
            _ => 2,
        };
        let threads = threads.min(MOST_THREADS);
        let next = AtomicU64::new(0);
        let results = thread::scope(|scope| {
            let draw = || {
                let seeds = std::iter::from_fn(|| {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    stage.progress.advance(1);
                    (i < count).then_some(seed + i)
                });
                on_a_thread(stage.opened, elements, seeds)
            };
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(draw)).collect();
            let mut results = vec![draw()];
            let panicked = |_| Ok((0, vec!["a thread panicked".to_owned()]));
            results.extend(
                others
                    .into_iter()
                    .map(|it| it.join().unwrap_or_else(panicked)),
            );
            results
        });
        let (mut ran, mut failures) = (0, Vec::new());
        for result in results {
            match result {
                Ok((cases, found)) => {
                    ran += cases;
                    failures.extend(found);
                }
                Err(error) => failures.push(error.to_string()),
            }
        }
        let what = format!("drawn cases from seed {seed} on, up to {elements} elements a matrix");
        findings.judge(
            &what,
            [("cases", ran), ("threads", threads as u64)],
            &failures,
        )?;
    }
    Ok(())
}

/// The cases of these seeds: how many, and what is wrong with them.
fn on_a_thread(
    opened: &Opened,
    elements: usize,
    seeds: impl Iterator<Item = u64>,
) -> Result<(u64, Vec<String>)> {
    let device = opened.stream()?;
    let (mut cases, mut failures) = (0, Vec::new());
    for seed in seeds {
        let case = Case::from_seed(seed, elements);
        let found = case.run(&Reached(&*device));
        cases += 1;
        let broken = found.is_err();
        let wrong = found.unwrap_or_else(|error| vec![error.to_string()]);
        if !wrong.is_empty() {
            failures.push(format!("seed {seed}: {}", wrong.join(", ")));
        }
        if broken {
            // Other calls of a device that failed say nothing.
            break;
        }
    }
    Ok((cases, failures))
}
