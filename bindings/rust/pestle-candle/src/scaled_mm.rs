//! Products of two quantised operands. Codes have no gradient: what is tracked is refused.
use crate::graph::refuse_tracked;
use crate::memory::{launch, In, Kind, Out};
use crate::weight::label;
use candle_core::{bail, DType, Result, Tensor};
use pestle::ops;

/// [.., N] of rows `a` [.., K] (or packed) and `b` [N, K].
fn result(op: &str, a: &Tensor, b: &Tensor, dtype: DType) -> Result<Out> {
    let mut shape = a.dims().to_vec();
    let (Some(last), [n, _]) = (shape.last_mut(), b.dims()) else {
        bail!("{op}: a {:?} and b {:?} are not [.., K] and [N, K]", a.dims(), b.dims());
    };
    *last = *n;
    Ok(Out::new(dtype, shape))
}

/// FP8 codes (E4M3, as candle's F8E4M3 or as bytes) [.., K] times [N, K], transposed; f32 scales of
/// the granularity: `tensor`, `row`, or `block` (1x128 of a, 128x128 of b).
pub fn scaled_mm_fp8(
    a: &Tensor,
    b: &Tensor,
    scale_a: &Tensor,
    scale_b: &Tensor,
    granularity: &str,
    dtype: DType,
) -> Result<Tensor> {
    let op = "scaled_mm_fp8";
    refuse_tracked(op, &[("scale_a", scale_a), ("scale_b", scale_b)], "scales have no gradient")?;
    let codes = |codes| Some(In::coded(codes, Kind::E4M3));
    let inputs = [codes(a), codes(b), Some(In::new(scale_a)), Some(In::new(scale_b))];
    let [made] = launch(op, inputs, [result(op, a, b, dtype)?], |views, [mut out], on| {
        let [Some(a), Some(b), Some(scale_a), Some(scale_b)] = views else {
            bail!("{op}: no operands")
        };
        on.run(
            ops::scaled_mm_fp8(a, b, scale_a, scale_b)
                .out(&mut out)
                .granularity(label(granularity)?),
        )
    })?;
    Ok(made.tensor())
}

/// INT8 codes as bytes [.., K] times [N, K], transposed; f32 scales, one of `tensor` or a `row` each. The
/// sums are exact.
pub fn scaled_mm_int8(
    a: &Tensor,
    b: &Tensor,
    scale_a: &Tensor,
    scale_b: &Tensor,
    granularity: &str,
    dtype: DType,
) -> Result<Tensor> {
    let op = "scaled_mm_int8";
    refuse_tracked(op, &[("scale_a", scale_a), ("scale_b", scale_b)], "scales have no gradient")?;
    let codes = |codes| Some(In::coded(codes, Kind::I8));
    let inputs = [codes(a), codes(b), Some(In::new(scale_a)), Some(In::new(scale_b))];
    let [made] = launch(op, inputs, [result(op, a, b, dtype)?], |views, [mut out], on| {
        let [Some(a), Some(b), Some(scale_a), Some(scale_b)] = views else {
            bail!("{op}: no operands")
        };
        on.run(
            ops::scaled_mm_int8(a, b)
                .scale_a(scale_a)
                .scale_b(scale_b)
                .out(&mut out)
                .granularity(label(granularity)?),
        )
    })?;
    Ok(made.tensor())
}

/// One NVFP4 operand: codes [rows, K/2], the even column low; E4M3 scales [rows, K/16] as bytes; one f32
/// scale.
#[derive(Debug, Clone, Copy)]
pub struct Nvfp4<'t> {
    pub codes: &'t Tensor,
    pub scale: &'t Tensor,
    pub global: &'t Tensor,
}

/// NVFP4 times NVFP4, transposed.
pub fn scaled_mm_nvfp4(a: Nvfp4<'_>, b: Nvfp4<'_>, dtype: DType) -> Result<Tensor> {
    let op = "scaled_mm_nvfp4";
    let scales = [("a.global", a.global), ("b.global", b.global)];
    refuse_tracked(op, &scales, "scales have no gradient")?;
    let inputs = [
        Some(In::coded(a.codes, Kind::U8)),
        Some(In::coded(b.codes, Kind::U8)),
        Some(In::coded(a.scale, Kind::E4M3)),
        Some(In::coded(b.scale, Kind::E4M3)),
        Some(In::new(a.global)),
        Some(In::new(b.global)),
    ];
    let outputs = [result(op, a.codes, b.codes, dtype)?];
    let [made] = launch(op, inputs, outputs, |views, [mut out], on| {
        let [Some(a), Some(b), Some(scale_a), Some(scale_b), Some(all_a), Some(all_b)] = views
        else {
            bail!("{op}: no operands")
        };
        on.run(
            ops::scaled_mm_nvfp4(a, b, scale_a, scale_b, all_a, all_b, &mut out)
                .nibbles(ops::scaled_mm_nvfp4::Nibbles::LowFirst)
                .scale_layout(ops::scaled_mm_nvfp4::ScaleLayout::Plain),
        )
    })?;
    Ok(made.tensor())
}

/// MXFP8 codes (E4M3) [.., K] times [N, K], transposed; E8M0 scales [.., K/32] and [N, K/32] as bytes.
pub fn scaled_mm_mxfp8(
    a: &Tensor,
    b: &Tensor,
    scale_a: &Tensor,
    scale_b: &Tensor,
    dtype: DType,
) -> Result<Tensor> {
    let op = "scaled_mm_mxfp8";
    let inputs = [
        Some(In::coded(a, Kind::E4M3)),
        Some(In::coded(b, Kind::E4M3)),
        Some(In::coded(scale_a, Kind::E8M0)),
        Some(In::coded(scale_b, Kind::E8M0)),
    ];
    let [made] = launch(op, inputs, [result(op, a, b, dtype)?], |views, [mut out], on| {
        let [Some(a), Some(b), Some(scale_a), Some(scale_b)] = views else {
            bail!("{op}: no operands")
        };
        let plain = ops::scaled_mm_mxfp8::ScaleLayout::Plain;
        on.run(ops::scaled_mm_mxfp8(a, b, scale_a, scale_b, &mut out).scale_layout(plain))
    })?;
    Ok(made.tensor())
}
