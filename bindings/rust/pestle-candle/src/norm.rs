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
    attach("rms_norm", &[x, weight], out, backward)
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
    attach("layer_norm", &[x, weight, bias], out, backward)
}

/// How [`adaln`] and [`rms_adaln`] normalise.
#[derive(Clone, Copy)]
enum Norm {
    Layer,
    Rms,
}

/// `layer_norm(x) * (1 + scale) + shift`, in `x`'s dtype: a diffusion transformer's modulation. Neighbouring
/// rows of x share a row of scale and shift: with x [B, S, K] they are [B, 1, K], or [B, S, K].
pub fn adaln(x: &Tensor, scale: &Tensor, shift: &Tensor, eps: f64) -> Result<Tensor> {
    modulated("adaln", Norm::Layer, x, scale, shift, eps)
}

/// [`adaln`] of an RMS norm.
pub fn rms_adaln(x: &Tensor, scale: &Tensor, shift: &Tensor, eps: f64) -> Result<Tensor> {
    modulated("rms_adaln", Norm::Rms, x, scale, shift, eps)
}

fn modulated(
    op: &'static str,
    norm: Norm,
    x: &Tensor,
    scale: &Tensor,
    shift: &Tensor,
    eps: f64,
) -> Result<Tensor> {
    if scale.dims() != shift.dims() || scale.dtype() != shift.dtype() {
        bail!(
            "{op}: scale {:?} and shift {:?} must have one shape and one dtype",
            scale.dims(),
            shift.dims()
        );
    }
    let inputs = [x, scale, shift].map(|arg| Some(In::new(arg)));
    let [out] = launch(op, inputs, [Out::like(x)], |views, [mut out], on| {
        let [Some(x), Some(scale), Some(shift)] = views else { bail!("{op}: no operands") };
        match norm {
            Norm::Layer => on.run(ops::adaln(x, scale, shift).out(&mut out).eps(eps)),
            Norm::Rms => on.run(ops::rms_adaln(x, scale, shift).out(&mut out).eps(eps)),
        }
    })?;
    let backward = move |args: &[&Tensor], _: &Tensor, d_out: &Tensor| {
        let inputs = [args[0], d_out, args[1]].map(|arg| Some(In::new(arg)));
        let outputs = [args[0], args[1], args[2]].map(Out::like);
        let made =
            launch(op, inputs, outputs, |views, [mut d_x, mut d_scale, mut d_shift], on| {
                let [Some(x), Some(d_out), Some(scale)] = views else { bail!("{op}: no operands") };
                let results = (&mut d_x, &mut d_scale, &mut d_shift);
                match norm {
                    Norm::Layer => on.run(
                        ops::adaln_backward(x, d_out, scale, results.0, results.1, results.2)
                            .eps(eps),
                    ),
                    Norm::Rms => on.run(
                        ops::rms_adaln_backward(x, d_out, scale, results.0, results.1, results.2)
                            .eps(eps),
                    ),
                }
            })?;
        Ok(made.into_iter().map(|made| Some(made.tensor())).collect())
    };
    attach(op, &[x, scale, shift], out, backward)
}

/// Group norm of x [B, C, ...] with weight and bias `[C]`: each of `groups` groups of neighbouring channels
/// has mean 0 and variance 1 first. In `x`'s dtype.
pub fn group_norm(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    groups: usize,
    eps: f64,
) -> Result<Tensor> {
    let op = "group_norm";
    let groups = groups as i64;
    let inputs = [x, weight, bias].map(|arg| Some(In::new(arg)));
    let [out] = launch(op, inputs, [Out::like(x)], |views, [mut out], on| {
        let [Some(x), Some(weight), Some(bias)] = views else { bail!("{op}: no operands") };
        let call = ops::group_norm(x).weight(weight).bias(bias).out(&mut out);
        on.run(call.groups(groups).eps(eps))
    })?;
    let backward = move |args: &[&Tensor], _: &Tensor, d_out: &Tensor| {
        let inputs = [args[0], d_out, args[1], args[2]].map(|arg| Some(In::new(arg)));
        let outputs = [args[0], args[1], args[2]].map(Out::like);
        let made =
            launch(op, inputs, outputs, |views, [mut d_x, mut d_weight, mut d_bias], on| {
                let [Some(x), Some(d_out), Some(weight), Some(bias)] = views else {
                    bail!("{op}: no operands")
                };
                on.run(
                    ops::group_norm_backward(x, d_out, &mut d_x)
                        .weight(weight)
                        .bias(bias)
                        .d_weight(&mut d_weight)
                        .d_bias(&mut d_bias)
                        .groups(groups)
                        .eps(eps),
                )
            })?;
        Ok(made.into_iter().map(|made| Some(made.tensor())).collect())
    };
    attach(op, &[x, weight, bias], out, backward)
}
