use crate::error::{Error, Result};
use half::{bf16, f16};
use pestle_sys as sys;
use std::ffi::c_void;
use std::marker::PhantomData;

/// The most dimensions that a tensor has.
pub const MAX_RANK: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum DType {
    F32 = sys::PESTLE_F32 as i32,
    F16 = sys::PESTLE_F16 as i32,
    BF16 = sys::PESTLE_BF16 as i32,
    F64 = sys::PESTLE_F64 as i32,
    E4M3 = sys::PESTLE_E4M3 as i32,
    E5M2 = sys::PESTLE_E5M2 as i32,
    E8M0 = sys::PESTLE_E8M0 as i32,
    U8 = sys::PESTLE_U8 as i32,
    I8 = sys::PESTLE_I8 as i32,
    I16 = sys::PESTLE_I16 as i32,
    U16 = sys::PESTLE_U16 as i32,
    I32 = sys::PESTLE_I32 as i32,
    U32 = sys::PESTLE_U32 as i32,
    I64 = sys::PESTLE_I64 as i32,
    U64 = sys::PESTLE_U64 as i32,
    Bool = sys::PESTLE_BOOL as i32,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 | DType::U64 => 8,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 => 2,
            _ => 1,
        }
    }
}

/// Where memory lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Device {
    #[default]
    Cpu,
    /// A CUDA device by its ordinal.
    Cuda(u16),
}

mod sealed {
    pub trait Sealed {}
}

/// Rust types that a tensor's elements may be.
#[diagnostic::on_unimplemented(
    message = "a tensor has no elements of type `{Self}`",
    label = "not f16, bf16, f32, f64 or an integer of 8 to 64 bits",
    note = "FP8, E8M0, INT8 and Bool codes lie in bytes: `coded` takes a slice of u8 and their dtype"
)]
pub trait Element: Copy + 'static + sealed::Sealed {
    const DTYPE: DType;
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type { const DTYPE: DType = DType::$dtype; }
    )*};
}
elements!(f32 => F32, f16 => F16, bf16 => BF16, f64 => F64, u8 => U8, i8 => I8, i16 => I16,
    u16 => U16, i32 => I32, u32 => U32, i64 => I64, u64 => U64);

/// What both kinds of view are made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Raw {
    data: *mut c_void,
    dtype: DType,
    device: Device,
    rank: usize,
    shape: [i64; MAX_RANK],
    strides: Option<[i64; MAX_RANK]>,
}

fn sizes(what: &str, values: &[usize]) -> Result<[i64; MAX_RANK]> {
    if values.len() > MAX_RANK {
        return Err(Error::View(format!(
            "{what} {values:?} has {} dimensions; at most {MAX_RANK} are allowed",
            values.len()
        )));
    }
    let mut result = [0; MAX_RANK];
    for (to, &from) in result.iter_mut().zip(values) {
        *to = i64::try_from(from)
            .map_err(|_| Error::View(format!("{what} {values:?} is beyond 2^63")))?;
    }
    Ok(result)
}

fn product(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &size| n.checked_mul(size))
}

/// One more than the place of the last element, or 0 if there is none.
fn reach(shape: &[usize], strides: &[usize], offset: usize) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    let last = shape.iter().zip(strides).try_fold(offset, |at, (&size, &stride)| {
        (size - 1).checked_mul(stride).and_then(|step| at.checked_add(step))
    })?;
    last.checked_add(1)
}

impl Raw {
    fn new(data: *mut c_void, dtype: DType, shape: &[usize]) -> Result<Raw> {
        let rank = shape.len();
        let shape = sizes("shape", shape)?;
        Ok(Raw { data, dtype, device: Device::Cpu, rank, shape, strides: None })
    }

    fn contiguous(data: *mut c_void, dtype: DType, length: usize, shape: &[usize]) -> Result<Raw> {
        if product(shape) != Some(length) {
            return Err(Error::View(format!("shape {shape:?} is not that of {length} elements")));
        }
        Raw::new(data, dtype, shape)
    }

    /// `data` has `length` elements of `dtype`.
    fn strided(
        data: *mut c_void,
        dtype: DType,
        length: usize,
        shape: &[usize],
        strides: &[usize],
        offset: usize,
    ) -> Result<Raw> {
        if shape.len() != strides.len() {
            return Err(Error::View(format!(
                "shape {shape:?} and strides {strides:?} have different numbers of dimensions"
            )));
        }
        let fits = reach(shape, strides, offset).is_some_and(|end| end <= length);
        if !fits || offset > length {
            return Err(Error::View(format!(
                "shape {shape:?} with strides {strides:?} from element {offset} reaches beyond the \
                 {length} elements that are there"
            )));
        }
        // SAFETY: the offset is within the slice, or one past its end.
        let data = unsafe { data.cast::<u8>().add(offset * dtype.size()) }.cast();
        let mut raw = Raw::new(data, dtype, shape)?;
        raw.strides = Some(sizes("strides", strides)?);
        Ok(raw)
    }

