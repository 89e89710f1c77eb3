//! The 12 functions of kaio-candle, by name, arguments and dtypes: a user changes the import.
//!
//! What kaio-candle refuses is taken: any rank, strides and offsets, sizes that are no multiples,
//! CPU tensors, cross attention, several heads as dimensions of their own, sequences of any length,
//! projections of different widths. Where kaio-candle has no gradient of float arguments, there is one.
//!
//! ```no_run
//! use pestle_candle::kaio::{self, prelude::KaioDevice};
//! # use candle_core::{Device, DType, Tensor};
//! # fn main() -> candle_core::Result<()> {
//! # let (a, b) = (Tensor::zeros((4, 16), DType::F16, &Device::Cpu)?, Tensor::zeros((16, 8), DType::F16, &Device::Cpu)?);
//! let device = std::sync::Arc::new(KaioDevice::new(0)?);
//! let c = kaio::matmul_tc(&device, &a, &b)?; // f16 x f16 -> f32
//! # Ok(())
//! # }
//! ```
use crate::attention::{attention_to, Attention, Causal};
use crate::graph::refuse_tracked;
use crate::matmul::matmul_to;
use crate::memory::{launch, In, Kind, Out};
use crate::qlinear::linear;
use crate::weight::Weight;
use candle_core::{bail, DType, DeviceLocation, Result, Tensor};
use pestle::ops;
use prelude::KaioDevice;
use std::sync::Arc;

pub mod prelude {
    use candle_core::Result;

    /// A GPU by its ordinal. It owns nothing: work goes to the stream of candle's own device, and this
    /// handle may be dropped before or after any tensor.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct KaioDevice {
        ordinal: usize,
    }

    impl KaioDevice {
        /// Any ordinal: whether there is such a GPU, candle's device says. CPU tensors run on the CPU
        /// whatever the ordinal.
        pub fn new(ordinal: usize) -> Result<Self> {
            Ok(KaioDevice { ordinal })
        }

        pub fn ordinal(&self) -> usize {
            self.ordinal
        }
    }
}

/// Dtypes as the function's name promises, and CUDA tensors on the device that was named.
fn check(op: &str, device: &KaioDevice, args: &[(&str, &Tensor, DType)]) -> Result<()> {
    for (name, tensor, dtype) in args {
        if tensor.dtype() != *dtype {
            bail!(
                "{op}: {name} is {}, not {}; convert it with .to_dtype(DType::{dtype:?})?",
                tensor.dtype().as_str(),
                dtype.as_str()
            );
        }
        if let DeviceLocation::Cuda { gpu_id } = tensor.device().location() {
            if gpu_id != device.ordinal() {
                bail!(
                    "{op}: {name} is on CUDA device {gpu_id}, KaioDevice is {}",
                    device.ordinal()
                );
            }
        }
    }
    Ok(())
}

fn matrices(op: &str, a: &Tensor, b: &Tensor) -> Result<(usize, usize)> {
    match (a.dims(), b.dims()) {
        ([.., k], [rows, n]) if k == rows => Ok((*k, *n)),
        (a, b) => bail!("{op}: a {a:?} and b {b:?} are not [.., K] and [K, N]"),
    }
}

/// f16 [M, K] times f16 [K, N], f32 result. With gradients.
pub fn matmul_tc(device: &Arc<KaioDevice>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    check("matmul_tc", device, &[("a", a, DType::F16), ("b", b, DType::F16)])?;
    matmul_to(a, b, DType::F32)
}

/// bf16 [M, K] times bf16 [K, N], f32 result. With gradients.
pub fn matmul_tc_bf16(device: &Arc<KaioDevice>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    check("matmul_tc_bf16", device, &[("a", a, DType::BF16), ("b", b, DType::BF16)])?;
    matmul_to(a, b, DType::F32)
}

/// The same as [`matmul_tc`]: the best kernel is chosen for each call.
pub fn matmul_tc_async(device: &Arc<KaioDevice>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    check("matmul_tc_async", device, &[("a", a, DType::F16), ("b", b, DType::F16)])?;
    matmul_to(a, b, DType::F32)
}

