//! Attention: heads, grouped queries, causal both ways, lengths, a mask; the gradient of q, k and v.
use crate::graph::{attach, refuse_tracked};
use crate::memory::{launch, In, Made, Out};
use candle_core::{bail, DType, Device, Result, Tensor};
use pestle::ops;
use std::sync::Arc;

/// Which keys a query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Causal {
    /// All of them.
    #[default]
    No,
    /// Query i sees keys 0 to i.
    TopLeft,
    /// The last query sees all keys, the one before all but the last: decoding with a cache.
    BottomRight,
}

/// What [`attention`] may be told besides q, k and v.
#[derive(Debug, Clone, Default)]
pub struct Attention {
    /// Factor on the products; 1 / sqrt(D) if it is not given.
    pub scale: Option<f64>,
    pub causal: Causal,
    /// How many keys each of the batch has; all if it is not given. Keys beyond are not read.
    pub lengths: Option<Vec<usize>>,
    /// Added to the scaled products: [Sq, Sk], or anything that broadcasts to [B, H, Sq, Sk].
    pub mask: Option<Tensor>,
}

/// Sizes of a call, heads of queries in groups of those that share a key.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    heads: usize,
    groups: usize,
    queries: usize,
    keys: usize,
    d: usize,
    d_v: usize,
}

/// `softmax(q @ k^T * scale + mask) @ v` of heads q [B, Hq, Sq, D], k [B, Hk, Sk, D] and
/// v [B, Hk, Sk, Dv], where Hk divides Hq. Without the batch, or as plain matrices, too. Products
/// and sums are f32, the result has q's dtype.
///
/// Heads are a dimension of their own: heads that are folded into the rows would see each other.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, how: &Attention) -> Result<Tensor> {
    attention_to(q, k, v, how, q.dtype())
}

/// [`attention`] with a result of another float dtype.
pub fn attention_to(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    how: &Attention,
    dtype: DType,
) -> Result<Tensor> {
    let rank = q.rank();
    if !(2..=4).contains(&rank) || k.rank() != rank || v.rank() != rank {
        bail!(
            "attention: q {:?}, k {:?} and v {:?} must all be [B, H, S, D], [H, S, D] or [S, D]",
            q.dims(),
            k.dims(),
            v.dims()
        );
    }
    let four = |tensor: &Tensor| -> Result<Tensor> {
        (rank..4).try_fold(tensor.clone(), |tensor, _| tensor.unsqueeze(0))
    };
    let out = with_heads(&four(q)?, &four(k)?, &four(v)?, how, dtype)?;
    (rank..4).try_fold(out, |out, _| out.squeeze(0))
}

