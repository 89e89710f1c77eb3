//! What the compiler says of calls that cannot be right.
//! `TRYBUILD=overwrite cargo test -p pestle --test compile_fail` writes the expected texts anew.
//! In a build with the library linked in nothing of this differs, so it is not compiled there again.
#![cfg(feature = "dlopen")]

#[test]
fn calls_that_cannot_be_right_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
