//! Weights in GGUF's blocks: what decodes them, and which of them a linear layer multiplies by as they are.
use crate::memory::{launch, In, Out};
use crate::weight::{label, Weight};
use candle_core::quantized::GgmlDType;
use candle_core::{bail, DType, Device, Result, Tensor};
use pestle::ops;

/// Codes of Q4_0 that share a scale.
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

/// Q4_0 as an INT4 weight of the same values: blocks hold 32 codes of a row, the first 16 in the low
/// nibbles, and their f16 scale.
pub(crate) fn int4(
    bytes: &[u8],
    kind: GgmlDType,
    shape: &[usize],
    device: &Device,
) -> Result<Weight> {
    let (GgmlDType::Q4_0, &[n, k]) = (kind, shape) else {
        bail!("{kind:?} of {shape:?} is decoded by float(): a linear layer takes matrices of Q4_0");
    };
    let mut codes = Vec::with_capacity(n * k / 2);
    let mut scales = Vec::with_capacity(n * k / GROUP);
    for block in bytes.chunks_exact(kind.type_size()) {
        let (scale, nibbles) = block.split_at(2);
        scales.push(pestle::half::f16::from_le_bytes([scale[0], scale[1]]).to_f32());
        // From unsigned codes around 8 to two's complement: the top bit changes.
        let code = |at: usize| (nibbles[at % 16] >> (at / 16 * 4) & 15) ^ 8;
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
