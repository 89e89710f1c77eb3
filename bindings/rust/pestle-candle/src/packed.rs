//! INT4 layers as GPTQ and AWQ write them.
use crate::checkpoint::{repacked, Checkpoint};
use crate::qlinear::QLinear;
use crate::weight::Weight;
use candle_core::{bail, DType, Device, Result, Tensor};

/// Which of the two it is follows from shapes: GPTQ packs eight rows of K into a word, AWQ eight columns
/// of N. `gptq_v2` stores zero points as they are, GPTQ one less.
pub(crate) fn linear(
    from: &Checkpoint,
    layer: &str,
    bias: Option<Tensor>,
    gptq_v2: bool,
    device: &Device,
) -> Result<QLinear> {
    let get = |suffix: &str| from.tensor(&format!("{layer}.{suffix}"), device);
    let (codes, zeros) = (get("qweight")?, get("qzeros")?);
    let scales = get("scales")?.to_dtype(DType::F32)?; // [groups, N]
    let (rows, columns) = codes.dims2()?;
    let (groups, n) = scales.dims2()?;
    let (packing, zero_packing, k) = if columns == n {
        ("gptq", if gptq_v2 { "gptq_v2" } else { "gptq" }, rows * 8)
    } else if columns * 8 == n {
        ("awq", "awq", rows)
    } else {
        bail!("{layer}: qweight [{rows}, {columns}] fits scales of {n} outputs neither as GPTQ nor as AWQ of 4 bits");
    };
    if groups == 0 || k % groups != 0 {
        bail!("{layer}: {k} columns are no multiple of {groups} groups");
    }
    let codes = repacked(&codes, packing, [n, k / 2], false)?;
    let zero = repacked(&zeros, zero_packing, [n, groups], true)?;
    let scale = scales.t()?.contiguous()?;
    let group_size = k / groups;
    let weight = |codes| Weight::Int4 { codes, scale, zero: Some(zero), group_size, hadamard: 0 };

    let g_idx = format!("{layer}.g_idx");
    if packing == "gptq" && from.contains(&g_idx) {
        let group_of: Vec<i64> =
            from.tensor(&g_idx, &Device::Cpu)?.to_dtype(DType::I64)?.to_vec1()?;
        if let Some(order) = sorted(layer, &group_of, k, group_size)? {
            let codes = reordered(&codes, &order, device)?;
            let order = Tensor::from_vec(order, k, device)?;
            return Ok(QLinear::new(weight(codes), bias)?.with_order(order));
        }
    }
    QLinear::new(weight(codes), bias)
}

/// The columns in the order of their groups (act-order), or nothing where they are in it already.
fn sorted(layer: &str, group_of: &[i64], k: usize, group_size: usize) -> Result<Option<Vec<u32>>> {
    if group_of.len() != k {
        bail!("{layer}: g_idx has {} entries for {k} columns", group_of.len());
    }
    let mut order: Vec<u32> = (0..k as u32).collect();
    order.sort_by_key(|&column| group_of[column as usize]);
    for (at, &column) in order.iter().enumerate() {
        if group_of[column as usize] != (at / group_size) as i64 {
            bail!("{layer}: g_idx does not give each group {group_size} columns");
        }
    }
    let in_order = order.iter().enumerate().all(|(at, &column)| at == column as usize);
    Ok(if in_order { None } else { Some(order) })
}

/// The nibbles of each row in another order, once, when a layer is loaded.
fn reordered(codes: &Tensor, order: &[u32], device: &Device) -> Result<Tensor> {
    let (n, bytes) = codes.dims2()?;
    let old: Vec<u8> = codes.flatten_all()?.to_vec1()?;
    let mut new = vec![0u8; old.len()];
    for row in 0..n {
        let old = &old[row * bytes..][..bytes];
        let new = &mut new[row * bytes..][..bytes];
        for (at, &column) in order.iter().enumerate() {
            let column = column as usize;
            let nibble = old[column / 2] >> (column % 2 * 4) & 15;
            new[at / 2] |= nibble << (at % 2 * 4);
        }
    }
    Tensor::from_vec(new, (n, bytes), device)
}
