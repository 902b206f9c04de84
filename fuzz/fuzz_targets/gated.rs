//! Arbitrary calls of the gated form on the CPU: `cargo +nightly-2026-05-20 fuzz run gated -- -max_len=600`.

#![no_main]

#[allow(dead_code)]
#[path = "../../tests/fuzz/arena.rs"]
mod arena;
#[path = "../../tests/fuzz/gated.rs"]
mod gated;
#[path = "../../tests/fuzz/judge.rs"]
mod judge;

use libfuzzer_sys::fuzz_target;

// The sanitizer does not follow the simulator's switches of stacks.
fuzz_target!(|data: &[u8]| {
    let _ = judge::run::<gated::Call>(data, false);
});
