//! CUDA tensors: candle's stream, context and allocator. Nothing is cleared, no event or second
//! stream is made and nothing waits for the device, so a call can be part of a captured graph.
use crate::memory::{each, parts, sentence, In, Inputs, Launcher, Made, Out, Outputs};
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop,
};
use candle_core::cuda_backend::{CudaDType, CudaStorageSlice, WrapErr};
use candle_core::{bail, CudaDevice, CudaStorage, DType, Layout, Result, Storage, StorageRef};
use pestle::{Prepared, Run, Stream, View, ViewMut, Workspace};
use std::ffi::c_void;

fn ordinal(device: &CudaDevice) -> pestle::Device {
    pestle::Device::Cuda(device.cuda_stream().context().ordinal() as u16)
}

/// One call on candle's stream, with a workspace from candle's allocator. Chosen for once: a workspace
/// of a fixed size is taken as it is.
pub(crate) fn run(device: &CudaDevice, call: impl Prepared) -> Result<()> {
    let stream = device.cuda_stream();
    stream.context().bind_to_thread().w()?;
    // SAFETY: candle's stream lives while its device does.
    let queue = unsafe { Stream::from_raw(stream.cu_stream().cast::<c_void>()) };
    let (_, bytes) = call.choose(Run { stream: queue, ..Run::default() }).map_err(sentence)?;
    // SAFETY: memory that the call writes before it reads.
    let mut room: Option<CudaSlice<u8>> = match bytes {
        0 => None,
        bytes => Some(unsafe { device.alloc(bytes)? }),
    };
    let place = room.as_mut().map(|room| room.device_ptr_mut(&stream));
    let address = place.as_ref().map_or(0, |(address, _guard)| *address);
    // SAFETY: `bytes` bytes of this device, or none; they are given back in the stream's order.
    let mut workspace = unsafe { Workspace::from_raw(address as *mut c_void, bytes) };
    let how = Run { stream: queue, workspace: Some(&mut workspace), ..Run::default() };
    call.run_with(how).map_err(sentence)
}

/// The same expression for the slice of every dtype.
macro_rules! with_slice {
    ($slices:expr, $slice:ident => $then:expr) => {
        match $slices {
            CudaStorageSlice::U8($slice) => $then,
            CudaStorageSlice::U32($slice) => $then,
            CudaStorageSlice::I16($slice) => $then,
            CudaStorageSlice::I32($slice) => $then,
            CudaStorageSlice::I64($slice) => $then,
            CudaStorageSlice::BF16($slice) => $then,
            CudaStorageSlice::F16($slice) => $then,
            CudaStorageSlice::F32($slice) => $then,
            CudaStorageSlice::F64($slice) => $then,
            CudaStorageSlice::F8E4M3($slice) => $then,
            CudaStorageSlice::F6E2M3($slice)
            | CudaStorageSlice::F6E3M2($slice)
            | CudaStorageSlice::F4($slice)
            | CudaStorageSlice::F8E8M0($slice) => $then,
        }
    };
}

/// The address of element 0 for reading; the guard is held until the work is queued.
fn read<'s>(storage: &'s CudaStorage, stream: &'s CudaStream) -> (*const c_void, SyncOnDrop<'s>) {
    with_slice!(&storage.slice, slice => {
        let (address, guard) = slice.device_ptr(stream);
        (address as *const c_void, guard)
    })
}

/// The address of element 0 for writing; the guard is held until the work is queued.
fn written<'s>(
    storage: &'s mut CudaStorage,
    stream: &'s CudaStream,
) -> (*mut c_void, SyncOnDrop<'s>) {
    with_slice!(&mut storage.slice, slice => {
        let (address, guard) = slice.device_ptr_mut(stream);
        (address as *mut c_void, guard)
    })
}

/// Memory of `count` elements that a call fills.
fn room(device: &CudaDevice, dtype: DType, count: usize) -> Result<CudaStorage> {
    fn of<T>(device: &CudaDevice, count: usize) -> Result<CudaStorage>
    where
        T: CudaDType + candle_core::cuda_backend::cudarc::driver::DeviceRepr,
    {
        // SAFETY: memory that the call writes whole.
        let slice = unsafe { device.alloc::<T>(count.max(1))? };
        Ok(CudaStorage::wrap_cuda_slice(slice, device.clone()))
    }
    match dtype {
        DType::U8 => of::<u8>(device, count),
        DType::U32 => of::<u32>(device, count),
        DType::I16 => of::<i16>(device, count),
        DType::I32 => of::<i32>(device, count),
        DType::I64 => of::<i64>(device, count),
        DType::BF16 => of::<pestle::half::bf16>(device, count),
        DType::F16 => of::<pestle::half::f16>(device, count),
        DType::F32 => of::<f32>(device, count),
        DType::F64 => of::<f64>(device, count),
        other => bail!("pestle makes no tensor of {}", other.as_str()),
    }
}

pub(crate) fn launch<const I: usize, const O: usize>(
    device: &CudaDevice,
    inputs: &[Option<In<'_>>; I],
    held: &[Option<(StorageRef<'_>, &Layout)>; I],
    outputs: [Out; O],
    body: impl FnOnce(&Inputs<'_, I>, Outputs<'_, O>, &Launcher<'_>) -> Result<()>,
) -> Result<[Made; O]> {
    let stream = device.cuda_stream();
    let place = ordinal(device);
    let mut guards = [const { None }; I];
    let mut views: Inputs<'_, I> = [const { None }; I];
    for (((view, guard), input), held) in views.iter_mut().zip(&mut guards).zip(inputs).zip(held) {
        let (Some(input), Some((storage, layout))) = (input, held) else { continue };
        let Storage::Cuda(storage) = &**storage else { bail!("a tensor changed its device") };
        let (kind, shape, strides) = parts::input_kind(input)?;
        let size = input.element_size();
        let (start, until_queued) = read(storage, &stream);
        *guard = Some(until_queued);
        // SAFETY: candle's layout lies within its storage, whose lock is held until the work is queued.
        let made = unsafe {
            let start = start.cast::<u8>().add(layout.start_offset() * size).cast();
            View::from_raw(start, kind, place, shape, Some(strides))
        };
        *view = Some(made.map_err(sentence)?);
    }
    let mut rooms = each(&outputs, |out| {
        let (dtype, _, _, count) = parts::output_parts(out)?;
        room(device, dtype, count)
    })?;
    let places = rooms.each_mut().map(|room| written(room, &stream));
    let mut next = places.iter();
    let results = each(&outputs, |out| {
        let (_, kind, shape, _) = parts::output_parts(out)?;
        let start = next.next().expect("one for each output").0;
        // SAFETY: room for all elements, which nothing else knows of.
        unsafe { ViewMut::from_raw(start, kind, place, shape, None) }.map_err(sentence)
    })?;
    body(&views, results, &Launcher::Cuda(device))?;
    drop((guards, places));
    let mut rooms = rooms.into_iter();
    Ok(outputs.map(|out| {
        let storage = Storage::Cuda(rooms.next().expect("one for each output"));
        Made { storage, shape: out.into_shape() }
    }))
}
