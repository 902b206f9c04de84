//! Arbitrary calls on the CPU: `cargo +nightly fuzz run calls -- -max_len=600`.

#![no_main]

#[path = "../../tests/fuzz/calls.rs"]
mod calls;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = calls::run(data);
});