fn sizes(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Sizes> {
    let (batch, q_heads, queries, d) = q.dims4()?;
    let (_, heads, keys, _) = k.dims4()?;
    let d_v = v.dim(3)?;
    if k.dims() != [batch, heads, keys, d] || v.dims() != [batch, heads, keys, d_v] {
        bail!(
            "attention: q {:?}, k {:?} and v {:?} differ in batch, in D, or k and v in heads or keys",
            q.dims(),
            k.dims(),
            v.dims()
        );
    }
    if heads == 0 || q_heads % heads != 0 {
        bail!("attention: {q_heads} heads of q are no multiple of {heads} heads of k and v");
    }
    Ok(Sizes { batch, heads, groups: q_heads / heads, queries, keys, d, d_v })
}

fn with_heads(q: &Tensor, k: &Tensor, v: &Tensor, how: &Attention, dtype: DType) -> Result<Tensor> {
    let size = sizes(q, k, v)?;
    let scale = how.scale.unwrap_or_else(|| 1.0 / (size.d as f64).sqrt());
    let mask = mask_of(&size, how, q.device())?;
    // Queries of the heads that share keys are rows of one matrix.
    let rows = size.groups * size.queries;
    let folded = q.reshape((size.batch, size.heads, rows, size.d))?;

    let scores = product(In::new(&folded), In::new(k).transposed(), scores_out(&size))?;
    let weights = probabilities(&scores.tensor(), &size, scale, mask.as_ref())?;
    let out = Out::new(dtype, [size.batch, size.heads, rows, size.d_v]);
    let mut made = product(In::new(&weights), In::new(v), out)?;
    made.shape = vec![size.batch, size.heads * size.groups, size.queries, size.d_v];

    let weights = Arc::new(weights); // kept for the backward
    let backward = move |args: &[&Tensor], _: &Tensor, d_out: &Tensor| {
        gradients(args, d_out, &weights, &size, scale)
    };
    attach("attention", &[q, k, v], made, Box::new(backward))
}

fn scores_out(size: &Sizes) -> Out {
    Out::new(DType::F32, [size.batch, size.heads, size.groups * size.queries, size.keys])
}

fn product(a: In<'_>, b: In<'_>, out: Out) -> Result<Made> {
    let [made] = launch("attention", [Some(a), Some(b)], [out], |views, [mut out], on| {
        let [Some(a), Some(b)] = views else { bail!("attention: no operands") };
        on.run(ops::matmul(a, b).out(&mut out))
    })?;
    Ok(made)
}

fn probabilities(
    scores: &Tensor,
    size: &Sizes,
    scale: f64,
    mask: Option<&Tensor>,
) -> Result<Tensor> {
    let heads = [size.batch, size.heads, size.groups, size.queries, size.keys];
    let scores = scores.reshape(heads.to_vec())?;
    let inputs = [Some(In::new(&scores)), mask.map(In::new)];
    let [mut made] = launch("attention", inputs, [Out::like(&scores)], |views, [mut out], on| {
        let [Some(scores), mask] = views else { bail!("attention: no scores") };
        let mut call = ops::softmax(scores, &mut out).dim(-1).scale(scale);
        if let Some(mask) = mask {
            call = call.mask(mask);
        }
        on.run(call)
    })?;
    made.shape = vec![size.batch, size.heads, size.groups * size.queries, size.keys];
    Ok(made.tensor())
}

/// Of q, k and v, by the probabilities that the forward kept. The sum over queries that share a key
/// is the product's own sum over rows.
fn gradients(
    args: &[&Tensor],
    d_out: &Tensor,
    weights: &Tensor,
    size: &Sizes,
    scale: f64,
) -> Result<Vec<Option<Tensor>>> {
    let (q, k, v) = (args[0], args[1], args[2]);
    let rows = size.groups * size.queries;
    let q_rows = q.detach().reshape((size.batch, size.heads, rows, size.d))?;
    let d_rows = d_out.detach().reshape((size.batch, size.heads, rows, size.d_v))?;

    let d_v = product(In::new(weights).transposed(), In::new(&d_rows), Out::like(v))?;
    let d_weights = product(In::new(&d_rows), In::new(v).transposed(), scores_out(size))?.tensor();
    let inputs = [Some(In::new(&d_weights)), Some(In::new(weights))];
    let [d_scores] = launch("attention", inputs, [Out::like(weights)], |views, [mut d_x], on| {
        let [Some(d_out), Some(out)] = views else { bail!("attention: no weights") };
        on.run(ops::softmax_backward(d_out, out, &mut d_x).dim(-1).scale(scale))
    })?;
    let d_scores = d_scores.tensor();
    let mut d_q = product(In::new(&d_scores), In::new(k), Out::like(&q_rows))?;
    d_q.shape = q.dims().to_vec();
    let d_k = product(In::new(&d_scores).transposed(), In::new(&q_rows), Out::like(k))?;
    Ok([d_q, d_k, d_v].map(|made| Some(made.tensor())).into())
}

/// What is added to the scores [B, Hk, G, Sq, Sk], if anything is.
fn mask_of(size: &Sizes, how: &Attention, device: &Device) -> Result<Option<Tensor>> {
    let own = structural(size, how, device)?;
    let Some(given) = &how.mask else { return Ok(own) };
    refuse_tracked("attention", &[("mask", given)], "attention gives it no gradient")?;
    let heads = size.heads * size.groups;
    let given = match *given.dims() {
        // A dimension of heads becomes those of heads and groups.
        [.., h, queries, keys] if h == heads && h > 1 => {
            let batch = if given.rank() == 4 { given.dim(0)? } else { 1 };
            given.reshape((batch, size.heads, size.groups, queries, keys))?
        }
        [batch, 1, queries, keys] => given.reshape((batch, 1, 1, queries, keys))?,
        [1, _, _] | [_, _] => given.clone(),
        _ => bail!("attention: mask {:?} is not one of [B, H, Sq, Sk]", given.dims()),
    };
    match own {
        Some(own) => Ok(Some(own.broadcast_add(&given.to_dtype(DType::F32)?)?)),
        None => Ok(Some(given)),
    }
}

/// Minus infinity where causality or a length hides a key: [Sq, Sk], or [B, 1, 1, Sq, Sk].
fn structural(size: &Sizes, how: &Attention, device: &Device) -> Result<Option<Tensor>> {
    let (queries, keys) = (size.queries, size.keys);
    if how.causal == Causal::No && how.lengths.is_none() {
        return Ok(None);
    }
    let lengths = match &how.lengths {
        None => vec![keys],
        Some(lengths) if lengths.len() == size.batch => lengths.clone(),
        Some(lengths) => {
            bail!("attention: {} lengths for a batch of {}", lengths.len(), size.batch)
        }
    };
    let mut values = Vec::with_capacity(lengths.len() * queries * keys);
    for &length in &lengths {
        if length == 0 || length > keys {
            bail!("attention: a length of {length} is not between 1 and {keys}, the keys");
        }
        for query in 0..queries {
            let seen = match how.causal {
                Causal::No => length,
                Causal::TopLeft => length.min(query + 1),
                Causal::BottomRight => (length + query + 1).saturating_sub(queries).min(length),
            };
            if seen == 0 {
                bail!("attention: query {query} of {queries} sees none of {length} keys");
            }
            values.extend((0..keys).map(|key| if key < seen { 0f32 } else { f32::NEG_INFINITY }));
        }
    }
    let shape = if lengths.len() == 1 {
        vec![queries, keys]
    } else {
        vec![lengths.len(), 1, 1, queries, keys]
    };
    Ok(Some(Tensor::from_vec(values, shape, device)?))
}
