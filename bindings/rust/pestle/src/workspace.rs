use std::alloc::{alloc, dealloc, handle_alloc_error, Layout};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::{null_mut, NonNull};

/// The queue that a call's work goes to: a `cudaStream_t`, or none on a CPU.
#[derive(Debug, Clone, Copy)]
pub struct Stream<'a> {
    pub(crate) handle: *mut c_void,
    owner: PhantomData<&'a ()>,
}

impl Default for Stream<'_> {
    /// CUDA's default stream; on a CPU calls end before they return.
    fn default() -> Self {
        Stream { handle: null_mut(), owner: PhantomData }
    }
}

impl Stream<'_> {
    /// # Safety
    /// `handle` must be a `cudaStream_t` (or `CUstream`) that lives while the result is used.
    pub unsafe fn from_raw(handle: *mut c_void) -> Self {
        Stream { handle, owner: PhantomData }
    }
}

const ALIGNMENT: usize = 256;

/// Memory that a call uses and leaves. Made once and handed to many calls, it grows to the largest.
#[derive(Debug)]
pub struct Workspace {
    memory: Option<NonNull<u8>>,
    bytes: usize,
    is_owned: bool,
}

// SAFETY: plain memory, used by one call at a time through `&mut`.
unsafe impl Send for Workspace {}

impl Default for Workspace {
    fn default() -> Self {
        Workspace::new()
    }
}

impl Workspace {
    /// Empty; it grows on a CPU.
    pub const fn new() -> Self {
        Workspace { memory: None, bytes: 0, is_owned: true }
    }

    /// Device memory, which does not grow.
    ///
    /// # Safety
    /// `memory` must point to `bytes` bytes on the device of the calls, for as long as their work runs.
    pub unsafe fn from_raw(memory: *mut c_void, bytes: usize) -> Self {
        Workspace { memory: NonNull::new(memory.cast()), bytes, is_owned: false }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn grows(&self) -> bool {
        self.is_owned
    }

    pub(crate) fn pointer(&self) -> *mut c_void {
        self.memory.map_or(null_mut(), |memory| memory.as_ptr().cast())
    }

    /// At least `bytes`, if the memory is ours; else what there is, and the library says what lacks.
    pub(crate) fn grow(&mut self, bytes: usize) {
        if bytes <= self.bytes || !self.is_owned {
            return;
        }
        self.release();
        let layout = Self::layout(bytes);
        // SAFETY: more than 0 bytes.
        let memory = NonNull::new(unsafe { alloc(layout) });
        self.memory = Some(memory.unwrap_or_else(|| handle_alloc_error(layout)));
        self.bytes = bytes;
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, ALIGNMENT)
            .expect("the library asks for less than 2^63 bytes")
    }

    fn release(&mut self) {
        if let (true, Some(memory)) = (self.is_owned, self.memory.take()) {
            // SAFETY: what grow() allocated, with the layout of then.
            unsafe { dealloc(memory.as_ptr(), Self::layout(self.bytes)) };
            self.bytes = 0;
        }
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        self.release();
    }
}
