//! The examples do what docs/playground.md says.

use std::process::Command;

fn output(program: &str) -> String {
    let output = Command::new(program).output().expect("the example runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("the example prints text")
}

#[test]
fn vector_add_is_right() {
    assert_eq!(
        output(env!("CARGO_BIN_EXE_vector_add")),
        "1000 sums are right; 8 blocks ran\n"
    );
}

#[test]
fn block_sum_is_right() {
    assert!(output(env!("CARGO_BIN_EXE_block_sum")).starts_with("5 sums are right under 20"));
}

#[test]
fn the_race_is_found() {
    let text = output(env!("CARGO_BIN_EXE_race"));
    assert!(text.contains("with checks 20 of 20 are refused"), "{text}");
    assert!(text.contains("data race: read at shared address"), "{text}");
    assert!(text.contains("write by block 0, thread 63"), "{text}");
}
