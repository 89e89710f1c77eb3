//! Rotation by the regular Hadamard matrix.
use crate::graph::attach;
use crate::memory::{launch, In, Made, Out};
use candle_core::{bail, Result, Tensor};
use pestle::ops;

/// Rotates each `group` of neighbouring elements along the last dimension: 4, 16, 64, 256 or 1024 of them.
/// Twice is the identity, and so is the gradient.
pub fn hadamard(x: &Tensor, group: usize) -> Result<Tensor> {
    let out = rotated(x, group)?;
    let backward = move |_: &[&Tensor], _: &Tensor, d_out: &Tensor| {
        Ok(vec![Some(rotated(d_out, group)?.tensor())])
    };
    attach("hadamard", &[x], out, backward)
}

fn rotated(x: &Tensor, group: usize) -> Result<Made> {
    let inputs = [Some(In::new(x))];
    let [out] = launch("hadamard", inputs, [Out::like(x)], |views, [mut out], on| {
        let [Some(x)] = views else { bail!("hadamard: no operand") };
        on.run(ops::hadamard(x, &mut out).hadamard(group as i64))
    })?;
    Ok(out)
}
