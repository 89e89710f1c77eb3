use crate::error::{check, Error, Result};
use crate::library::{owned, OpHandle};
use crate::view::{Raw, View, ViewMut};
use crate::workspace::{Stream, Workspace};
use pestle_sys as sys;
use std::cell::RefCell;
use std::ffi::{c_char, CStr};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

/// One argument. Views are borrowed for as long as the call lives, so pointers to them hold.
#[derive(Clone, Copy)]
enum Value {
    Absent,
    Tensor(*const Raw),
    List(*const Raw, usize),
    Int(i64),
    Float(f64),
    Flag(bool),
    Choice(&'static CStr),
}

/// What becomes a value of an argument.
pub(crate) trait IntoValue {
    fn put(self, slot: &mut Slot);
}

pub(crate) struct Slot(Value);

impl IntoValue for &View<'_> {
    fn put(self, slot: &mut Slot) {
        slot.0 = Value::Tensor(&self.raw);
    }
}
impl IntoValue for &mut ViewMut<'_> {
    fn put(self, slot: &mut Slot) {
        slot.0 = Value::Tensor(&self.raw);
    }
}
impl IntoValue for &[View<'_>] {
    fn put(self, slot: &mut Slot) {
        slot.0 = Value::List(self.as_ptr().cast(), self.len()); // View is a transparent Raw
    }
}
impl IntoValue for &mut [ViewMut<'_>] {
    fn put(self, slot: &mut Slot) {
        slot.0 = Value::List(self.as_ptr().cast(), self.len()); // so is ViewMut
    }
}
impl IntoValue for i64 {
    fn put(self, slot: &mut Slot) {
        slot.0 = Value::Int(self);
    }
}
impl IntoValue for f64 {
    fn put(self, slot: &mut Slot) {
        slot.0 = Value::Float(self);
    }
}
impl IntoValue for bool {
    fn put(self, slot: &mut Slot) {
        slot.0 = Value::Flag(self);
    }
}
impl IntoValue for &'static CStr {
    fn put(self, slot: &mut Slot) {
        slot.0 = Value::Choice(self);
    }
}

/// A call of an op with `N` arguments, being put together.
pub struct Arguments<'a, const N: usize> {
    op: &'static OpHandle,
    values: [Value; N],
    tensors: PhantomData<&'a mut ()>,
}

/// How a call is made, if not as [`Run::default`] says.
#[derive(Debug, Default)]
pub struct Run<'a> {
    /// Where the work goes.
    pub stream: Stream<'a>,
    /// Memory for the call; without, a CPU call takes this thread's.
    pub workspace: Option<&'a mut Workspace>,
    /// This implementation or an error; without, the best.
    pub implementation: Option<&'a CStr>,
}

/// A call of any op, for code that runs whatever it is handed.
pub trait Prepared {
    /// The implementation that would run, and the bytes of workspace that it wants.
    fn choose(&self, how: Run<'_>) -> Result<(&'static str, usize)>;
    /// Makes the call.
    fn run_with(self, how: Run<'_>) -> Result<()>;
}

thread_local! {
    static WORKSPACE: RefCell<Workspace> = const { RefCell::new(Workspace::new()) };
}

impl<const N: usize> Arguments<'_, N> {
    pub(crate) fn new(op: &'static OpHandle) -> Self {
        Arguments { op, values: [Value::Absent; N], tensors: PhantomData }
    }

    pub(crate) fn set(&mut self, index: usize, value: impl IntoValue) {
        let mut slot = Slot(Value::Absent);
        value.put(&mut slot);
        self.values[index] = slot.0;
    }

    pub(crate) fn run(&self, how: Run<'_>) -> Result<()> {
        let api = sys::api()?;
        let op = self.op.get(api)?;
        let options = options_of(&how);
        let given = how.workspace;
        self.with_args(|args| {
            let call = |workspace: &Workspace| {
                let options = sys::pestle_call_options {
                    workspace: workspace.pointer(),
                    workspace_bytes: workspace.bytes() as i64,
                    ..options
                };
                // SAFETY: an op of the table; arguments that live through the call. Views promise
                // that memory is there and not shared.
                check(api, unsafe { (api.pestle_call)(op, args.as_ptr(), N, &options) })
            };
            // Memory that does not grow is enough or not: the call itself says so.
            if let Some(workspace) = given.as_deref().filter(|workspace| !workspace.grows()) {
                return call(workspace);
            }
            let mut bytes = 0;
            // SAFETY: as above.
            check(api, unsafe {
                (api.pestle_choose)(op, args.as_ptr(), N, &options, null_mut(), &mut bytes)
            })?;
            let bytes = usize::try_from(bytes).unwrap_or(0);
            let call_in = |workspace: &mut Workspace| {
                workspace.grow(bytes);
                call(workspace)
            };
            match given {
                Some(workspace) => call_in(workspace),
                None if bytes == 0 => call(&Workspace::new()),
                None => WORKSPACE.with(|own| match own.try_borrow_mut() {
                    Ok(mut workspace) => call_in(&mut workspace),
                    Err(_) => call_in(&mut Workspace::new()),
                }),
            }
        })
    }

