//! What the tests share: seeded values, and comparison with f64.
#![allow(dead_code)] // each test file uses a part
use candle_core::{DType, Device, Result, Tensor, Var};
use std::sync::OnceLock;

/// Where tensors are made: on the CPU, or on GPU 0 in a build with the feature `cuda`.
pub fn place() -> &'static Device {
    static PLACE: OnceLock<Device> = OnceLock::new();
    PLACE.get_or_init(|| match cfg!(feature = "cuda") {
        true => Device::new_cuda(0).expect("a GPU"),
        false => Device::Cpu,
    })
}

/// Values between -1 and 1 that look random and are the same in every run.
pub fn values(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..count)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

pub fn tensor(shape: &[usize], seed: u64) -> Tensor {
    Tensor::from_vec(values(shape.iter().product(), seed), shape, place()).unwrap()
}

pub fn var(shape: &[usize], seed: u64, dtype: DType) -> Var {
    Var::from_tensor(&tensor(shape, seed).to_dtype(dtype).unwrap()).unwrap()
}

pub fn f64s(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Each element within `relative` of the other's or `absolute`, whichever is more.
#[track_caller]
pub fn assert_close(got: &Tensor, want: &Tensor, relative: f64, absolute: f64) {
    assert_eq!(got.dims(), want.dims());
    for (i, (g, w)) in f64s(got).into_iter().zip(f64s(want)).enumerate() {
        let allowed = absolute.max(relative * w.abs());
        assert!((g - w).abs() <= allowed, "element {i} is {g}, not {w}");
    }
}

/// A function of tensors, as ours and as plain f64 operations of candle.
pub type Function<'f> = &'f dyn Fn(&[Tensor]) -> Result<Tensor>;

/// Results and gradients of both, for variables of `dtype`, under a loss that weighs every element
/// differently.
#[track_caller]
pub fn assert_same_with_gradients(
    ours: Function<'_>,
    plain: Function<'_>,
    shapes: &[&[usize]],
    dtype: DType,
    (relative, absolute): (f64, f64),
) {
    let vars: Vec<Var> =
        shapes.iter().enumerate().map(|(i, shape)| var(shape, 7 + i as u64, dtype)).collect();
    let exact: Vec<Var> = vars
        .iter()
        .map(|var| Var::from_tensor(&var.to_dtype(DType::F64).unwrap().detach()).unwrap())
        .collect();
    let tensors =
        |vars: &[Var]| -> Vec<Tensor> { vars.iter().map(|var| var.as_tensor().clone()).collect() };
    let (got, want) = (ours(&tensors(&vars)).unwrap(), plain(&tensors(&exact)).unwrap());
    assert_close(&got, &want, relative, absolute);

    // Numbers of `dtype`, to which the products of a gradient may round what they read.
    let weights = tensor(want.dims(), 99).to_dtype(dtype).unwrap().to_dtype(DType::F64).unwrap();
    let loss = |result: &Tensor| {
        let weights = weights.to_dtype(result.dtype()).unwrap();
        (result * weights).unwrap().sum_all().unwrap()
    };
    let (got, want) = (loss(&got).backward().unwrap(), loss(&want).backward().unwrap());
    for (ours, plain) in vars.iter().zip(&exact) {
        let got = got.get(ours).expect("a gradient");
        assert_eq!(got.dtype(), dtype);
        assert_close(got, want.get(plain).unwrap(), relative, absolute);
    }
}
