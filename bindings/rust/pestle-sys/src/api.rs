use crate::bindings as c;
use core::ffi::{c_char, c_void, CStr};
use std::fmt;
use std::sync::OnceLock;

/// Why there is no library: one sentence for each place that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadError(pub(crate) String);

impl LoadError {
    /// For layers above this one, which may find out later that a library is too old.
    pub fn new(sentence: String) -> LoadError {
        LoadError(sentence)
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LoadError {}

macro_rules! functions {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the C ABI, as `pestle/pestle.h` documents them.
        #[derive(Clone, Copy)]
        pub struct Api {
            $(pub $name: unsafe extern "C" fn($($arg: $type),*) $(-> $result)?,)*
        }

        impl Api {
            /// The names of all functions.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            #[cfg(feature = "bundled")]
            fn linked() -> Api {
                Api { $($name: c::$name),* }
            }

            #[cfg(all(feature = "dlopen", not(feature = "bundled")))]
            fn from_library(library: &libloading::Library) -> Result<Api, libloading::Error> {
                // SAFETY: the types are those of the header, and the version is checked by the caller.
                unsafe {
                    Ok(Api {
                        $($name: *library.get(concat!(stringify!($name), "\0").as_bytes())?),*
                    })
                }
            }
        }

        // The compiler holds this list to bindgen's declarations.
        $(const _: unsafe extern "C" fn($($type),*) $(-> $result)? = c::$name;)*
    };
}

functions! {
    fn pestle_abi_version() -> u32;
    fn pestle_version() -> *const c_char;
    fn pestle_status_name(status: c::pestle_status) -> *const c_char;
    fn pestle_last_error() -> *const c_char;
    fn pestle_set_threads(count: i32);
    fn pestle_set_cpu_isa(name: *const c_char) -> c::pestle_status;
    fn pestle_load_tuned(path: *const c_char) -> c::pestle_status;
    fn pestle_op_count() -> usize;
    fn pestle_op_at(index: usize) -> *const c::pestle_op;
    fn pestle_find_op(name: *const c_char) -> *const c::pestle_op;
    fn pestle_call(op: *const c::pestle_op, args: *const c::pestle_arg, count: usize, options: *const c::pestle_call_options) -> c::pestle_status;
    fn pestle_choose(op: *const c::pestle_op, args: *const c::pestle_arg, count: usize, options: *const c::pestle_call_options, implementation: *mut *const c_char, workspace_bytes: *mut i64) -> c::pestle_status;
    fn pestle_why(op: *const c::pestle_op, args: *const c::pestle_arg, count: usize, json: *mut *mut c_char) -> c::pestle_status;
    fn pestle_reference(op: *const c::pestle_op, args: *const c::pestle_arg, count: usize, sum_magnitudes: i32) -> c::pestle_status;
    fn pestle_op_name(op: *const c::pestle_op) -> *const c_char;
    fn pestle_op_doc(op: *const c::pestle_op) -> *const c_char;
    fn pestle_op_arg_count(op: *const c::pestle_op) -> usize;
    fn pestle_op_arg(op: *const c::pestle_op, index: usize, info: *mut c::pestle_arg_info) -> c::pestle_status;
    fn pestle_op_impl_count(op: *const c::pestle_op) -> usize;
    fn pestle_op_impl(op: *const c::pestle_op, index: usize, info: *mut c::pestle_impl_info) -> c::pestle_status;
    fn pestle_op_json(op: *const c::pestle_op, json: *mut *mut c_char) -> c::pestle_status;
    fn pestle_free(memory: *mut c_void);
    fn pestle_file(verb: *const c_char, options_json: *const c_char, progress: c::pestle_progress, user: *mut c_void, report: *mut *mut c_char) -> c::pestle_status;
    fn pestle_save_tensors(path: *const c_char, tensors: *const c::pestle_file_tensor, count: usize, options_json: *const c_char, progress: c::pestle_progress, user: *mut c_void) -> c::pestle_status;
    fn pestle_list_tensors(path: *const c_char, json: *mut *mut c_char) -> c::pestle_status;
    fn pestle_load_tensors(path: *const c_char, tensors: *const c::pestle_file_tensor, count: usize, progress: c::pestle_progress, user: *mut c_void) -> c::pestle_status;
}

static API: OnceLock<Result<Api, LoadError>> = OnceLock::new();

/// The library's functions; found, or linked in, once for the process.
pub fn api() -> Result<&'static Api, LoadError> {
    API.get_or_init(|| first().and_then(new_enough)).as_ref().map_err(Clone::clone)
}

/// The functions of the library at `path`, from now on for the whole process. An error if the process
/// has looked for a library before.
#[cfg(all(feature = "dlopen", not(feature = "bundled")))]
pub fn load(path: &std::path::Path) -> Result<&'static Api, LoadError> {
    let mut is_first = false;
    let found = API.get_or_init(|| {
        is_first = true;
        crate::find::open_at(path, Api::from_library).and_then(new_enough)
    });
    if !is_first {
        let path = path.display();
        return Err(LoadError(format!(
            "{path} was not loaded: this process has a library already"
        )));
    }
    found.as_ref().map_err(Clone::clone)
}

fn new_enough(api: Api) -> Result<Api, LoadError> {
    // SAFETY: takes nothing and returns a number.
    let version = unsafe { (api.pestle_abi_version)() };
    if version >= c::PESTLE_ABI_VERSION {
        return Ok(api);
    }
    // SAFETY: the library's version is a string that lives as long as it does.
    let name = unsafe { CStr::from_ptr((api.pestle_version)()) };
    Err(LoadError(format!(
        "libpestle {} has version {version} of the C ABI, and pestle-sys needs {} or a later one",
        name.to_string_lossy(),
        c::PESTLE_ABI_VERSION
    )))
}

#[cfg(feature = "bundled")]
fn first() -> Result<Api, LoadError> {
    Ok(Api::linked())
}

#[cfg(all(feature = "dlopen", not(feature = "bundled")))]
fn first() -> Result<Api, LoadError> {
    crate::find::open(Api::from_library)
}

#[cfg(not(any(feature = "dlopen", feature = "bundled")))]
fn first() -> Result<Api, LoadError> {
    Err(crate::find::nowhere_to_look())
}
