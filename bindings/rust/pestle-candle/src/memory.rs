//! Candle's tensors as the library sees them: no copies, candle's own memory for what is made.
use candle_core::op::BackpropOp;
use candle_core::{bail, CpuStorage, DType, Layout, Result, Storage, StorageRef, Tensor};
use pestle::{Prepared, View, ViewMut};
use std::ffi::c_void;

pub(crate) type Kind = pestle::DType;

/// The most dimensions that a view has.
const MAX_RANK: usize = 8;

/// The library's sentence as candle's error.
pub(crate) fn sentence(error: pestle::Error) -> candle_core::Error {
    candle_core::Error::Msg(error.to_string()).bt()
}

/// Dimensions over a tensor's memory that are not candle's own: `rank` sizes and strides.
#[derive(Clone, Copy)]
struct Place {
    rank: usize,
    shape: [usize; MAX_RANK],
    strides: [usize; MAX_RANK],
}

impl Place {
    /// None beyond [`MAX_RANK`], where no view is made either.
    fn new(shape: &[usize], strides: &[usize]) -> Option<Self> {
        let rank = shape.len();
        let mut place = Place { rank, shape: [0; MAX_RANK], strides: [0; MAX_RANK] };
        place.shape.get_mut(..rank)?.copy_from_slice(shape);
        place.strides[..rank].copy_from_slice(strides);
        Some(place)
    }
}

/// A tensor that is read; what its bytes mean and how they lie may be said anew.
#[derive(Clone, Copy)]
pub(crate) struct In<'t> {
    tensor: &'t Tensor,
    kind: Option<Kind>,
    place: Option<Place>,
}

impl<'t> In<'t> {
    pub fn new(tensor: &'t Tensor) -> Self {
        In { tensor, kind: None, place: None }
    }

    /// Bytes (candle's U8) that are codes of another type.
    pub fn coded(tensor: &'t Tensor, kind: Kind) -> Self {
        In { tensor, kind: Some(kind), place: None }
    }

    /// Other dimensions over the same memory, in elements of the kind that is read.
    pub fn placed<const R: usize>(mut self, shape: [usize; R], strides: [usize; R]) -> Self {
        self.place = Place::new(&shape, &strides);
        self
    }

    /// The same memory with the last two dimensions exchanged.
    pub fn transposed(mut self) -> Self {
        let layout = self.tensor.layout();
        self.place = Place::new(layout.dims(), layout.stride());
        if let Some(Place { rank: rank @ 2.., shape, strides }) = &mut self.place {
            shape.swap(*rank - 2, *rank - 1);
            strides.swap(*rank - 2, *rank - 1);
        }
        self
    }

    /// Bytes of one element as candle counts them.
    #[cfg(feature = "cuda")]
    pub fn element_size(&self) -> usize {
        self.tensor.dtype().size_in_bytes()
    }

    /// Sizes and strides.
    fn layout(&self) -> (&[usize], &[usize]) {
        match &self.place {
            Some(place) => (&place.shape[..place.rank], &place.strides[..place.rank]),
            None => (self.tensor.layout().dims(), self.tensor.layout().stride()),
        }
    }
}

/// A tensor that is made, row-major: candle's dtype, and what its bytes mean to the library.
#[derive(Clone)]
pub(crate) struct Out {
    dtype: DType,
    kind: Option<Kind>,
    shape: Vec<usize>,
}

impl Out {
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>) -> Self {
        Out { dtype, kind: None, shape: shape.into() }
    }

    pub fn like(tensor: &Tensor) -> Self {
        Out::new(tensor.dtype(), tensor.dims())
    }

    /// Codes of one byte, which candle holds as U8.
    pub fn coded(kind: Kind, shape: impl Into<Vec<usize>>) -> Self {
        Out { dtype: DType::U8, kind: Some(kind), shape: shape.into() }
    }

    #[cfg(feature = "cuda")]
    pub fn into_shape(self) -> Vec<usize> {
        self.shape
    }

    fn count(&self) -> usize {
        self.shape.iter().product()
    }
}

/// What a call made: storage that no tensor owns yet.
pub(crate) struct Made {
    pub storage: Storage,
    pub shape: Vec<usize>,
}

impl Made {
    /// A tensor outside of any graph.
    pub fn tensor(self) -> Tensor {
        Tensor::from_storage(self.storage, self.shape, BackpropOp::none(), false)
    }
}

pub(crate) fn kind_of(dtype: DType) -> Result<Kind> {
    Ok(match dtype {
        DType::U8 => Kind::U8,
        DType::U32 => Kind::U32,
        DType::I16 => Kind::I16,
        DType::I32 => Kind::I32,
        DType::I64 => Kind::I64,
        DType::BF16 => Kind::BF16,
        DType::F16 => Kind::F16,
        DType::F32 => Kind::F32,
        DType::F64 => Kind::F64,
        DType::F8E4M3 => Kind::E4M3,
        DType::F8E8M0 => Kind::E8M0,
        other => bail!("pestle has no dtype {}: pass packed codes as u8", other.as_str()),
    })
}

