//! Activations, alone or multiplied by a gate.
use crate::graph::attach;
use crate::memory::{launch, In, Out};
use candle_core::{bail, Result, Tensor};
use pestle::ops;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x * Phi(x)`, by the error function.
    Gelu,
    /// GELU by its tanh approximation.
    GeluTanh,
}

impl Activation {
    fn label(self) -> &'static str {
        match self {
            Activation::Silu => "silu",
            Activation::Gelu => "gelu",
            Activation::GeluTanh => "gelu_tanh",
        }
    }

    fn parse<T: std::str::FromStr<Err = pestle::Error>>(self) -> Result<T> {
        self.label().parse().map_err(crate::memory::sentence)
    }
}

/// The activation of every element.
pub fn activation(x: &Tensor, act: Activation) -> Result<Tensor> {
    let [out] =
        launch("activation", [Some(In::new(x))], [Out::like(x)], |views, [mut out], on| {
            let [Some(x)] = views else { bail!("activation: no operand") };
            on.run(ops::activation(x).out(&mut out).act(act.parse()?))
        })?;
    let backward = move |args: &[&Tensor], _: &Tensor, d_out: &Tensor| {
        let inputs = [Some(In::new(d_out)), Some(In::new(args[0]))];
        let outputs = [Out::like(args[0])];
        let [d_x] = launch("activation", inputs, outputs, |views, [mut d_x], on| {
            let [Some(d_out), Some(x)] = views else { bail!("activation: no operands") };
            on.run(ops::activation_backward(d_out, x, &mut d_x).act(act.parse()?))
        })?;
        Ok(vec![Some(d_x.tensor())])
    };
    attach("activation", &[x], out, backward)
}

/// `act(x) * gate` in one pass: SwiGLU's and GeGLU's middle.
pub fn gated(x: &Tensor, gate: &Tensor, act: Activation) -> Result<Tensor> {
    let inputs = [Some(In::new(x)), Some(In::new(gate))];
    let [out] = launch("gated_activation", inputs, [Out::like(x)], |views, [mut out], on| {
        let [Some(x), Some(gate)] = views else { bail!("gated_activation: no operands") };
        on.run(ops::gated_activation(x).gate(gate).out(&mut out).act(act.parse()?))
    })?;
    let backward = move |args: &[&Tensor], _: &Tensor, d_out: &Tensor| {
        let inputs = [d_out, args[0], args[1]].map(|arg| Some(In::new(arg)));
        let outputs = [args[0], args[1]].map(Out::like);
        let made =
            launch("gated_activation", inputs, outputs, |views, [mut d_x, mut d_gate], on| {
                let [Some(d_out), Some(x), Some(gate)] = views else {
                    bail!("gated_activation: no operands")
                };
                on.run(
                    ops::gated_activation_backward(d_out, x, &mut d_x)
                        .gate(gate)
                        .d_gate(&mut d_gate)
                        .act(act.parse()?),
                )
            })?;
        Ok(made.into_iter().map(|made| Some(made.tensor())).collect())
    };
    attach("gated_activation", &[x, gate], out, backward)
}

/// `silu(x) * gate`.
pub fn silu_mul(x: &Tensor, gate: &Tensor) -> Result<Tensor> {
    gated(x, gate, Activation::Silu)
}
