//! Whole files: what the commands `pestle quantize`, `dequantize`, `inspect` and `diff` do.
//! Options and reports are the JSON objects of `docs/files.md`.
use crate::error::{check, Error, Result};
use crate::library::{c_text, owned};
use pestle_sys as sys;
use serde_json::{json, Value};
use std::any::Any;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::ops::ControlFlow;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::path::Path;
use std::ptr::null_mut;

/// A piece of work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    pub stage: &'a str,
    pub done_bytes: u64,
    pub total_bytes: u64,
}

/// Called between pieces of work, from any thread but never from two at once; `Break` stops the job
/// with nothing half-written left.
pub type OnProgress<'a> = &'a mut (dyn FnMut(Progress<'_>) -> ControlFlow<()> + Send);

/// Goes on to the end and tells nobody.
pub fn quietly(_: Progress<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Quantises a model to `format`, as `pestle quantize` does; `options` are those of `docs/files.md`
/// besides, or null. Gives the report.
pub fn quantize_file(
    input: &Path,
    output: &Path,
    format: &str,
    options: Value,
    on_progress: OnProgress<'_>,
) -> Result<Value> {
    let given = json!({"input": text_of(input)?, "output": text_of(output)?, "format": format});
    file_job("quantize", joined(given, options)?, on_progress)
}

/// Decodes a quantised model to floats.
pub fn dequantize_file(
    input: &Path,
    output: &Path,
    options: Value,
    on_progress: OnProgress<'_>,
) -> Result<Value> {
    let given = json!({"input": text_of(input)?, "output": text_of(output)?});
    file_job("dequantize", joined(given, options)?, on_progress)
}

/// What is in a file.
pub fn inspect_file(input: &Path) -> Result<Value> {
    file_job("inspect", json!({"input": text_of(input)?}), &mut quietly)
}

/// How far the weights of `b` are from those of `a`.
pub fn diff_files(a: &Path, b: &Path, on_progress: OnProgress<'_>) -> Result<Value> {
    file_job("diff", json!({"a": text_of(a)?, "b": text_of(b)?}), on_progress)
}

fn text_of(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| Error::Text(format!("{} is not UTF-8", path.display())))
}

fn joined(mut given: Value, options: Value) -> Result<Value> {
    match (&mut given, options) {
        (_, Value::Null) => Ok(given),
        (Value::Object(to), Value::Object(from)) => {
            for (key, value) in from {
                if to.contains_key(&key) {
                    return Err(Error::Text(format!("option '{key}' is an argument already")));
                }
                to.insert(key, value);
            }
            Ok(given)
        }
        (_, other) => Err(Error::Text(format!("options must be an object, not {other}"))),
    }
}

/// A progress function on its way through C, and the panic that it may end in.
struct Watcher<'a> {
    on_progress: OnProgress<'a>,
    panic: Option<Box<dyn Any + Send>>,
}

unsafe extern "C" fn watch(
    user: *mut c_void,
    stage: *const c_char,
    done: u64,
    total: u64,
) -> c_int {
    // SAFETY: what file_job passed, used by one call at a time; the stage is a string with its end.
    let (watcher, stage) = unsafe { (&mut *user.cast::<Watcher<'_>>(), CStr::from_ptr(stage)) };
    let stage = stage.to_string_lossy();
    let told = Progress { stage: &stage, done_bytes: done, total_bytes: total };
    match catch_unwind(AssertUnwindSafe(|| (watcher.on_progress)(told))) {
        Ok(ControlFlow::Continue(())) => 0,
        Ok(ControlFlow::Break(())) => 1,
        Err(panic) => {
            watcher.panic = Some(panic);
            1
        }
    }
}

fn file_job(verb: &str, options: Value, on_progress: OnProgress<'_>) -> Result<Value> {
    let api = sys::api()?;
    let (verb, options) = (c_text(verb)?, c_text(&options.to_string())?);
    let mut watcher = Watcher { on_progress, panic: None };
    let user = std::ptr::from_mut(&mut watcher).cast();
    let mut report = null_mut();
    // SAFETY: strings with their ends; the watcher lives through the call.
    let status = unsafe {
        (api.pestle_file)(verb.as_ptr(), options.as_ptr(), Some(watch), user, &mut report)
    };
    let report = owned(api, report);
    if let Some(panic) = watcher.panic {
        resume_unwind(panic);
    }
    check(api, status)?;
    serde_json::from_str(&report).map_err(|error| Error::Text(format!("{error} in {report}")))
}
