//! What the tests of the checks share: a faulty kernel must be caught under every seed, at the
//! right place, and the mended one accepted.

#![allow(dead_code)]

use cake_rmsnorm_simt::{Fault, FaultKind, Launch, Memory, Simulator};

/// Seeds under which every kernel runs.
pub const SEEDS: std::ops::Range<u64> = 0..20;

/// Runs one launch of `body` under every seed, with fresh memory from `setup` each time.
pub fn run_all<S: Copy + Sync>(
    (grid, block, shared): (u32, u32, u32),
    setup: impl Fn(&mut Memory) -> S,
    body: impl Fn(S) + Sync,
) -> Vec<Result<(), Fault>> {
    let run = |seed| {
        let mut memory = Memory::new();
        let setting = setup(&mut memory);
        let kernel = || body(setting);
        let launch = Launch::new("kernel", grid, block, &kernel).shared_bytes(shared);
        Simulator::new()
            .seed(seed)
            .run(&mut memory, &[launch])
            .map(|_| ())
    };
    SEEDS.map(run).collect()
}

/// The mended kernel must pass under every seed.
#[track_caller]
pub fn accepted(results: Vec<Result<(), Fault>>) {
    for (seed, result) in results.into_iter().enumerate() {
        if let Err(fault) = result {
            panic!("seed {seed}: a right kernel was refused: {fault}");
        }
    }
}

/// The faulty kernel must be caught under every seed, at one of the marked lines.
#[track_caller]
pub fn caught(
    source: &str,
    marks: &[&str],
    results: Vec<Result<(), Fault>>,
    right: impl Fn(&FaultKind) -> bool,
) -> Vec<Fault> {
    let lines: Vec<u32> = marks.iter().map(|mark| line_of(source, mark)).collect();
    let fault = |(seed, result): (usize, Result<(), Fault>)| {
        let fault = result
            .err()
            .unwrap_or_else(|| panic!("seed {seed}: the fault was missed"));
        assert!(right(&fault.kind), "seed {seed}: another fault: {fault}");
        assert!(
            lines.contains(&fault.site.line()),
            "seed {seed}: not at {lines:?}: {fault}"
        );
        fault
    };
    results.into_iter().enumerate().map(fault).collect()
}

/// The line that ends with a comment `mark`.
pub fn line_of(source: &str, mark: &str) -> u32 {
    let comment = format!("// {mark}");
    let mut lines = source
        .lines()
        .zip(1..)
        .filter(|(line, _)| line.ends_with(&comment));
    let (_, line) = lines
        .next()
        .unwrap_or_else(|| panic!("no line is marked {mark}"));
    assert!(lines.next().is_none(), "two lines are marked {mark}");
    line
}
