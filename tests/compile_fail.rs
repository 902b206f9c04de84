//! What the types refuse, by the compiler's messages.

#[test]
fn what_the_types_refuse() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