    fn transposed(mut self) -> Result<Raw> {
        if self.rank < 2 {
            return Err(Error::View("a tensor of fewer than 2 dimensions has no transpose".into()));
        }
        let mut strides = self.strides.unwrap_or_else(|| {
            let mut row_major = [1; MAX_RANK];
            for d in (0..self.rank - 1).rev() {
                row_major[d] = row_major[d + 1] * self.shape[d + 1];
            }
            row_major
        });
        strides.swap(self.rank - 2, self.rank - 1);
        self.shape.swap(self.rank - 2, self.rank - 1);
        self.strides = Some(strides);
        Ok(self)
    }

    /// For the C ABI: points into `self`.
    pub(crate) fn tensor(&self) -> sys::pestle_tensor {
        let (device_type, device_index) = match self.device {
            Device::Cpu => (sys::PESTLE_CPU, 0),
            Device::Cuda(index) => (sys::PESTLE_CUDA, i32::from(index)),
        };
        sys::pestle_tensor {
            data: self.data,
            dtype: self.dtype as i32,
            device_type: device_type as i32,
            device_index,
            rank: self.rank as i32,
            shape: self.shape.as_ptr(),
            strides: self.strides.as_ref().map_or(std::ptr::null(), |s| s.as_ptr()),
            byte_offset: 0,
        }
    }
}

fn one_byte(dtype: DType) -> Result<()> {
    if dtype.size() == 1 {
        return Ok(());
    }
    Err(Error::View(format!("elements of {dtype:?} are {} bytes, not codes in u8", dtype.size())))
}

/// A tensor that is read.
#[derive(Debug, Clone)]
#[repr(transparent)]
pub struct View<'a> {
    pub(crate) raw: Raw,
    memory: PhantomData<&'a [u8]>,
}

/// A tensor that is written.
#[derive(Debug)]
#[repr(transparent)]
pub struct ViewMut<'a> {
    pub(crate) raw: Raw,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> View<'a> {
    /// Row-major, all of `data`.
    pub fn new<T: Element>(data: &'a [T], shape: &[usize]) -> Result<Self> {
        let pointer = data.as_ptr().cast_mut().cast();
        Ok(Self::of(Raw::contiguous(pointer, T::DTYPE, data.len(), shape)?))
    }

    /// Strides and offset count elements; a stride of 0 repeats a dimension.
    pub fn strided<T: Element>(
        data: &'a [T],
        shape: &[usize],
        strides: &[usize],
        offset: usize,
    ) -> Result<Self> {
        let pointer = data.as_ptr().cast_mut().cast();
        Ok(Self::of(Raw::strided(pointer, T::DTYPE, data.len(), shape, strides, offset)?))
    }

    /// Codes of one byte each: FP8, E8M0, INT8 or Bool in a slice of bytes.
    pub fn coded(data: &'a [u8], dtype: DType, shape: &[usize]) -> Result<Self> {
        one_byte(dtype)?;
        let pointer = data.as_ptr().cast_mut().cast();
        Ok(Self::of(Raw::contiguous(pointer, dtype, data.len(), shape)?))
    }

    /// The same memory with the last two dimensions exchanged.
    pub fn transposed(&self) -> Result<View<'a>> {
        Ok(Self::of(self.raw.transposed()?))
    }

    /// Any memory, also a device's.
    ///
    /// # Safety
    /// For as long as the view is used, `data` must point to memory on `device` that holds every
    /// element that shape and strides (of elements; none: row-major) reach, and nothing may write it.
    pub unsafe fn from_raw(
        data: *const c_void,
        dtype: DType,
        device: Device,
        shape: &[usize],
        strides: Option<&[usize]>,
    ) -> Result<Self> {
        // SAFETY: the caller's promise.
        Ok(Self::of(unsafe { raw(data.cast_mut(), dtype, device, shape, strides) }?))
    }

    fn of(raw: Raw) -> Self {
        View { raw, memory: PhantomData }
    }
}

impl<'a> ViewMut<'a> {
    /// Row-major, all of `data`.
    pub fn new<T: Element>(data: &'a mut [T], shape: &[usize]) -> Result<Self> {
        let length = data.len();
        Ok(Self::of(Raw::contiguous(data.as_mut_ptr().cast(), T::DTYPE, length, shape)?))
    }

    /// Strides and offset count elements. No element may be there twice.
    pub fn strided<T: Element>(
        data: &'a mut [T],
        shape: &[usize],
        strides: &[usize],
        offset: usize,
    ) -> Result<Self> {
        if !once_each(shape, strides) {
            return Err(Error::View(format!(
                "shape {shape:?} with strides {strides:?} has elements that share memory, which an \
                 output may not"
            )));
        }
        let (pointer, length) = (data.as_mut_ptr().cast(), data.len());
        Ok(Self::of(Raw::strided(pointer, T::DTYPE, length, shape, strides, offset)?))
    }

