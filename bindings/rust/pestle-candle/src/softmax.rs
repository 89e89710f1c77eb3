//! Softmax and its logarithm along any dimension, with a scale and an additive mask.
use crate::graph::{attach, refuse_tracked};
use crate::memory::{launch, In, Out};
use candle_core::{bail, shape::Dim, Result, Tensor};
use pestle::ops;

/// Softmax along `dim`, in `x`'s dtype.
pub fn softmax<D: Dim>(x: &Tensor, dim: D) -> Result<Tensor> {
    softmax_with(x, dim, 1.0, None)
}

/// Softmax of `scale * x + mask` along `dim`. Each dimension of the mask, counted from the last, is
/// `x`'s or 1. The mask has no gradient.
pub fn softmax_with<D: Dim>(
    x: &Tensor,
    dim: D,
    scale: f64,
    mask: Option<&Tensor>,
) -> Result<Tensor> {
    let dim = dim.to_index(x.shape(), "softmax")? as i64;
    if let Some(mask) = mask {
        refuse_tracked("softmax", &[("mask", mask)], "softmax gives it no gradient")?;
    }
    let inputs = [Some(In::new(x)), mask.map(In::new)];
    let [out] = launch("softmax", inputs, [Out::like(x)], |views, [mut out], on| {
        let [Some(x), mask] = views else { bail!("softmax: no operand") };
        let mut call = ops::softmax(x, &mut out).dim(dim).scale(scale);
        if let Some(mask) = mask {
            call = call.mask(mask);
        }
        on.run(call)
    })?;
    let backward = move |_: &[&Tensor], out: &Tensor, d_out: &Tensor| {
        let inputs = [Some(In::new(d_out)), Some(In::new(out))];
        let [d_x] = launch("softmax", inputs, [Out::like(out)], |views, [mut d_x], on| {
            let [Some(d_out), Some(out)] = views else { bail!("softmax: no operands") };
            on.run(ops::softmax_backward(d_out, out, &mut d_x).dim(dim).scale(scale))
        })?;
        Ok(vec![Some(d_x.tensor())])
    };
    attach("softmax", &[x], out, backward)
}

/// The logarithm of [`softmax`] along `dim`, in `x`'s dtype.
pub fn log_softmax<D: Dim>(x: &Tensor, dim: D) -> Result<Tensor> {
    let dim = dim.to_index(x.shape(), "log_softmax")? as i64;
    let inputs = [Some(In::new(x))];
    let [out] = launch("log_softmax", inputs, [Out::like(x)], |views, [mut out], on| {
        let [Some(x)] = views else { bail!("log_softmax: no operand") };
        on.run(ops::log_softmax(x, &mut out).dim(dim))
    })?;
    let backward = move |_: &[&Tensor], out: &Tensor, d_out: &Tensor| {
        let inputs = [Some(In::new(d_out)), Some(In::new(out))];
        let [d_x] = launch("log_softmax", inputs, [Out::like(out)], |views, [mut d_x], on| {
            let [Some(d_out), Some(out)] = views else { bail!("log_softmax: no operands") };
            on.run(ops::log_softmax_backward(d_out, out, &mut d_x).dim(dim))
        })?;
        Ok(vec![Some(d_x.tensor())])
    };
    attach("log_softmax", &[x], out, backward)
}