/// The same as [`matmul_tc_bf16`]: the best kernel is chosen for each call.
pub fn matmul_tc_bf16_async(device: &Arc<KaioDevice>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    check("matmul_tc_bf16_async", device, &[("a", a, DType::BF16), ("b", b, DType::BF16)])?;
    matmul_to(a, b, DType::F32)
}

/// KAIO's packing: words along K of column n at `n * K/8`, although the tensor is declared [K/8, N].
/// A view that candle has turned or cut no longer holds that.
fn int4_weight(op: &str, k: usize, packed: &Tensor, scales: &Tensor) -> Result<Arc<Weight>> {
    let (words, n) = packed.dims2()?;
    if !k.is_multiple_of(128) || words * 8 != k {
        bail!("{op}: x has K = {k}, which must be a multiple of 128, and weights {words} words of 8 codes along it");
    }
    if scales.dims() != [k / 128, n] {
        bail!(
            "{op}: scales {:?} are not [{}, {n}], one for 128 codes of a column",
            scales.dims(),
            k / 128
        );
    }
    if !packed.is_contiguous() {
        bail!("{op}: packed weights must lie as they were packed; pack anew, .contiguous()? would not do");
    }
    Ok(Arc::new(Weight::Int4 {
        codes: packed.reshape((n, words))?,
        scale: scales.t()?.to_dtype(DType::F32)?,
        zero: None,
        group_size: 128,
        hadamard: 0,
    }))
}

/// Two's complement bytes [K, N] with one scale.
fn int8_weight(op: &str, k: usize, bytes: &Tensor, scale: f32) -> Result<Arc<Weight>> {
    let (rows, _) = bytes.dims2()?;
    if rows != k {
        bail!("{op}: x has K = {k}, weights {:?} have {rows} rows", bytes.dims());
    }
    Ok(Arc::new(Weight::Int8 {
        codes: bytes.t()?,
        scale: Tensor::from_vec(vec![scale], 1, bytes.device())?,
        granularity: "tensor",
        group_size: 0,
        hadamard: 0,
    }))
}

fn last(x: &Tensor) -> usize {
    x.dims().last().copied().unwrap_or(0)
}

/// f16 activations [M, K] times INT4 weights, f32 result: `b_packed` u32 [K/8, N] in KAIO's packing,
/// `scales` f16 [K/128, N]. With the gradient of a.
pub fn matmul_int4(
    device: &Arc<KaioDevice>,
    a: &Tensor,
    b_packed: &Tensor,
    scales: &Tensor,
) -> Result<Tensor> {
    let types =
        [("a", a, DType::F16), ("b_packed", b_packed, DType::U32), ("scales", scales, DType::F16)];
    check("matmul_int4", device, &types)?;
    refuse_tracked("matmul_int4", &[("scales", scales)], "scales have no gradient")?;
    let weight = int4_weight("matmul_int4", last(a), b_packed, scales)?;
    linear(&weight, a, None, DType::F32)
}

/// INT8 [M, K] times INT8 [K, N], both as bytes (u8) of two's complement: exact sums times `scale`, f32
/// result.
pub fn matmul_int8(device: &Arc<KaioDevice>, a: &Tensor, b: &Tensor, scale: f32) -> Result<Tensor> {
    check("matmul_int8", device, &[("a", a, DType::U8), ("b", b, DType::U8)])?;
    let bytes = [("a", a), ("b", b)];
    refuse_tracked("matmul_int8", &bytes, "bytes have no gradient")?;
    let (_, n) = matrices("matmul_int8", a, b)?;
    let mut shape = a.dims().to_vec();
    shape[a.rank() - 1] = n;
    let inputs = [Some(In::coded(a, Kind::I8)), Some(In::coded(b, Kind::I8).transposed())];
    let outputs = [Out::new(DType::F32, shape)];
    let [made] = launch("matmul_int8", inputs, outputs, |views, [mut out], on| {
        let [Some(a), Some(b)] = views else { bail!("matmul_int8: no operands") };
        on.run(
            ops::scaled_mm_int8(a, b)
                .out(&mut out)
                .granularity(ops::scaled_mm_int8::Granularity::Host)
                .host_scale(f64::from(scale)),
        )
    })?;
    Ok(made.tensor())
}

