//! Rotary position embedding, after an RMS norm of the heads or without.
use crate::graph::{attach, refuse_tracked};
use crate::memory::{launch, In, Out};
use candle_core::{bail, Result, Tensor};
use pestle::ops;

/// Which elements of a head rotate together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairs {
    /// `i` and `i + D/2`: candle's `rope`, GPT-NeoX, Llama in transformers.
    SplitHalf,
    /// `2i` and `2i + 1`: candle's `rope_i`, GPT-J.
    Interleaved,
}

/// Rotates heads `x` [B, H, S, D] by `cos` and `sin` [S, D/2], or [B, S, D/2]. Positions have no
/// gradient.
pub fn rope(x: &Tensor, cos: &Tensor, sin: &Tensor, pairs: Pairs) -> Result<Tensor> {
    refuse_tracked("rope", &[("cos", cos), ("sin", sin)], "positions have no gradient")?;
    let Ok((_, _, seq, _)) = x.dims4() else {
        bail!("rope: x {:?} is not [B, H, S, D]", x.dims());
    };
    let (cos, sin) = (four(cos, seq)?, four(sin, seq)?);
    let out = turned(x, &cos, &sin, pairs, false)?;
    let backward = move |_: &[&Tensor], _: &Tensor, d_out: &Tensor| {
        Ok(vec![Some(turned(d_out, &cos, &sin, pairs, true)?.tensor())])
    };
    attach("rope", &[x], out, backward)
}

/// [`rope`] of `rms_norm(x) * weight`: what models do to queries and keys, in one pass. The norm is over the
/// last dimension; positions have no gradient.
pub fn rms_rope(
    x: &Tensor,
    weight: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    pairs: Pairs,
    eps: f64,
) -> Result<Tensor> {
    let op = "rms_rope";
    refuse_tracked(op, &[("cos", cos), ("sin", sin)], "positions have no gradient")?;
    let Ok((_, _, seq, _)) = x.dims4() else {
        bail!("{op}: x {:?} is not [B, H, S, D]", x.dims());
    };
    let (cos, sin) = (four(cos, seq)?, four(sin, seq)?);
    let inputs = [x, weight, &cos, &sin].map(|arg| Some(In::new(arg)));
    let [out] = launch(op, inputs, [Out::like(x)], |views, [mut out], on| {
        let [Some(x), Some(weight), Some(cos), Some(sin)] = views else {
            bail!("{op}: no operands")
        };
        let call = ops::rms_rope(x, weight, &mut out).cos(cos).sin(sin).eps(eps);
        on.run(match pairs {
            Pairs::SplitHalf => call.pairs(ops::rms_rope::Pairs::SplitHalf),
            Pairs::Interleaved => call.pairs(ops::rms_rope::Pairs::Interleaved),
        })
    })?;
    let backward = move |args: &[&Tensor], _: &Tensor, d_out: &Tensor| {
        let inputs = [d_out, args[0], args[1], &cos, &sin].map(|arg| Some(In::new(arg)));
        let outputs = [args[0], args[1]].map(Out::like);
        let made = launch(op, inputs, outputs, |views, [mut d_x, mut d_weight], on| {
            let [Some(d_out), Some(x), Some(weight), Some(cos), Some(sin)] = views else {
                bail!("{op}: no operands")
            };
            let call = ops::rms_rope_backward(d_out, x, weight, &mut d_x, &mut d_weight);
            let call = call.cos(cos).sin(sin).eps(eps);
            on.run(match pairs {
                Pairs::SplitHalf => call.pairs(ops::rms_rope_backward::Pairs::SplitHalf),
                Pairs::Interleaved => call.pairs(ops::rms_rope_backward::Pairs::Interleaved),
            })
        })?;
        Ok(made.into_iter().map(|made| Some(made.tensor())).collect())
    };
    attach(op, &[x, weight], out, backward)
}

/// The first `seq` positions, with dimensions of batch and heads.
fn four(angles: &Tensor, seq: usize) -> Result<Tensor> {
    let dims = angles.dims();
    if !(2..=3).contains(&dims.len()) || dims[dims.len() - 2] < seq {
        bail!("rope: cos and sin {dims:?} are not [S, D/2] or [B, S, D/2] of {seq} positions");
    }
    let angles = angles.narrow(dims.len() - 2, 0, seq)?;
    if dims.len() == 2 {
        angles.unsqueeze(0)?.unsqueeze(0)
    } else {
        angles.unsqueeze(1)
    }
}

fn turned(
    x: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    pairs: Pairs,
    inverse: bool,
) -> Result<crate::memory::Made> {
    let inputs = [x, cos, sin].map(|arg| Some(In::new(arg)));
    let pairs = match pairs {
        Pairs::SplitHalf => ops::apply_rope::Pairs::SplitHalf,
        Pairs::Interleaved => ops::apply_rope::Pairs::Interleaved,
    };
    let [out] = launch("rope", inputs, [Out::like(x)], |views, [mut out], on| {
        let [Some(x), Some(cos), Some(sin)] = views else { bail!("rope: no operands") };
        on.run(ops::apply_rope(x, &mut out).cos(cos).sin(sin).pairs(pairs).inverse(inverse))
    })?;
    Ok(out)
}
