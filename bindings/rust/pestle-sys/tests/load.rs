//! A library by its path: a process has one, so this file has one test.
#![cfg(all(feature = "dlopen", not(feature = "bundled")))]
use std::path::Path;

#[test]
fn a_path_is_the_only_place_and_comes_first() {
    let nowhere = Path::new("/no/such/libpestle.so");
    let Err(error) = pestle_sys::load(nowhere) else { panic!("there is no such file") };
    assert!(error.to_string().contains("/no/such/libpestle.so: no such file"), "{error}");
    // What was looked for stays looked for: no other library takes its place unnoticed.
    assert!(pestle_sys::api().is_err());
    let Err(error) = pestle_sys::load(nowhere) else { panic!("the process has looked before") };
    assert!(error.to_string().contains("already"), "{error}");
}
