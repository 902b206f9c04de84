//! Arbitrary calls, from fixed seeds. `fuzz/` runs the same function under a fuzzer.

mod calls;

use calls::{Outcome, run};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::collections::HashMap;
use std::mem::{Discriminant, discriminant};

/// Bytes that a call is drawn from: more than it takes.
const BYTES: usize = 600;

#[test]
fn arbitrary_calls_are_refused_or_right() {
    let (mut ran, mut in_place, mut elsewhere) = (0, 0, 0);
    let mut refusals: HashMap<Discriminant<_>, u32> = HashMap::new();
    for seed in 0..60_000 {
        let mut data = [0; BYTES];
        ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut data);
        // Told apart from others in what a failure prints.
        match std::panic::catch_unwind(|| run(&data)) {
            Ok(Outcome::Ran { in_place: place }) => {
                ran += 1;
                in_place += u32::from(place);
            }
            Ok(Outcome::Refused(error)) => {
                *refusals.entry(discriminant(&error)).or_default() += 1;
            }
            Ok(Outcome::Elsewhere) => elsewhere += 1,
            Err(_) => panic!("seed {seed}"),
        }
    }
    println!("{ran} ran, {in_place} in place, {elsewhere} elsewhere, refused: {refusals:?}");
    // The test looks at what it says it does.
    assert!(ran > 10_000, "{ran} ran");
    assert!(in_place > 500, "{in_place} in place");
    assert!(refusals.len() >= 18, "{} kinds of refusals", refusals.len());
}
