//! What only a GPU can show: candle's own streams, capture in a CUDA graph, several GPUs. The other test
//! files run on GPU 0 in a build with the feature `cuda`.
#![cfg(feature = "cuda")]
mod common;
use candle_core::cuda_backend::cudarc::driver::{sys, CudaContext};
use candle_core::{CudaDevice, DType, Device, Tensor, Var};
use common::{assert_close, f64s, tensor};
use pestle_candle::kaio::{self, prelude::KaioDevice};
use pestle_candle::{attention, rms_norm, Attention, Causal, Format, QLinear};
use std::sync::Arc;

fn on(device: &Device, shape: &[usize], seed: u64, dtype: DType) -> Tensor {
    let values = common::values(shape.iter().product(), seed);
    let tensor = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
    tensor.to_dtype(dtype).unwrap().to_device(device).unwrap()
}

/// A transformer block's ops: norm, a quantised linear, attention; with the gradient of x.
fn block(device: &Device) -> (Tensor, Tensor) {
    let x = Var::from_tensor(&on(device, &[2, 4, 64, 64], 1, DType::F32)).unwrap();
    let weight = on(device, &[64], 2, DType::F32);
    let layer = QLinear::quantize(&on(device, &[64, 64], 3, DType::F32), None, Format::Int8Row);
    let normal = rms_norm(&x, &weight, 1e-5).unwrap();
    let v = layer.unwrap().forward_to(&normal.narrow(2, 0, 16).unwrap(), DType::F32).unwrap();
    let keys = normal.narrow(2, 0, 16).unwrap();
    let how = Attention { causal: Causal::TopLeft, ..Attention::default() };
    let out = attention(&normal, &keys, &v, &how).unwrap();
    let gradients = out.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    (out, gradients.get(&x).unwrap().clone())
}

#[test]
fn a_gpu_gives_what_the_cpu_gives() {
    let (out, gradient) = block(common::place());
    let (want, want_gradient) = block(&Device::Cpu);
    assert_close(&out, &want, 2e-3, 2e-3);
    assert_close(&gradient, &want_gradient, 2e-3, 2e-3);
}

#[test]
fn work_goes_to_candles_own_stream() {
    let (want, want_gradient) = block(common::place());
    for _ in 0..2 {
        let (out, gradient) = block(&Device::new_cuda_with_stream(0).unwrap());
        assert_close(&out, &want, 0.0, 0.0);
        assert_close(&gradient, &want_gradient, 0.0, 0.0);
    }
}

#[test]
fn several_threads_have_a_stream_each() {
    let want = f64s(&block(common::place()).0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let device = Device::new_cuda_with_stream(0).unwrap();
                for _ in 0..8 {
                    assert_eq!(f64s(&block(&device).0), want);
                }
            });
        }
    });
}

/// What is queued is captured: nothing waits for the device, and another launch computes anew.
#[test]
fn calls_are_captured_in_a_graph() {
    let cuda = CudaDevice::new_with_stream(0).unwrap();
    // SAFETY: one stream. Events recorded before the capture could not be waited for within it.
    unsafe { cuda.disable_event_tracking() };
    let device = Device::Cuda(cuda.clone());
    let weight = on(&device, &[256], 2, DType::F32);
    let layer = QLinear::quantize(&on(&device, &[64, 256], 3, DType::F32), None, Format::Nvfp4);
    let layer = layer.unwrap();
    let x = on(&device, &[8, 256], 1, DType::F32);
    let calls = || layer.forward_to(&rms_norm(&x, &weight, 1e-5).unwrap(), DType::F32).unwrap();
    calls(); // the first call loads kernels

    let stream = cuda.cuda_stream();
    stream.synchronize().unwrap();
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    stream.begin_capture(mode).unwrap();
    let out = calls();
    let flag = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flag).unwrap().expect("a graph");
    for seed in [5, 6] {
        x.slice_set(&on(&device, &[8, 256], seed, DType::F32), 0, 0).unwrap();
        graph.launch().unwrap();
        assert_close(&out, &calls(), 0.0, 0.0);
    }
}

/// One call on each GPU that there is; the result lies where its arguments lie.
#[test]
fn every_gpu() {
    let count = CudaContext::device_count().unwrap() as usize;
    println!("{count} GPUs");
    let want = block(common::place()).0;
    for ordinal in 0..count {
        let out = block(&Device::new_cuda(ordinal).unwrap()).0;
        let candle_core::DeviceLocation::Cuda { gpu_id } = out.device().location() else {
            panic!("not on a GPU")
        };
        assert_eq!(gpu_id, ordinal);
        assert_eq!(f64s(&out), f64s(&want));
    }
}

#[test]
fn tensors_of_two_devices_are_refused() {
    let (x, weight) = (tensor(&[2, 8], 1), on(&Device::Cpu, &[8], 2, DType::F32));
    let error = rms_norm(&x, &weight, 1e-5).unwrap_err().to_string();
    assert!(error.contains("Cuda") && error.contains("Cpu"), "{error}");
    let other = Arc::new(KaioDevice::new(7).unwrap());
    let a = on(common::place(), &[4, 16], 1, DType::F16);
    let error = kaio::matmul_tc(&other, &a, &a.t().unwrap()).unwrap_err().to_string();
    assert!(error.contains("KaioDevice is 7"), "{error}");
}
