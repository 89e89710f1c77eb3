//! Attention: heads, grouped queries, causal both ways, windows, lengths, a mask; the gradient of q, k
//! and v. Nothing grows with queries times keys: the backward starts from the log-sum-exps.
use crate::graph::{attach, refuse_tracked};
use crate::memory::{launch, In, Kind, Made, Out};
use candle_core::{bail, DType, Device, Result, Tensor};
use pestle::ops;

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
    /// How many keys before its place a query sees at most; all if it is not given. Its place is that
    /// of [`Causal::TopLeft`], or with [`Causal::BottomRight`] the one counted from the last key.
    pub window: Option<usize>,
    /// Scaled products become `softcap * tanh(product / softcap)`.
    pub softcap: Option<f64>,
    /// How many keys each of the batch has; all if it is not given. Keys beyond are not read.
    pub lengths: Option<Vec<usize>>,
    /// Floats that are added to the scaled products, or bytes (U8) that are 0 where a key is hidden:
    /// [Sq, Sk], or anything that broadcasts to [B, H, Sq, Sk].
    pub mask: Option<Tensor>,
}

/// `softmax(q @ k^T * scale + mask) @ v` of heads q [B, Hq, Sq, D], k [B, Hk, Sk, D] and
/// v [B, Hk, Sk, Dv], where Hk divides Hq. Without the batch, or as plain matrices, too. Sums are
/// f32, the result has q's dtype. A query that sees no key gets 0.
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
    let out = with_heads(&four(q)?, &four(k)?, &four(v)?, how, dtype)?;
    (rank..4).try_fold(out, |out, _| out.squeeze(0))
}

/// Dimensions of size 1 in front, until there are four.
fn four(tensor: &Tensor) -> Result<Tensor> {
    (tensor.rank()..4).try_fold(tensor.clone(), |tensor, _| tensor.unsqueeze(0))
}

/// What a call and its backward are told besides q, k and v.
#[derive(Clone)]
struct Options {
    scale: f64,
    softcap: f64,
    causal: bool,
    align: &'static str,
    window: i64,
    mask: Option<Tensor>,
    lengths: Option<Tensor>,
}

impl Options {
    fn new(how: &Attention, batch: usize, keys: usize, device: &Device) -> Result<Self> {
        if how.scale == Some(0.0) {
            bail!(
                "attention: a scale of 0 would make all keys alike; leave it out for 1 / sqrt(D)"
            );
        }
        Ok(Options {
            scale: how.scale.unwrap_or(0.0),
            softcap: how.softcap.unwrap_or(0.0),
            causal: how.causal != Causal::No,
            align: if how.causal == Causal::BottomRight { "bottom_right" } else { "top_left" },
            window: how.window.map_or(Ok(-1), i64::try_from).map_err(candle_core::Error::wrap)?,
            mask: how.mask.as_ref().map(mask_of).transpose()?,
            lengths: lengths_of(how, batch, keys, device)?,
        })
    }

    /// As arguments of an op: the mask and the lengths.
    fn inputs(&self) -> [Option<In<'_>>; 2] {
        let mask = self.mask.as_ref().map(|mask| match mask.dtype() {
            DType::U8 => In::coded(mask, Kind::Bool),
            _ => In::new(mask),
        });
        [mask, self.lengths.as_ref().map(In::new)]
    }
}

fn mask_of(mask: &Tensor) -> Result<Tensor> {
    refuse_tracked("attention", &[("mask", mask)], "attention gives it no gradient")?;
    if !(2..=4).contains(&mask.rank()) {
        bail!("attention: mask {:?} is not one of [B, H, Sq, Sk]", mask.dims());
    }
    four(mask)
}

fn lengths_of(
    how: &Attention,
    batch: usize,
    keys: usize,
    device: &Device,
) -> Result<Option<Tensor>> {
    let Some(lengths) = &how.lengths else { return Ok(None) };
    if lengths.len() != batch {
        bail!("attention: {} lengths for a batch of {batch}", lengths.len());
    }
    if let Some(length) = lengths.iter().find(|&&length| length > keys) {
        bail!("attention: a length of {length} is not between 0 and {keys}, the keys");
    }
    let lengths: Vec<i64> = lengths.iter().map(|&length| length as i64).collect();
    Tensor::from_vec(lengths, batch, device).map(Some)
}

