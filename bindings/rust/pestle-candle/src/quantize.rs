//! Floats to quantised weights.
use crate::memory::{launch, In, Kind, Out};
use crate::weight::Weight;
use candle_core::{bail, DType, Result, Tensor};
use pestle::ops;

/// How a weight is quantised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// E4M3 with one scale.
    Fp8,
    /// E5M2 with one scale.
    Fp8E5m2,
    /// E4M3 with a scale a row.
    Fp8Row,
    /// E4M3 with a scale for each 128x128 block.
    Fp8Block,
    /// INT8 with one scale.
    Int8,
    /// INT8 with a scale a row.
    Int8Row,
    /// INT8 of the rotated weight, in groups of 256 columns.
    Int8Convrot,
    Nvfp4,
    Mxfp8,
    Mxfp4,
    /// INT4, symmetric, with a scale for so many columns.
    Int4 {
        group_size: usize,
    },
    /// INT4 of the rotated weight with a scale a row, in groups of 256 columns.
    W4a4Convrot,
    /// A 4-bit codebook of the rotated weight.
    W4a8,
}

fn round_up(value: usize, multiple: usize) -> usize {
    value.div_ceil(multiple) * multiple
}

impl Weight {
    /// Quantises a weight [N, K] of f32, f16 or bf16. NVFP4, MXFP8 and MXFP4 pad it to multiples of 16
    /// or 32.
    pub fn quantize(weight: &Tensor, format: Format) -> Result<Weight> {
        let (n, k) = weight.dims2()?;
        match format {
            Format::Fp8 => fp8(weight, Kind::E4M3, "tensor", vec![1]),
            Format::Fp8E5m2 => fp8(weight, Kind::E5M2, "tensor", vec![1]),
            Format::Fp8Row => fp8(weight, Kind::E4M3, "row", vec![n, 1]),
            Format::Fp8Block => {
                let blocks = vec![n.div_ceil(128), k.div_ceil(128)];
                fp8(weight, Kind::E4M3, "block_128x128", blocks)
            }
            Format::Int8 => int8(weight, "tensor", 0),
            Format::Int8Row => int8(weight, "row", 0),
            Format::Int8Convrot => int8(weight, "row", 256),
            Format::Nvfp4 => nvfp4(weight),
            Format::Mxfp8 => mxfp8(weight),
            Format::Mxfp4 => mxfp4(weight),
            Format::Int4 { group_size } => int4(weight, group_size, 0),
            Format::W4a4Convrot => int4(weight, 0, 256),
            Format::W4a8 => w4a8(weight),
        }
    }
}

fn fp8(
    weight: &Tensor,
    kind: Kind,
    granularity: &'static str,
    scales: Vec<usize>,
) -> Result<Weight> {
    let outputs = [Out::coded(kind, weight.dims()), Out::new(DType::F32, scales)];
    let inputs = [Some(In::new(weight))];
    let [codes, scale] = launch("quantize_fp8", inputs, outputs, |views, [mut q, mut s], on| {
        let [Some(x)] = views else { bail!("quantize_fp8: no weight") };
        let call = ops::quantize_fp8(x, &mut q).scale_out(&mut s);
        on.run(call.granularity(crate::weight::label(granularity)?))
    })?
    .map(|made| made.tensor());
    Ok(Weight::Fp8 { codes, e5m2: kind == Kind::E5M2, scale, granularity })
}

fn int8(weight: &Tensor, granularity: &'static str, hadamard: usize) -> Result<Weight> {
    let (n, k) = weight.dims2()?;
    let scales = if granularity == "row" { vec![n, 1] } else { vec![1] };
    let outputs = [Out::coded(Kind::I8, [n, k]), Out::new(DType::F32, scales)];
    let inputs = [Some(In::new(weight))];
    let [codes, scale] = launch("quantize_int8", inputs, outputs, |views, [mut q, mut s], on| {
        let [Some(x)] = views else { bail!("quantize_int8: no weight") };
        on.run(
            ops::quantize_int8(x, &mut q)
                .scale_out(&mut s)
                .granularity(crate::weight::label(granularity)?)
                .hadamard(hadamard as i64),
        )
    })?
    .map(|made| made.tensor());
    Ok(Weight::Int8 { codes, scale, granularity, group_size: 0, hadamard })
}

