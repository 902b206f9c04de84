//! Arbitrary calls, from fixed seeds. `fuzz/` runs the same functions under a fuzzer.

mod arena;
mod calls;
mod gated;
mod judge;

use arena::Outcome;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::collections::HashMap;
use std::mem::{Discriminant, discriminant};

/// Bytes that a call is drawn from: more than it takes.
const BYTES: usize = 600;
/// Of how many calls one is made by the kernels as well.
const SIMULATED: u64 = 50;

/// What became of many calls.
#[derive(Debug, Default)]
struct Totals {
    ran: u32,
    /// With an output in the place of an input, or in another tensor's gaps.
    shared: u32,
    elsewhere: u32,
    refusals: HashMap<Discriminant<cake_rmsnorm::Error>, u32>,
}

impl Totals {
    fn of(seeds: u64, run: fn(&[u8], bool) -> Outcome) -> Self {
        let mut totals = Self::default();
        for seed in 0..seeds {
            let mut data = [0; BYTES];
            ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut data);
            let simulate = seed.is_multiple_of(SIMULATED);
            // Told apart from others in what a failure prints.
            match std::panic::catch_unwind(|| run(&data, simulate)) {
                Ok(Outcome::Ran { shares }) => {
                    totals.ran += 1;
                    totals.shared += u32::from(shares);
                }
                Ok(Outcome::Refused(error)) => {
                    *totals.refusals.entry(discriminant(&error)).or_default() += 1;
                }
                Ok(Outcome::Elsewhere) => totals.elsewhere += 1,
                Err(_) => panic!("seed {seed}"),
            }
        }
        println!("{totals:?}");
        totals
    }

    /// The test looks at what it says it does.
    fn reach(&self, ran: u32, shared: u32, refusals: usize) {
        assert!(self.ran > ran, "{} ran", self.ran);
        assert!(self.shared > shared, "{} share memory", self.shared);
        let kinds = self.refusals.len();
        assert!(kinds >= refusals, "{kinds} kinds of refusals");
    }
}

#[test]
fn arbitrary_calls_are_refused_or_right() {
    Totals::of(60_000, judge::run::<calls::Call>).reach(10_000, 500, 18);
}

#[test]
fn arbitrary_gated_calls_are_refused_or_right() {
    Totals::of(60_000, judge::run::<gated::Call>).reach(15_000, 2_000, 14);
}