fn attend(
    op: &str,
    device: &KaioDevice,
    (q, k, v): (&Tensor, &Tensor, &Tensor),
    dtype: DType,
    causal: Causal,
) -> Result<Tensor> {
    check(op, device, &[("q", q, dtype), ("k", k, dtype), ("v", v, dtype)])?;
    attention_to(q, k, v, &Attention { causal, ..Attention::default() }, DType::F32)
}

/// Attention of f16 q [Sq, D], k [Sk, D] and v [Sk, Dv], f32 result; heads are dimensions in front.
pub fn attention_tc(
    device: &Arc<KaioDevice>,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
) -> Result<Tensor> {
    attend("attention_tc", device, (q, k, v), DType::F16, Causal::No)
}

/// [`attention_tc`] in which query i sees keys 0 to i.
pub fn attention_tc_causal(
    device: &Arc<KaioDevice>,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
) -> Result<Tensor> {
    attend("attention_tc_causal", device, (q, k, v), DType::F16, Causal::TopLeft)
}

/// Attention of f32 q, k and v [S, D], f32 result, with gradients; heads are dimensions in front.
pub fn attention_flash(
    device: &Arc<KaioDevice>,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
) -> Result<Tensor> {
    attend("attention_flash", device, (q, k, v), DType::F32, Causal::No)
}

/// [`attention_flash`] in which query i sees keys 0 to i.
pub fn attention_flash_causal(
    device: &Arc<KaioDevice>,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
) -> Result<Tensor> {
    attend("attention_flash_causal", device, (q, k, v), DType::F32, Causal::TopLeft)
}

/// Three projections of f16 activations [M, K] by INT8 weights [K, N], as bytes (u8) with one scale each;
/// f16 results. The widths N may differ. With the gradient of x.
#[allow(clippy::too_many_arguments)] // the seed's signature
pub fn qkv_project_int8(
    device: &Arc<KaioDevice>,
    x: &Tensor,
    w_q: &Tensor,
    w_k: &Tensor,
    w_v: &Tensor,
    scale_q: f32,
    scale_k: f32,
    scale_v: f32,
) -> Result<(Tensor, Tensor, Tensor)> {
    let op = "qkv_project_int8";
    let weights = [("w_q", w_q, DType::U8), ("w_k", w_k, DType::U8), ("w_v", w_v, DType::U8)];
    check(op, device, &[("x", x, DType::F16)])?;
    check(op, device, &weights)?;
    let project = |bytes: &Tensor, scale: f32| {
        linear(&int8_weight(op, last(x), bytes, scale)?, x, None, DType::F16)
    };
    Ok((project(w_q, scale_q)?, project(w_k, scale_k)?, project(w_v, scale_v)?))
}

/// Three projections of f16 activations [M, K] by INT4 weights in KAIO's packing, u32 [K/8, N], with
/// scales f16 [K/128, N]; f16 results. The widths N may differ. With the gradient of x.
#[allow(clippy::too_many_arguments)] // the seed's signature
pub fn qkv_project_int4(
    device: &Arc<KaioDevice>,
    x: &Tensor,
    w_q: &Tensor,
    w_k: &Tensor,
    w_v: &Tensor,
    scales_q: &Tensor,
    scales_k: &Tensor,
    scales_v: &Tensor,
) -> Result<(Tensor, Tensor, Tensor)> {
    let op = "qkv_project_int4";
    let weights = [("w_q", w_q, DType::U32), ("w_k", w_k, DType::U32), ("w_v", w_v, DType::U32)];
    let scales = [("scales_q", scales_q), ("scales_k", scales_k), ("scales_v", scales_v)];
    check(op, device, &[("x", x, DType::F16)])?;
    check(op, device, &weights)?;
    check(op, device, &scales.map(|(name, tensor)| (name, tensor, DType::F16)))?;
    refuse_tracked(op, &scales, "scales have no gradient")?;
    let project = |packed: &Tensor, scales: &Tensor| {
        linear(&int4_weight(op, last(x), packed, scales)?, x, None, DType::F16)
    };
    Ok((project(w_q, scales_q)?, project(w_k, scales_k)?, project(w_v, scales_v)?))
}