fn nvfp4(weight: &Tensor) -> Result<Weight> {
    let (n, k) = weight.dims2()?;
    let (n, k) = (round_up(n, 16), round_up(k, 16));
    let outputs = [
        Out::coded(Kind::U8, [n, k / 2]),
        Out::coded(Kind::E4M3, [n, k / 16]),
        Out::new(DType::F32, [1]),
    ];
    let inputs = [Some(In::new(weight))];
    let [codes, scale, global] =
        launch("quantize_nvfp4", inputs, outputs, |views, [mut q, mut s, mut g], on| {
            let [Some(x)] = views else { bail!("quantize_nvfp4: no weight") };
            on.run(
                ops::quantize_nvfp4(x, &mut q, &mut s)
                    .global_scale_out(&mut g)
                    .nibbles(ops::quantize_nvfp4::Nibbles::LowFirst)
                    .scale_layout(ops::quantize_nvfp4::ScaleLayout::Plain)
                    .pad(true),
            )
        })?
        .map(|made| made.tensor());
    Ok(Weight::Nvfp4 { codes, scale, global, high_first: false, swizzled: false })
}

fn mxfp8(weight: &Tensor) -> Result<Weight> {
    let (n, k) = weight.dims2()?;
    let (n, k) = (round_up(n, 32), round_up(k, 32));
    let outputs = [Out::coded(Kind::E4M3, [n, k]), Out::coded(Kind::E8M0, [n, k / 32])];
    let inputs = [Some(In::new(weight))];
    let [codes, scale] = launch("quantize_mxfp8", inputs, outputs, |views, [mut q, mut s], on| {
        let [Some(x)] = views else { bail!("quantize_mxfp8: no weight") };
        let layout = ops::quantize_mxfp8::ScaleLayout::Plain;
        on.run(ops::quantize_mxfp8(x, &mut q, &mut s).scale_layout(layout).pad(true))
    })?
    .map(|made| made.tensor());
    Ok(Weight::Mxfp8 { codes, scale, swizzled: false })
}

fn mxfp4(weight: &Tensor) -> Result<Weight> {
    let (n, k) = weight.dims2()?;
    let (n, k) = (round_up(n, 32), round_up(k, 32));
    let outputs = [Out::coded(Kind::U8, [n, k / 2]), Out::coded(Kind::E8M0, [n, k / 32])];
    let inputs = [Some(In::new(weight))];
    let [codes, scale] = launch("quantize_mxfp4", inputs, outputs, |views, [mut q, mut s], on| {
        let [Some(x)] = views else { bail!("quantize_mxfp4: no weight") };
        on.run(
            ops::quantize_mxfp4(x, &mut q, &mut s)
                .nibbles(ops::quantize_mxfp4::Nibbles::LowFirst)
                .scale_layout(ops::quantize_mxfp4::ScaleLayout::Plain)
                .pad(true),
        )
    })?
    .map(|made| made.tensor());
    Ok(Weight::Mxfp4 { codes, scale, high_first: false, swizzled: false })
}

fn int4(weight: &Tensor, group_size: usize, hadamard: usize) -> Result<Weight> {
    let (n, k) = weight.dims2()?;
    let groups = if group_size == 0 { 1 } else { k.div_ceil(group_size) };
    let outputs = [Out::coded(Kind::U8, [n, k / 2]), Out::new(DType::F32, [n, groups])];
    let inputs = [Some(In::new(weight))];
    let [codes, scale] = launch("quantize_int4", inputs, outputs, |views, [mut q, mut s], on| {
        let [Some(x)] = views else { bail!("quantize_int4: no weight") };
        let call = ops::quantize_int4(x, &mut q, &mut s).group_size(group_size as i64);
        on.run(call.hadamard(hadamard as i64))
    })?
    .map(|made| made.tensor());
    Ok(Weight::Int4 { codes, scale, zero: None, group_size, hadamard })
}

fn w4a8(weight: &Tensor) -> Result<Weight> {
    let (n, k) = weight.dims2()?;
    let outputs = [
        Out::coded(Kind::U8, [n, k / 2]),
        Out::coded(Kind::E4M3, [n, k / 16]),
        Out::new(DType::F32, [n]),
    ];
    let inputs = [Some(In::new(weight))];
    let [codes, scale_rel, scale_channel] =
        launch("quantize_w4a8", inputs, outputs, |views, [mut q, mut rel, mut channel], on| {
            let [Some(x)] = views else { bail!("quantize_w4a8: no weight") };
            on.run(ops::quantize_w4a8(x, &mut q, &mut rel, &mut channel).hadamard(256))
        })?
        .map(|made| made.tensor());
    Ok(Weight::W4a8 { codes, scale_rel, scale_channel, codebook: None, hadamard: 256 })
}
