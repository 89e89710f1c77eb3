//! Quantised weights: what their tensors mean, and the two ops of each format.
use crate::memory::{launch, sentence, In, Kind, Made, Out};
use candle_core::{bail, DType, Result, Tensor};
use pestle::ops;
use std::str::FromStr;

/// A quantised weight of N rows and K columns. Codes and 8-bit scales lie in tensors of bytes (U8).
#[derive(Debug, Clone)]
pub enum Weight {
    /// Codes [N, K], E4M3 or (`e5m2`) E5M2; f32 scales: one, [N, 1] (`row`), or one for each
    /// 128x128 block (`block_128x128`).
    Fp8 { codes: Tensor, e5m2: bool, scale: Tensor, granularity: &'static str },
    /// Two's complement codes [N, K]; f32 scales: one (`tensor`), [N, 1] (`row`) or [N, groups] of
    /// `group_size` columns (`group`). `hadamard`: columns that were rotated together, or 0.
    Int8 {
        codes: Tensor,
        scale: Tensor,
        granularity: &'static str,
        group_size: usize,
        hadamard: usize,
    },
    /// Codes [N, K/2]; E4M3 scales [N, K/16], or in 128x4 tiles (`swizzled`); one f32 scale.
    Nvfp4 { codes: Tensor, scale: Tensor, global: Tensor, high_first: bool, swizzled: bool },
    /// E4M3 codes [N, K]; E8M0 scales [N, K/32], or in 128x4 tiles.
    Mxfp8 { codes: Tensor, scale: Tensor, swizzled: bool },
    /// Codes [N, K/2]; E8M0 scales [N, K/32], or in 128x4 tiles.
    Mxfp4 { codes: Tensor, scale: Tensor, high_first: bool, swizzled: bool },
    /// Codes [N, K/2], the even column low; f32 scales [N, groups] of `group_size` columns, 0 for a
    /// row; zero points [N, groups] make codes unsigned. Codes may also come as words [N, K/8] (U32,
    /// row-major), which hold the same bytes.
    Int4 { codes: Tensor, scale: Tensor, zero: Option<Tensor>, group_size: usize, hadamard: usize },
    /// Codebook indices [N, K/2]; E4M3 scales [N, K/16]; f32 scales `[N]`.
    W4a8 {
        codes: Tensor,
        scale_rel: Tensor,
        scale_channel: Tensor,
        codebook: Option<Tensor>,
        hadamard: usize,
    },
}

pub(crate) fn label<T: FromStr<Err = pestle::Error>>(text: &str) -> Result<T> {
    text.parse().map_err(sentence)
}

fn nibbles<T: FromStr<Err = pestle::Error>>(high_first: bool) -> Result<T> {
    label(if high_first { "high_first" } else { "low_first" })
}

fn tiles<T: FromStr<Err = pestle::Error>>(swizzled: bool) -> Result<T> {
    label(if swizzled { "swizzled" } else { "plain" })
}

fn mode<T: FromStr<Err = pestle::Error>>(has_zero: bool) -> Result<T> {
    label(if has_zero { "asymmetric" } else { "symmetric" })
}

fn fp8(e5m2: bool) -> Kind {
    if e5m2 {
        Kind::E5M2
    } else {
        Kind::E4M3
    }
}

/// Two codes a byte, also where they come as words.
fn nibbles_of(codes: &Tensor) -> In<'_> {
    let input = In::coded(codes, Kind::U8);
    match *codes.dims() {
        [n, words] if codes.dtype() == DType::U32 => input.placed([n, words * 4], [words * 4, 1]),
        _ => input,
    }
}

impl Weight {
    /// Rows and columns as stored, padding included.
    pub fn shape(&self) -> Result<(usize, usize)> {
        let (codes, per_byte) = match self {
            Weight::Fp8 { codes, .. } | Weight::Int8 { codes, .. } => (codes, 1),
            Weight::Mxfp8 { codes, .. } => (codes, 1),
            Weight::Nvfp4 { codes, .. } | Weight::Mxfp4 { codes, .. } => (codes, 2),
            Weight::Int4 { codes, .. } | Weight::W4a8 { codes, .. } => (codes, 2),
        };
        let (n, k) = codes.dims2()?;
        Ok((n, k * per_byte * codes.dtype().size_in_bytes()))
    }

    /// The tensors, as the ops read them: codes, scales, and up to two more.
    fn inputs(&self) -> [Option<In<'_>>; 4] {
        let bytes = |tensor, kind| Some(In::coded(tensor, kind));
        match self {
            Weight::Fp8 { codes, e5m2, scale, .. } => {
                [bytes(codes, fp8(*e5m2)), Some(In::new(scale)), None, None]
            }
            Weight::Int8 { codes, scale, .. } => {
                [bytes(codes, Kind::I8), Some(In::new(scale)), None, None]
            }
            Weight::Nvfp4 { codes, scale, global, .. } => {
                [bytes(codes, Kind::U8), bytes(scale, Kind::E4M3), Some(In::new(global)), None]
            }
            Weight::Mxfp8 { codes, scale, .. } => {
                [bytes(codes, Kind::E4M3), bytes(scale, Kind::E8M0), None, None]
            }
            Weight::Mxfp4 { codes, scale, .. } => {
                [bytes(codes, Kind::U8), bytes(scale, Kind::E8M0), None, None]
            }
            Weight::Int4 { codes, scale, zero, .. } => {
                [Some(nibbles_of(codes)), Some(In::new(scale)), zero.as_ref().map(In::new), None]
            }
            Weight::W4a8 { codes, scale_rel, scale_channel, codebook, .. } => [
                bytes(codes, Kind::U8),
                bytes(scale_rel, Kind::E4M3),
                Some(In::new(scale_channel)),
                codebook.as_ref().map(In::new),
            ],
        }
    }

