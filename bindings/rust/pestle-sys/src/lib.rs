//! Pestle's C ABI.
//!
//! [`api`] gives the functions of the library. They are found when they are first asked for:
//!
//! 1. `bundled` (a feature): linked in, nothing is looked for;
//! 2. the file that `load` was given, before anything asked for a function;
//! 3. the file that the environment's `PESTLE_LIBRARY` names;
//! 4. `libpestle.so` beside the executable, in `../lib` from it, or one folder above;
//! 5. the build tree that these sources lie in (`build/lib`), if they lie in one;
//! 6. whatever the system's loader finds.
//!
//! Types and declarations are bindgen's ([`bindings`]), made by `tools/rust_bindings.sh` and held to
//! `include/pestle/pestle.h` by a test. The crate `pestle` is the safe layer.

mod api;
#[cfg(any(feature = "dlopen", not(feature = "bundled")))]
mod find;

/// What bindgen makes of `pestle/pestle.h`.
#[allow(non_camel_case_types, clippy::missing_safety_doc)]
pub mod bindings;

#[cfg(all(feature = "dlopen", not(feature = "bundled")))]
pub use api::load;
pub use api::{api, Api, LoadError};
pub use bindings::*;
