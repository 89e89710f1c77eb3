use crate::error::{check, Error, Result};
use pestle_sys as sys;
use std::ffi::{c_char, CStr, CString};
use std::sync::OnceLock;

pub(crate) fn c_text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::Text(format!("{text:?} has a zero byte in it")))
}

/// A string that the library owns for as long as it lives.
fn borrowed(text: *const c_char) -> &'static str {
    if text.is_null() {
        return "";
    }
    // SAFETY: the table's strings are constants of the library, which is never unloaded.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("")
}

/// A string that the library allocated for us.
pub(crate) fn owned(api: &sys::Api, text: *mut c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: a string with its end, given back by pestle_free.
    unsafe {
        let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
        (api.pestle_free)(text.cast());
        copy
    }
}

/// An op by name, looked up once.
pub(crate) struct OpHandle {
    name: &'static CStr,
    op: OnceLock<Handle>,
}

struct Handle(*const sys::pestle_op);
// SAFETY: ops are constants of the library.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl OpHandle {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        OpHandle { name, op: OnceLock::new() }
    }

    pub(crate) fn get(&self, api: &sys::Api) -> Result<*const sys::pestle_op> {
        if let Some(handle) = self.op.get() {
            return Ok(handle.0);
        }
        // SAFETY: a string with its end.
        let op = unsafe { (api.pestle_find_op)(self.name.as_ptr()) };
        if op.is_null() {
            return Err(Error::Library(missing(&self.name.to_string_lossy())));
        }
        Ok(self.op.get_or_init(|| Handle(op)).0)
    }
}

fn missing(name: &str) -> sys::LoadError {
    sys::LoadError::new(format!("this libpestle has no op '{name}': it is older than the crate"))
}

/// The library's version.
pub fn version() -> Result<&'static str> {
    // SAFETY: no arguments.
    Ok(borrowed(unsafe { (sys::api()?.pestle_version)() }))
}

/// CPU threads of one call, the caller included; 0 means one per core.
pub fn set_threads(count: u16) -> Result<()> {
    // SAFETY: a number.
    unsafe { (sys::api()?.pestle_set_threads)(i32::from(count)) };
    Ok(())
}

/// Narrows CPU code to "scalar", "avx2", "avx512" or "best". For tests.
pub fn set_cpu_isa(name: &str) -> Result<()> {
    let (api, name) = (sys::api()?, c_text(name)?);
    // SAFETY: a string with its end.
    check(api, unsafe { (api.pestle_set_cpu_isa)(name.as_ptr()) })
}

/// Choices that `pestle tune` measured on a GPU. Not while other threads run ops.
///
/// # Safety
/// No other thread may run an op meanwhile.
pub unsafe fn load_tuned(path: &str) -> Result<()> {
    let (api, path) = (sys::api()?, c_text(path)?);
    // SAFETY: a string with its end; the caller keeps other threads away.
    check(api, unsafe { (api.pestle_load_tuned)(path.as_ptr()) })
}

/// One op of the library's table.
#[derive(Debug, Clone)]
pub struct Op {
    pub name: &'static str,
    pub doc: &'static str,
    pub arguments: Vec<Argument>,
    pub implementations: Vec<&'static str>,
}

/// One argument of an op, in the notation of `docs/contract.md`.
#[derive(Debug, Clone)]
pub struct Argument {
    pub name: &'static str,
    pub is_output: bool,
    pub is_optional: bool,
    pub dtypes: &'static str,
    pub shape: &'static str,
    pub choices: &'static str,
    pub present_if: &'static str,
    pub default: f64,
    pub doc: &'static str,
}

/// The ops that this library has.
pub fn table() -> Result<Vec<Op>> {
    let api = sys::api()?;
    // SAFETY: no arguments.
    let count = unsafe { (api.pestle_op_count)() };
    (0..count).map(|index| op(api, index)).collect()
}

/// All that the library says of an op - its contract, whether it has a gradient and by what, its
/// implementations, its cases - as `pestle ops NAME --json` prints it.
pub fn contract(name: &str) -> Result<serde_json::Value> {
    let (api, c_name) = (sys::api()?, c_text(name)?);
    let mut json = std::ptr::null_mut();
    // SAFETY: a string with its end; the op lives as long as the library.
    unsafe {
        let op = (api.pestle_find_op)(c_name.as_ptr());
        if op.is_null() {
            return Err(Error::Text(format!("there is no op '{name}'")));
        }
        check(api, (api.pestle_op_json)(op, &mut json))?;
    }
    let text = owned(api, json);
    serde_json::from_str(&text).map_err(|error| Error::Text(format!("{error} in {text}")))
}

fn op(api: &sys::Api, index: usize) -> Result<Op> {
    // SAFETY: an index within the table; the op lives as long as the library.
    let (op, arguments, implementations) = unsafe {
        let op = (api.pestle_op_at)(index);
        (op, (api.pestle_op_arg_count)(op), (api.pestle_op_impl_count)(op))
    };
    Ok(Op {
        // SAFETY: as above.
        name: borrowed(unsafe { (api.pestle_op_name)(op) }),
        // SAFETY: as above.
        doc: borrowed(unsafe { (api.pestle_op_doc)(op) }),
        arguments: (0..arguments).map(|i| argument(api, op, i)).collect::<Result<_>>()?,
        implementations: (0..implementations)
            .map(|i| implementation(api, op, i))
            .collect::<Result<_>>()?,
    })
}

fn argument(api: &sys::Api, op: *const sys::pestle_op, index: usize) -> Result<Argument> {
    // SAFETY: a plain struct of numbers and pointers, for which zero is a value.
    let mut info: sys::pestle_arg_info = unsafe { std::mem::zeroed() };
    info.size = size_of::<sys::pestle_arg_info>() as u32;
    // SAFETY: an op of the table, an index within it, and a struct of ours.
    check(api, unsafe { (api.pestle_op_arg)(op, index, &mut info) })?;
    Ok(Argument {
        name: borrowed(info.name),
        is_output: info.is_output != 0,
        is_optional: info.is_optional != 0,
        dtypes: borrowed(info.dtypes),
        shape: borrowed(info.shape),
        choices: borrowed(info.choices),
        present_if: borrowed(info.present_if),
        default: info.default_value,
        doc: borrowed(info.doc),
    })
}

fn implementation(api: &sys::Api, op: *const sys::pestle_op, index: usize) -> Result<&'static str> {
    // SAFETY: a plain struct of numbers and pointers, for which zero is a value.
    let mut info: sys::pestle_impl_info = unsafe { std::mem::zeroed() };
    info.size = size_of::<sys::pestle_impl_info>() as u32;
    // SAFETY: an op of the table, an index within it, and a struct of ours.
    check(api, unsafe { (api.pestle_op_impl)(op, index, &mut info) })?;
    Ok(borrowed(info.id))
}
