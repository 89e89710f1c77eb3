//! Weights in GGUF's blocks: what decodes them, and which of them a linear layer multiplies by as they are.
use crate::memory::{launch, In, Out};
use crate::weight::{label, Weight};
use candle_core::quantized::GgmlDType;
use candle_core::{bail, DType, Device, Result, Tensor};
use pestle::ops;
use std::slice::ChunksExact;

/// Codes of Q4_0 and Q8_0 that share a scale.
const GROUP: usize = 32;

/// The name that the op `dequantize_gguf` has for a type of blocks.
fn blocks(kind: GgmlDType) -> Result<&'static str> {
    Ok(match kind {
        GgmlDType::Q8_0 => "q8_0",
        GgmlDType::Q4_0 => "q4_0",
        GgmlDType::Q4K => "q4_k",
        GgmlDType::Q6K => "q6_k",
        other => {
            bail!("GGUF blocks of type {other:?} are not read; Q8_0, Q4_0, Q4_K and Q6_K are")
        }
    })
}

/// Bytes of a tensor of these dimensions.
pub(crate) fn bytes_of(kind: GgmlDType, shape: &[usize]) -> Result<usize> {
    let columns = shape.last().copied().unwrap_or(1);
    if !columns.is_multiple_of(kind.block_size()) {
        bail!("rows of {columns} are no whole blocks of {} ({kind:?})", kind.block_size());
    }
    let count = shape.iter().try_fold(1usize, |all, &size| all.checked_mul(size));
    let bytes = count.and_then(|count| (count / kind.block_size()).checked_mul(kind.type_size()));
    bytes.map_or_else(|| bail!("shape {shape:?} is beyond any memory"), Ok)
}

/// The values of blocks of `shape`.
pub(crate) fn decoded(
    bytes: &[u8],
    kind: GgmlDType,
    shape: &[usize],
    dtype: DType,
    device: &Device,
) -> Result<Tensor> {
    let kind = blocks(kind)?;
    let columns = shape.last().copied().unwrap_or(1);
    let rows = shape.iter().product::<usize>() / columns.max(1);
    let codes = Tensor::from_slice(bytes, (rows, bytes.len() / rows.max(1)), device)?;
    let out = Out::new(dtype, [rows, columns]);
    let [made] =
        launch("dequantize_gguf", [Some(In::new(&codes))], [out], |views, [mut out], on| {
            let [Some(codes)] = views else { bail!("dequantize_gguf: no codes") };
            on.run(ops::dequantize_gguf(codes, &mut out).type_(label(kind)?))
        })?;
    made.tensor().reshape(shape)
}

/// Blocks as a weight of the same values that a linear layer multiplies by: Q4_0 as INT4, Q8_0 and Q6_K as
/// INT8, each with an f32 scale for as many columns as share one in the block.
pub(crate) fn weight(
    bytes: &[u8],
    kind: GgmlDType,
    shape: &[usize],
    device: &Device,
) -> Result<Weight> {
    let &[n, k] = shape else {
        bail!("{kind:?} of {shape:?} is decoded by float(): a linear layer takes matrices");
    };
    let blocks = bytes.chunks_exact(kind.type_size());
    match kind {
        GgmlDType::Q4_0 => int4(blocks, n, k, device),
        GgmlDType::Q8_0 => int8(blocks, n, k, GROUP, q8_0, device),
        GgmlDType::Q6K => int8(blocks, n, k, 16, q6_k, device),
        other => bail!(
            "{other:?} is decoded by float(): linear layers keep Q4_0, Q8_0 and Q6_K, whose codes have \
             scales and no minima"
        ),
    }
}

fn f16_at(block: &[u8], at: usize) -> f32 {
    pestle::half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Blocks of 32 codes of a row, the first 16 in the low nibbles, and their f16 scale before them.
fn int4(blocks: ChunksExact<'_, u8>, n: usize, k: usize, device: &Device) -> Result<Weight> {
    let mut codes = Vec::with_capacity(n * k / 2);
    let mut scales = Vec::with_capacity(n * k / GROUP);
    for block in blocks {
        scales.push(f16_at(block, 0));
        // From unsigned codes around 8 to two's complement: the top bit changes.
        let code = |at: usize| (block[2 + at % 16] >> (at / 16 * 4) & 15) ^ 8;
        codes.extend((0..GROUP / 2).map(|pair| code(2 * pair) | code(2 * pair + 1) << 4));
    }
    Ok(Weight::Int4 {
        codes: Tensor::from_vec(codes, (n, k / 2), device)?,
        scale: Tensor::from_vec(scales, (n, k / GROUP), device)?,
        zero: None,
        group_size: GROUP,
        hadamard: 0,
    })
}

/// Adds a block's codes, as bytes of two's complement, and its scales.
type Unpack = fn(&[u8], &mut Vec<u8>, &mut Vec<f32>);

fn int8(
    blocks: ChunksExact<'_, u8>,
    n: usize,
    k: usize,
    group_size: usize,
    unpack: Unpack,
    device: &Device,
) -> Result<Weight> {
    let mut codes = Vec::with_capacity(n * k);
    let mut scales = Vec::with_capacity(n * k / group_size);
    blocks.for_each(|block| unpack(block, &mut codes, &mut scales));
    Ok(Weight::Int8 {
        codes: Tensor::from_vec(codes, (n, k), device)?,
        scale: Tensor::from_vec(scales, (n, k / group_size), device)?,
        granularity: "group",
        group_size,
        hadamard: 0,
    })
}

/// An f16 scale, then 32 codes.
fn q8_0(block: &[u8], codes: &mut Vec<u8>, scales: &mut Vec<f32>) {
    scales.push(f16_at(block, 0));
    codes.extend_from_slice(&block[2..]);
}

/// 256 codes around 32: their low four bits, then their high two, then a scale of 8 bits for each 16, which
/// one f16 multiplies. Of each half the four runs of 32 codes lie beside each other: two in the low and two
/// in the high nibbles, and all four in the pairs of bits of the same bytes.
fn q6_k(block: &[u8], codes: &mut Vec<u8>, scales: &mut Vec<f32>) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let whole = f16_at(rest, 16);
    scales.extend(rest[..16].iter().map(|&scale| whole * f32::from(scale as i8)));
    codes.extend((0..256).map(|at| {
        let (half, run, place) = (at / 128, at % 128 / 32, at % 32);
        let nibble = low[half * 64 + run % 2 * 32 + place] >> (run / 2 * 4) & 15;
        let pair = high[half * 32 + place] >> (run * 2) & 3;
        (nibble | pair << 4).wrapping_sub(32)
    }));
}
