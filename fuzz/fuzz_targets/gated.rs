//! Arbitrary calls of the gated form on the CPU: `cargo +nightly fuzz run gated -- -max_len=600`.

#![no_main]

#[allow(dead_code)]
#[path = "../../tests/fuzz/arena.rs"]
mod arena;
#[path = "../../tests/fuzz/gated.rs"]
mod gated;

use libfuzzer_sys::fuzz_target;

// The sanitizer does not follow the simulator's switches of stacks.
fuzz_target!(|data: &[u8]| {
    let _ = gated::run(data, false);
});