    /// Codes of one byte each: FP8, E8M0, INT8 or Bool in a slice of bytes.
    pub fn coded(data: &'a mut [u8], dtype: DType, shape: &[usize]) -> Result<Self> {
        one_byte(dtype)?;
        let length = data.len();
        Ok(Self::of(Raw::contiguous(data.as_mut_ptr().cast(), dtype, length, shape)?))
    }

    /// The same memory with the last two dimensions exchanged.
    pub fn transposed(self) -> Result<ViewMut<'a>> {
        Ok(Self::of(self.raw.transposed()?))
    }

    /// Any memory, also a device's, also one that is not initialised.
    ///
    /// # Safety
    /// For as long as the view is used, `data` must point to memory on `device` that holds every
    /// element that shape and strides (of elements; none: row-major) reach, and nothing else may read
    /// or write it, except as an op's contract allows in place.
    pub unsafe fn from_raw(
        data: *mut c_void,
        dtype: DType,
        device: Device,
        shape: &[usize],
        strides: Option<&[usize]>,
    ) -> Result<Self> {
        // SAFETY: the caller's promise.
        Ok(Self::of(unsafe { raw(data, dtype, device, shape, strides) }?))
    }

    fn of(raw: Raw) -> Self {
        ViewMut { raw, memory: PhantomData }
    }
}

/// Enough, though not needed, for no element to be there twice: each dimension steps over all that
/// the narrower ones reach.
fn once_each(shape: &[usize], strides: &[usize]) -> bool {
    let mut wide: Vec<(usize, usize)> =
        strides.iter().copied().zip(shape.iter().copied()).filter(|&(_, size)| size > 1).collect();
    wide.sort_unstable();
    let mut span = 0usize; // the place of the last element so far
    wide.iter().all(|&(stride, size)| {
        let free = stride > span;
        span = span.saturating_add(stride.saturating_mul(size - 1));
        free
    })
}

/// # Safety
/// As the constructors that call it.
unsafe fn raw(
    data: *mut c_void,
    dtype: DType,
    device: Device,
    shape: &[usize],
    strides: Option<&[usize]>,
) -> Result<Raw> {
    let mut raw = Raw::new(data, dtype, shape)?;
    raw.device = device;
    if let Some(strides) = strides {
        if strides.len() != shape.len() {
            return Err(Error::View(format!(
                "shape {shape:?} and strides {strides:?} have different numbers of dimensions"
            )));
        }
        raw.strides = Some(sizes("strides", strides)?);
    }
    Ok(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_must_be_that_of_its_slice() {
        let data = [0f32; 6];
        assert!(View::new(&data, &[2, 3]).is_ok());
        let error = View::new(&data, &[2, 4]).unwrap_err().to_string();
        assert_eq!(error, "shape [2, 4] is not that of 6 elements");
        assert!(View::new(&data, &[usize::MAX, 2]).is_err());
    }

    #[test]
    fn strides_stay_within_the_slice() {
        let data = [0f32; 6];
        assert!(View::strided(&data, &[2, 2], &[3, 1], 1).is_ok());
        assert!(View::strided(&data, &[2, 3], &[3, 1], 1).is_err());
        assert!(View::strided(&data, &[100, 2], &[0, 1], 4).is_ok());
        assert!(View::strided(&data, &[2, 2], &[usize::MAX, 1], 0).is_err());
        assert!(View::strided(&data, &[0, 9], &[9, 1], 6).is_ok());
        assert!(View::strided(&data, &[0, 9], &[9, 1], 7).is_err());
    }

    #[test]
    fn an_output_has_no_element_twice() {
        let mut data = [0f32; 6];
        assert!(ViewMut::strided(&mut data, &[3, 2], &[1, 3], 0).is_ok());
        assert!(ViewMut::strided(&mut data, &[2, 2], &[1, 1], 0).is_err());
        assert!(ViewMut::strided(&mut data, &[2, 2], &[0, 1], 0).is_err());
        assert!(ViewMut::strided(&mut data, &[1, 2], &[0, 1], 0).is_ok());
    }

    #[test]
    fn codes_are_bytes() {
        assert!(View::coded(&[0; 4], DType::E4M3, &[4]).is_ok());
        assert!(View::coded(&[0; 4], DType::F32, &[1]).is_err());
    }

    #[test]
    fn nine_dimensions_are_too_many() {
        assert!(View::new(&[0f32], &[1; 8]).is_ok());
        assert!(View::new(&[0f32], &[1; 9]).is_err());
    }
}
