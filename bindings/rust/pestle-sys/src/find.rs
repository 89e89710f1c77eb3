//! Where libpestle may be.
use crate::LoadError;

#[cfg(not(feature = "dlopen"))]
pub(crate) fn nowhere_to_look() -> LoadError {
    LoadError(
        "pestle-sys was compiled with neither the feature dlopen nor bundled, so it has no library"
            .into(),
    )
}

#[cfg(feature = "dlopen")]
mod dlopen {
    use super::LoadError;
    use crate::Api;
    use libloading::Library;
    use std::path::{Path, PathBuf};

    const FILE: &str = if cfg!(target_os = "macos") {
        "libpestle.dylib"
    } else if cfg!(windows) {
        "pestle.dll"
    } else {
        "libpestle.so"
    };

    /// Files that are tried in turn; one without a folder is left to the system's loader.
    fn places(named: Option<PathBuf>, executable: Option<&Path>) -> Vec<PathBuf> {
        if let Some(path) = named {
            return vec![path]; // named: that one or none
        }
        let folder = executable.and_then(Path::parent);
        let beside = folder.into_iter().flat_map(|folder| {
            [folder.join(FILE), folder.join("../lib").join(FILE), folder.join("..").join(FILE)]
        });
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../build/lib").join(FILE);
        beside.chain([tree, PathBuf::from(FILE)]).collect()
    }

    pub(crate) fn open(
        functions: impl Fn(&Library) -> Result<Api, libloading::Error>,
    ) -> Result<Api, LoadError> {
        let named = std::env::var_os("PESTLE_LIBRARY").map(PathBuf::from);
        let executable = std::env::current_exe().ok();
        first_of(places(named, executable.as_deref()), functions)
    }

    pub(crate) fn open_at(
        path: &Path,
        functions: impl Fn(&Library) -> Result<Api, libloading::Error>,
    ) -> Result<Api, LoadError> {
        first_of(vec![path.to_path_buf()], functions)
    }

    fn first_of(
        places: Vec<PathBuf>,
        functions: impl Fn(&Library) -> Result<Api, libloading::Error>,
    ) -> Result<Api, LoadError> {
        let mut tried = String::from("no libpestle: set PESTLE_LIBRARY to its path; tried");
        for path in places {
            if path.components().count() > 1 && !path.exists() {
                tried += &format!("\n  {}: no such file", path.display());
                continue;
            }
            // SAFETY: loading runs the library's initialisers, which are this project's own.
            let found = unsafe { Library::new(&path) }
                .and_then(|library| functions(&library).map(|api| (library, api)));
            match found {
                Ok((library, api)) => {
                    std::mem::forget(library); // its functions are used until the process ends
                    return Ok(api);
                }
                Err(error) => tried += &format!("\n  {}: {error}", path.display()),
            }
        }
        Err(LoadError(tried))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_named_library_is_the_only_place() {
            let named = PathBuf::from("/there/libpestle.so");
            assert_eq!(places(Some(named.clone()), Some(Path::new("/bin/x"))), [named]);
        }

        #[test]
        fn else_beside_the_executable_first_and_the_loader_last() {
            let found = places(None, Some(Path::new("/opt/app/bin/x")));
            assert_eq!(found[0], Path::new("/opt/app/bin").join(FILE));
            assert_eq!(found.last().unwrap(), Path::new(FILE));
            assert!(found.iter().any(|path| path.ends_with(Path::new("build/lib").join(FILE))));
        }
    }
}

#[cfg(feature = "dlopen")]
pub(crate) use dlopen::open;
#[cfg(all(feature = "dlopen", not(feature = "bundled")))]
pub(crate) use dlopen::open_at;