/// The address of candle's element 0, and how many bytes lie there.
fn cpu_address(storage: &CpuStorage) -> (*const c_void, usize) {
    fn of<T>(data: &[T]) -> (*const c_void, usize) {
        (data.as_ptr().cast(), size_of_val(data))
    }
    match storage {
        CpuStorage::U8(data) => of(data),
        CpuStorage::U32(data) => of(data),
        CpuStorage::I16(data) => of(data),
        CpuStorage::I32(data) => of(data),
        CpuStorage::I64(data) => of(data),
        CpuStorage::BF16(data) => of(data),
        CpuStorage::F16(data) => of(data),
        CpuStorage::F32(data) => of(data),
        CpuStorage::F64(data) => of(data),
        CpuStorage::F8E4M3(data) => of(data),
        CpuStorage::F6E2M3(data)
        | CpuStorage::F6E3M2(data)
        | CpuStorage::F4(data)
        | CpuStorage::F8E8M0(data) => of(data),
    }
}

/// Memory for `count` elements that a call fills: not written before.
fn cpu_room(dtype: DType, count: usize) -> Result<CpuStorage> {
    Ok(match dtype {
        DType::U8 => CpuStorage::U8(Vec::with_capacity(count)),
        DType::U32 => CpuStorage::U32(Vec::with_capacity(count)),
        DType::I16 => CpuStorage::I16(Vec::with_capacity(count)),
        DType::I32 => CpuStorage::I32(Vec::with_capacity(count)),
        DType::I64 => CpuStorage::I64(Vec::with_capacity(count)),
        DType::BF16 => CpuStorage::BF16(Vec::with_capacity(count)),
        DType::F16 => CpuStorage::F16(Vec::with_capacity(count)),
        DType::F32 => CpuStorage::F32(Vec::with_capacity(count)),
        DType::F64 => CpuStorage::F64(Vec::with_capacity(count)),
        other => bail!("pestle makes no tensor of {}", other.as_str()),
    })
}

/// # Safety
/// A call must have written all `count` elements of what `cpu_room` gave.
unsafe fn cpu_filled(storage: &mut CpuStorage, count: usize) {
    // SAFETY: the capacity is `count`, and the caller promises that it is written.
    unsafe {
        match storage {
            CpuStorage::U8(data) => data.set_len(count),
            CpuStorage::U32(data) => data.set_len(count),
            CpuStorage::I16(data) => data.set_len(count),
            CpuStorage::I32(data) => data.set_len(count),
            CpuStorage::I64(data) => data.set_len(count),
            CpuStorage::BF16(data) => data.set_len(count),
            CpuStorage::F16(data) => data.set_len(count),
            CpuStorage::F32(data) => data.set_len(count),
            CpuStorage::F64(data) => data.set_len(count),
            _ => unreachable!("cpu_room makes no other"),
        }
    }
}

/// Where an input's bytes are, checked to lie within the storage.
fn cpu_view<'g>(storage: &'g CpuStorage, layout: &Layout, input: &In<'_>) -> Result<View<'g>> {
    let kind = input.kind.map_or_else(|| kind_of(storage_dtype(storage)), Ok)?;
    let (address, bytes) = cpu_address(storage);
    let (shape, strides) = input.layout();
    let offset = layout.start_offset() * storage_dtype(storage).size_in_bytes();
    let steps = shape.iter().zip(strides).map(|(&size, &stride)| size.saturating_sub(1) * stride);
    let reach = steps.sum::<usize>() + 1;
    if !shape.contains(&0) && offset + reach * kind.size() > bytes {
        bail!("shape {shape:?} with strides {strides:?} reaches beyond the tensor's memory");
    }
    // SAFETY: within the storage, which the guard keeps from being written.
    unsafe {
        let start = address.cast::<u8>().add(offset).cast();
        View::from_raw(start, kind, pestle::Device::Cpu, shape, Some(strides))
    }
    .map_err(sentence)
}

fn storage_dtype(storage: &CpuStorage) -> DType {
    use candle_core::backend::BackendStorage;
    storage.dtype()
}

/// How the calls of one launch are made: on a CPU at once, on a GPU on candle's stream.
pub(crate) enum Launcher<'l> {
    Cpu,
    #[cfg(feature = "cuda")]
    Cuda(&'l candle_core::CudaDevice),
    #[cfg(not(feature = "cuda"))]
    #[allow(dead_code)]
    Never(&'l ()),
}

impl Launcher<'_> {
    pub fn run(&self, call: impl Prepared) -> Result<()> {
        match self {
            Launcher::Cpu => call.run_with(pestle::Run::default()).map_err(sentence),
            #[cfg(feature = "cuda")]
            Launcher::Cuda(device) => crate::cuda::run(device, call),
            #[cfg(not(feature = "cuda"))]
            Launcher::Never(_) => unreachable!("no launch makes it"),
        }
    }
}

