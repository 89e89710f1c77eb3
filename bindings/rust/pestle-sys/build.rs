//! With the feature `bundled`: compiles the CPU library and links it in. Else nothing.
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=PESTLE_SOURCE_DIR");
    println!("cargo:rerun-if-env-changed=PESTLE_BUILD_DIR");
    // docs.rs has neither CMake nor Highway, and links nothing.
    if env::var_os("CARGO_FEATURE_BUNDLED").is_none() || env::var_os("DOCS_RS").is_some() {
        return;
    }
    // A build tree that is there already, or one of our own.
    let build = match env::var_os("PESTLE_BUILD_DIR") {
        Some(path) => PathBuf::from(path),
        None => compile(&source()),
    };
    println!("cargo:rustc-link-search=native={}", build.join("lib").display());
    println!("cargo:rustc-link-lib=static=pestle");
    for library in ["hwy", "stdc++", "pthread"] {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
}

/// The build folder with the static library in `lib`.
fn compile(source: &Path) -> PathBuf {
    for folder in ["core", "ops", "backends/cpu"] {
        println!("cargo:rerun-if-changed={}", source.join(folder).display());
    }
    let build = PathBuf::from(env::var_os("OUT_DIR").unwrap()).join("build");
    let settings = ["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DPESTLE_TESTS=OFF"];
    run(Command::new("cmake").arg("-S").arg(source).arg("-B").arg(&build).args(settings));
    let mut compile = Command::new("cmake");
    compile.arg("--build").arg(&build).args(["--target", "pestle_static"]);
    if let Some(jobs) = env::var_os("NUM_JOBS") {
        compile.arg("-j").arg(jobs);
    }
    run(&mut compile);
    build
}

/// Pestle's sources: named by the environment, brought along by the package, or around this crate.
fn source() -> PathBuf {
    let crate_folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap());
    if let Some(path) = env::var_os("PESTLE_SOURCE_DIR") {
        return PathBuf::from(path);
    }
    let holds_it = |path: &Path| path.join("ops/ops.def").exists();
    [crate_folder.join("source"), crate_folder.join("../../..")]
        .into_iter()
        .find(|path| holds_it(path))
        .unwrap_or_else(|| {
            panic!("pestle-sys: no sources of Pestle here; set PESTLE_SOURCE_DIR to them")
        })
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| {
        panic!("pestle-sys: {command:?} did not start: {error}; bundled needs CMake and Ninja")
    });
    assert!(status.success(), "pestle-sys: {command:?} failed: {status}");
}