    /// The decoded weight [N, K].
    pub fn dequantize(&self, dtype: DType) -> Result<Tensor> {
        let (n, k) = self.shape()?;
        let out = Out::new(dtype, [n, k]);
        let [made] = launch("dequantize", self.inputs(), [out], |views, [mut out], on| {
            let [Some(codes), Some(scale), third, fourth] = views else {
                bail!("dequantize: no operands")
            };
            match self {
                Weight::Fp8 { granularity, .. } => on.run(
                    ops::dequantize_fp8(codes, scale, &mut out).granularity(label(granularity)?),
                ),
                Weight::Int8 { granularity, group_size, hadamard, .. } => on.run(
                    ops::dequantize_int8(codes, scale, &mut out)
                        .granularity(label(granularity)?)
                        .group_size((*group_size).max(1) as i64)
                        .hadamard(*hadamard as i64),
                ),
                Weight::Nvfp4 { high_first, swizzled, .. } => {
                    let Some(global) = third else { bail!("nvfp4: no global scale") };
                    on.run(
                        ops::dequantize_nvfp4(codes, scale, global, &mut out)
                            .nibbles(nibbles(*high_first)?)
                            .scale_layout(tiles(*swizzled)?),
                    )
                }
                Weight::Mxfp8 { swizzled, .. } => on.run(
                    ops::dequantize_mxfp8(codes, scale, &mut out).scale_layout(tiles(*swizzled)?),
                ),
                Weight::Mxfp4 { high_first, swizzled, .. } => on.run(
                    ops::dequantize_mxfp4(codes, scale, &mut out)
                        .nibbles(nibbles(*high_first)?)
                        .scale_layout(tiles(*swizzled)?),
                ),
                Weight::Int4 { group_size, hadamard, .. } => {
                    let mut call = ops::dequantize_int4(codes, scale, &mut out)
                        .group_size(*group_size as i64)
                        .hadamard(*hadamard as i64)
                        .mode(mode(third.is_some())?);
                    if let Some(zero) = third {
                        call = call.zero(zero);
                    }
                    on.run(call)
                }
                Weight::W4a8 { hadamard, .. } => {
                    let Some(channel) = third else { bail!("w4a8: no scales of rows") };
                    let mut call = ops::dequantize_w4a8(codes, scale, channel, &mut out)
                        .hadamard(*hadamard as i64);
                    if let Some(codebook) = fourth {
                        call = call.codebook(codebook);
                    }
                    on.run(call)
                }
            }
        })?;
        Ok(made.tensor())
    }

    /// `x @ W^T + bias` of rows `x`, in a dtype of choice.
    pub(crate) fn linear(&self, x: &Tensor, bias: Option<&Tensor>, dtype: DType) -> Result<Made> {
        let mut shape = x.dims().to_vec();
        let Some(last) = shape.last_mut() else { bail!("linear: x has no dimension") };
        *last = self.shape()?.0;
        let [codes, scale, third, fourth] = self.inputs();
        let inputs = [Some(In::new(x)), bias.map(In::new), codes, scale, third, fourth];
        let outputs = [Out::new(dtype, shape)];
        let [made] = launch("linear", inputs, outputs, |views, [mut out], on| {
            let [Some(x), bias, Some(w), Some(scale), third, fourth] = views else {
                bail!("linear: no operands")
            };
            // Every call is of a type of its own: the bias is given to each.
            macro_rules! run {
                ($call:expr) => {
                    match bias {
                        Some(bias) => on.run($call.bias(bias)),
                        None => on.run($call),
                    }
                };
            }
            match self {
                Weight::Fp8 { granularity, .. } => {
                    let call = ops::linear_fp8(x, w, scale).out(&mut out);
                    run!(call.granularity(label(granularity)?))
                }
                Weight::Int8 { granularity, group_size, hadamard, .. } => {
                    let call = ops::linear_int8(x, w, scale).out(&mut out);
                    let call = call.granularity(label(granularity)?);
                    let call = call.group_size((*group_size).max(1) as i64);
                    run!(call.hadamard(*hadamard as i64))
                }
                Weight::Nvfp4 { high_first, swizzled, .. } => {
                    let Some(global) = third else { bail!("nvfp4: no global scale") };
                    let call = ops::linear_nvfp4(x, w, scale, global, &mut out);
                    run!(call.nibbles(nibbles(*high_first)?).scale_layout(tiles(*swizzled)?))
                }
                Weight::Mxfp8 { swizzled, .. } => {
                    run!(ops::linear_mxfp8(x, w, scale, &mut out).scale_layout(tiles(*swizzled)?))
                }
                Weight::Mxfp4 { high_first, swizzled, .. } => {
                    let call = ops::linear_mxfp4(x, w, scale, &mut out);
                    run!(call.nibbles(nibbles(*high_first)?).scale_layout(tiles(*swizzled)?))
                }
                Weight::Int4 { group_size, hadamard, .. } => {
                    let mut call = ops::linear_int4(x, w, scale, &mut out)
                        .group_size(*group_size as i64)
                        .hadamard(*hadamard as i64)
                        .mode(mode(third.is_some())?);
                    if let Some(zero) = third {
                        call = call.zero(zero);
                    }
                    run!(call)
                }
                Weight::W4a8 { hadamard, .. } => {
                    let Some(channel) = third else { bail!("w4a8: no scales of rows") };
                    let mut call =
                        ops::linear_w4a8(x, w, scale, channel, &mut out).hadamard(*hadamard as i64);
                    if let Some(codebook) = fourth {
                        call = call.codebook(codebook);
                    }
                    run!(call)
                }
            }
        })?;
        Ok(made)
    }
}