/// Sets on a call of either op what [`Options`] says.
macro_rules! told {
    ($call:expr, $module:ident, $options:expr, $mask:expr, $lengths:expr) => {{
        let mut call = $call
            .scale($options.scale)
            .softcap($options.softcap)
            .causal($options.causal)
            .window_left($options.window)
            .align(crate::weight::label::<ops::$module::Align>($options.align)?);
        if let Some(mask) = $mask {
            call = call.mask(mask);
        }
        if let Some(lengths) = $lengths {
            call = call.key_lengths(lengths);
        }
        call
    }};
}

fn with_heads(q: &Tensor, k: &Tensor, v: &Tensor, how: &Attention, dtype: DType) -> Result<Tensor> {
    let (batch, heads, queries, _) = q.dims4()?;
    let (_, _, keys, d_v) = v.dims4()?;
    let options = Options::new(how, batch, keys, q.device())?;
    let out = Out::new(dtype, [batch, heads, queries, d_v]);
    if ![q, k, v].iter().any(|arg| arg.track_op()) {
        return Ok(forward(q, k, v, &options, out)?.tensor());
    }
    let lse = Out::new(DType::F32, [batch, heads, queries]);
    let [out, lse] = forward_with_lse(q, k, v, &options, [out, lse])?;
    let lse = lse.tensor(); // kept for the backward
    let backward = move |args: &[&Tensor], out: &Tensor, d_out: &Tensor| {
        gradients(args, out, &lse, d_out, &options)
    };
    attach("attention", &[q, k, v], out, backward)
}

fn forward(q: &Tensor, k: &Tensor, v: &Tensor, options: &Options, out: Out) -> Result<Made> {
    let [mask, lengths] = options.inputs();
    let inputs = [Some(In::new(q)), Some(In::new(k)), Some(In::new(v)), mask, lengths];
    let [made] = launch("attention", inputs, [out], |views, [mut out], on| {
        let [Some(q), Some(k), Some(v), mask, lengths] = views else {
            bail!("attention: no operands")
        };
        let call = ops::attention(q, k, v, &mut out);
        on.run(told!(call, attention, options, mask, lengths))
    })?;
    Ok(made)
}

/// [`forward`] that also gives the log-sum-exp of each query.
fn forward_with_lse(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    options: &Options,
    outputs: [Out; 2],
) -> Result<[Made; 2]> {
    let [mask, lengths] = options.inputs();
    let inputs = [Some(In::new(q)), Some(In::new(k)), Some(In::new(v)), mask, lengths];
    launch("attention", inputs, outputs, |views, [mut out, mut lse], on| {
        let [Some(q), Some(k), Some(v), mask, lengths] = views else {
            bail!("attention: no operands")
        };
        let call = ops::attention(q, k, v, &mut out).lse(&mut lse);
        on.run(told!(call, attention, options, mask, lengths))
    })
}

/// Of q, k and v.
fn gradients(
    args: &[&Tensor],
    out: &Tensor,
    lse: &Tensor,
    d_out: &Tensor,
    options: &Options,
) -> Result<Vec<Option<Tensor>>> {
    let [mask, lengths] = options.inputs();
    let [q, k, v, out, d_out] = [args[0], args[1], args[2], out, d_out].map(|t| Some(In::new(t)));
    let inputs = [d_out, q, k, v, out, Some(In::new(lse)), mask, lengths];
    let outputs = [Out::like(args[0]), Out::like(args[1]), Out::like(args[2])];
    let made = launch("attention", inputs, outputs, |views, [mut d_q, mut d_k, mut d_v], on| {
        let [Some(d_out), Some(q), Some(k), Some(v), Some(out), Some(lse), mask, lengths] = views
        else {
            bail!("attention: no operands")
        };
        let call = ops::attention_backward(d_out, q, k, v, out, lse, &mut d_q, &mut d_k, &mut d_v);
        on.run(told!(call, attention_backward, options, mask, lengths))
    })?;
    Ok(made.into_iter().map(|made| Some(made.tensor())).collect())
}
