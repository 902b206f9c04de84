//! Arbitrary calls on the CPU: `cargo +nightly-2026-05-20 fuzz run calls -- -max_len=600`.

#![no_main]

#[allow(dead_code)]
#[path = "../../tests/fuzz/arena.rs"]
mod arena;
#[path = "../../tests/fuzz/calls.rs"]
mod calls;
#[path = "../../tests/fuzz/judge.rs"]
mod judge;

use libfuzzer_sys::fuzz_target;

// The sanitizer does not follow the simulator's switches of stacks.
fuzz_target!(|data: &[u8]| {
    let _ = judge::run::<calls::Call>(data, false);
});