#[cfg(test)]
thread_local! {
    /// The names of this thread's launches, for tests that count them.
    pub(crate) static LAUNCHES: std::cell::RefCell<Vec<&'static str>> =
        const { std::cell::RefCell::new(Vec::new()) };
}

pub(crate) type Inputs<'v, const I: usize> = [Option<View<'v>>; I];
pub(crate) type Outputs<'v, const O: usize> = [ViewMut<'v>; O];

/// Makes the calls of `body` with candle's memory as inputs and new memory as outputs. All inputs lie
/// on one device.
pub(crate) fn launch<const I: usize, const O: usize>(
    name: &'static str,
    inputs: [Option<In<'_>>; I],
    outputs: [Out; O],
    body: impl FnOnce(&Inputs<'_, I>, Outputs<'_, O>, &Launcher<'_>) -> Result<()>,
) -> Result<[Made; O]> {
    #[cfg(test)]
    LAUNCHES.with_borrow_mut(|launches| launches.push(name));
    let Some(first) = inputs.iter().flatten().next() else { bail!("{name}: no input") };
    let device = first.tensor.device();
    for input in inputs.iter().flatten() {
        if !input.tensor.device().same_device(device) {
            bail!(
                "{name}: one input is on {:?}, another on {:?}",
                device.location(),
                input.tensor.device().location()
            );
        }
    }
    let held: [Option<(StorageRef<'_>, &Layout)>; I] =
        std::array::from_fn(|i| inputs[i].as_ref().map(|input| input.tensor.storage_and_layout()));
    match device {
        candle_core::Device::Cpu => on_cpu(&inputs, &held, outputs, body),
        #[cfg(feature = "cuda")]
        candle_core::Device::Cuda(device) => {
            crate::cuda::launch(device, &inputs, &held, outputs, body)
        }
        other => {
            bail!("{name}: pestle-candle runs on CPUs and CUDA, not on {:?}", other.location())
        }
    }
}

fn on_cpu<const I: usize, const O: usize>(
    inputs: &[Option<In<'_>>; I],
    held: &[Option<(StorageRef<'_>, &Layout)>; I],
    outputs: [Out; O],
    body: impl FnOnce(&Inputs<'_, I>, Outputs<'_, O>, &Launcher<'_>) -> Result<()>,
) -> Result<[Made; O]> {
    let mut views: Inputs<'_, I> = [const { None }; I];
    for ((view, input), held) in views.iter_mut().zip(inputs).zip(held) {
        let (Some(input), Some((storage, layout))) = (input, held) else { continue };
        let Storage::Cpu(storage) = &**storage else { bail!("a tensor changed its device") };
        *view = Some(cpu_view(storage, layout, input)?);
    }
    let rooms = each(&outputs, |out| cpu_room(out.dtype, out.count()))?;
    let mut next = rooms.iter();
    let results = each(&outputs, |out| {
        let kind = out.kind.map_or_else(|| kind_of(out.dtype), Ok)?;
        let address = cpu_address(next.next().expect("one for each output")).0.cast_mut();
        // SAFETY: room for all elements, which nothing else knows of. The vector stays where it is.
        unsafe { ViewMut::from_raw(address, kind, pestle::Device::Cpu, &out.shape, None) }
            .map_err(sentence)
    })?;
    body(&views, results, &Launcher::Cpu)?;
    let mut rooms = rooms.into_iter();
    Ok(outputs.map(|out| {
        let mut room = rooms.next().expect("one for each output");
        // SAFETY: a call that succeeded wrote every element of every output.
        unsafe { cpu_filled(&mut room, out.count()) };
        Made { storage: Storage::Cpu(room), shape: out.shape }
    }))
}

/// What `make` makes of each element: an array, on the stack.
pub(crate) fn each<T, R, const N: usize>(
    from: &[T; N],
    mut make: impl FnMut(&T) -> Result<R>,
) -> Result<[R; N]> {
    let mut made = [const { None }; N];
    for (made, from) in made.iter_mut().zip(from) {
        *made = Some(make(from)?);
    }
    Ok(made.map(|made| made.expect("all are made")))
}

/// For the CUDA half of this module.
#[cfg(feature = "cuda")]
pub(crate) mod parts {
    use super::*;

    pub(crate) fn input_kind<'i>(input: &'i In<'_>) -> Result<(Kind, &'i [usize], &'i [usize])> {
        let kind = input.kind.map_or_else(|| kind_of(input.tensor.dtype()), Ok)?;
        let (shape, strides) = input.layout();
        Ok((kind, shape, strides))
    }

    pub(crate) fn output_parts(out: &Out) -> Result<(DType, Kind, &[usize], usize)> {
        let kind = out.kind.map_or_else(|| kind_of(out.dtype), Ok)?;
        Ok((out.dtype, kind, &out.shape, out.count()))
    }
}
