//! Norms over the last dimension, with gradients of x, weight and bias. Statistics are f32.
use crate::graph::attach;
use crate::memory::{launch, In, Out};
use candle_core::{bail, Result, Tensor};
use pestle::ops;

/// `x / sqrt(mean(x^2) + eps) * weight`, in `x`'s dtype.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let inputs = [Some(In::new(x)), Some(In::new(weight))];
    let [out] = launch("rms_norm", inputs, [Out::like(x)], |views, [mut out], on| {
        let [Some(x), Some(weight)] = views else { bail!("rms_norm: no operands") };
        on.run(ops::rms_norm(x).weight(weight).out(&mut out).eps(eps))
    })?;
    let backward = move |args: &[&Tensor], _: &Tensor, d_out: &Tensor| {
        let inputs = [Some(In::new(args[0])), Some(In::new(d_out)), Some(In::new(args[1]))];
        let outputs = [Out::like(args[0]), Out::like(args[1])];
        let made = launch("rms_norm", inputs, outputs, |views, [mut d_x, mut d_weight], on| {
            let [Some(x), Some(d_out), Some(weight)] = views else {
                bail!("rms_norm: no operands")
            };
            on.run(
                ops::rms_norm_backward(x, d_out, &mut d_x)
                    .weight(weight)
                    .d_weight(&mut d_weight)
                    .eps(eps),
            )
        })?;
        Ok(made.into_iter().map(|made| Some(made.tensor())).collect())
    };
    attach("rms_norm", &[x, weight], out, Box::new(backward))
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias`, in `x`'s dtype.
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor> {
    let inputs = [Some(In::new(x)), Some(In::new(weight)), Some(In::new(bias))];
    let [out] = launch("layer_norm", inputs, [Out::like(x)], |views, [mut out], on| {
        let [Some(x), Some(weight), Some(bias)] = views else { bail!("layer_norm: no operands") };
        on.run(ops::layer_norm(x).weight(weight).bias(bias).out(&mut out).eps(eps))
    })?;
    let backward = move |args: &[&Tensor], _: &Tensor, d_out: &Tensor| {
        let [x, weight, bias] = [args[0], args[1], args[2]].map(|arg| Some(In::new(arg)));
        let inputs = [x, Some(In::new(d_out)), weight, bias];
        let outputs = [args[0], args[1], args[2]].map(Out::like);
        let made = launch("layer_norm", inputs, outputs, |views, results, on| {
            let [Some(x), Some(d_out), Some(weight), Some(bias)] = views else {
                bail!("layer_norm: no operands")
            };
            let [mut d_x, mut d_weight, mut d_bias] = results;
            on.run(
                ops::layer_norm_backward(x, d_out, &mut d_x)
                    .weight(weight)
                    .bias(bias)
                    .d_weight(&mut d_weight)
                    .d_bias(&mut d_bias)
                    .eps(eps),
            )
        })?;
        Ok(made.into_iter().map(|made| Some(made.tensor())).collect())
    };
    attach("layer_norm", &[x, weight, bias], out, Box::new(backward))
}
