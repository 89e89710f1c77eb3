//! The committed bindings are of the header beside them, and of a library that is there.
use std::path::Path;

/// A header without comments and white space.
fn bare(text: &str) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("/*") {
        result += &rest[..start];
        let end = rest[start..].find("*/").expect("a comment ends");
        rest = &rest[start + end + 2..];
    }
    result += rest;
    result.retain(|c| !c.is_whitespace());
    result
}

#[test]
fn bindings_are_of_this_header() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../include/pestle/pestle.h");
    let header = std::fs::read_to_string(&path).expect("the header of this tree");
    let bound = include_str!("../src/header.txt");
    assert!(
        bare(&header) == bound,
        "{} is not the header that src/bindings.rs was made of: run tools/rust_bindings.sh and \
         bring src/api.rs up to date",
        path.display()
    );
}

#[test]
fn every_function_of_the_header_is_in_the_api() {
    let bound = include_str!("../src/header.txt");
    let mut declared: Vec<&str> = bound
        .split("PESTLE_API")
        .skip(1)
        .filter_map(|part| {
            let end = part.find('(')?;
            let start = part[..end].rfind("pestle_")?;
            Some(&part[start..end])
        })
        .collect();
    declared.sort_unstable();
    let mut known = pestle_sys::Api::NAMES.to_vec();
    known.sort_unstable();
    assert_eq!(declared, known);
}

#[test]
#[cfg(any(feature = "dlopen", feature = "bundled"))]
fn the_library_is_found_and_has_ops() {
    let api = pestle_sys::api().unwrap();
    // SAFETY: no arguments.
    assert!(unsafe { (api.pestle_op_count)() } > 50);
    // SAFETY: a string with its end; ops live as long as the library.
    unsafe {
        let op = (api.pestle_find_op)(c"hadamard".as_ptr());
        assert!(!op.is_null());
        assert_eq!((api.pestle_op_arg_count)(op), 3);
        assert!((api.pestle_find_op)(c"no_such_op".as_ptr()).is_null());
    }
}