    /// The implementation that would run, and the workspace that it wants.
    pub(crate) fn choose(&self, how: Run<'_>) -> Result<(&'static str, usize)> {
        let api = sys::api()?;
        let op = self.op.get(api)?;
        let options = options_of(&how);
        let (mut name, mut bytes): (*const c_char, i64) = (null(), 0);
        self.with_args(|args| {
            // SAFETY: an op of the table; arguments that live through the call.
            check(api, unsafe {
                (api.pestle_choose)(op, args.as_ptr(), N, &options, &mut name, &mut bytes)
            })
        })?;
        // SAFETY: the name of an implementation, a constant of the library.
        let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("");
        Ok((name, usize::try_from(bytes).unwrap_or(0)))
    }

    /// Every implementation's verdict, as JSON.
    pub(crate) fn why(&self) -> Result<serde_json::Value> {
        let api = sys::api()?;
        let op = self.op.get(api)?;
        let mut json = null_mut();
        self.with_args(|args| {
            // SAFETY: an op of the table; arguments that live through the call.
            check(api, unsafe { (api.pestle_why)(op, args.as_ptr(), N, &mut json) })
        })?;
        let text = owned(api, json);
        serde_json::from_str(&text).map_err(|error| Error::Text(format!("{error} in {text}")))
    }

    /// The definition of right, on a CPU. Outputs that the contract bounds are f64 here.
    pub(crate) fn reference(&self, sum_magnitudes: bool) -> Result<()> {
        let api = sys::api()?;
        let op = self.op.get(api)?;
        self.with_args(|args| {
            // SAFETY: an op of the table; arguments that live through the call.
            check(api, unsafe {
                (api.pestle_reference)(op, args.as_ptr(), N, i32::from(sum_magnitudes))
            })
        })
    }

    /// Arguments as the C ABI takes them, on the stack but for lists.
    fn with_args<R>(&self, then: impl FnOnce(&[sys::pestle_arg; N]) -> R) -> R {
        let mut tensors = [const { MaybeUninit::<sys::pestle_tensor>::uninit() }; N];
        let mut lists: Vec<Vec<sys::pestle_tensor>> = Vec::new();
        let mut args = [ABSENT; N];
        for ((arg, value), tensor) in args.iter_mut().zip(&self.values).zip(&mut tensors) {
            *arg = match *value {
                Value::Absent => ABSENT,
                // SAFETY: borrowed for as long as self lives.
                Value::Tensor(raw) => tensor_arg(tensor.write(unsafe { &*raw }.tensor()), None),
                Value::List(first, count) => {
                    // SAFETY: a slice that is borrowed for as long as self lives.
                    let raws = unsafe { std::slice::from_raw_parts(first, count) };
                    lists.push(raws.iter().map(Raw::tensor).collect());
                    tensor_arg(lists[lists.len() - 1].as_ptr(), Some(count))
                }
                Value::Int(i) => number(sys::PESTLE_INT, i),
                Value::Flag(flag) => number(sys::PESTLE_BOOL_VALUE, i64::from(flag)),
                Value::Float(f) => sys::pestle_arg {
                    kind: sys::PESTLE_FLOAT as i32,
                    count: 0,
                    value: sys::pestle_arg__bindgen_ty_1 { f },
                },
                Value::Choice(label) => sys::pestle_arg {
                    kind: sys::PESTLE_CHOICE as i32,
                    count: 0,
                    value: sys::pestle_arg__bindgen_ty_1 { choice: label.as_ptr() },
                },
            };
        }
        then(&args)
    }
}

const ABSENT: sys::pestle_arg = number(sys::PESTLE_ABSENT, 0);

const fn number(kind: sys::pestle_kind, i: i64) -> sys::pestle_arg {
    let value = sys::pestle_arg__bindgen_ty_1 { i };
    sys::pestle_arg { kind: kind as i32, count: 0, value }
}

fn tensor_arg(tensor: *const sys::pestle_tensor, count: Option<usize>) -> sys::pestle_arg {
    let kind = if count.is_some() { sys::PESTLE_TENSOR_LIST } else { sys::PESTLE_TENSOR };
    sys::pestle_arg {
        kind: kind as i32,
        count: count.map_or(0, |count| i32::try_from(count).unwrap_or(i32::MAX)),
        value: sys::pestle_arg__bindgen_ty_1 { tensor },
    }
}

fn options_of(how: &Run<'_>) -> sys::pestle_call_options {
    sys::pestle_call_options {
        size: size_of::<sys::pestle_call_options>() as u32,
        stream: how.stream.handle,
        workspace: null_mut(),
        workspace_bytes: 0,
        impl_: how.implementation.map_or(null(), CStr::as_ptr),
    }
}
