//! Products of float matrices: f32 accumulation, any strides, any output dtype, gradients by one op.
use crate::graph::attach;
use crate::memory::{launch, In, Out};
use candle_core::{bail, DType, Result, Tensor};
use pestle::ops;

/// `a @ b` in `a`'s dtype. Dimensions before the last two broadcast; a transposed view costs nothing.
pub fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    matmul_to(a, b, a.dtype())
}

/// `a @ b` in a dtype of choice: f16, bf16 or f32, each sum rounded once.
pub fn matmul_to(a: &Tensor, b: &Tensor, dtype: DType) -> Result<Tensor> {
    if a.rank() < 2 || b.rank() < 2 {
        bail!("matmul: a {:?} and b {:?} need two dimensions or more", a.dims(), b.dims());
    }
    if b.rank() == 2 && a.rank() > 2 {
        return flat(a, b, None, dtype); // one matrix for all: its gradient is one product
    }
    let (a, b) = broadcast(a, b)?;
    product(&a, &b, None, dtype)
}

/// `x @ weight^T + bias` with a weight [N, K] as files hold it, in `x`'s dtype. The weight may have
/// another float dtype than `x`.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let k = x.dims().last().copied().unwrap_or(0);
    if weight.rank() != 2 || weight.dim(1)? != k {
        bail!("linear: weight {:?} is not [N, {k}] of x {:?}", weight.dims(), x.dims());
    }
    flat(x, &weight.t()?, bias, x.dtype())
}

/// Rows of any number of dimensions times one matrix.
fn flat(x: &Tensor, b: &Tensor, bias: Option<&Tensor>, dtype: DType) -> Result<Tensor> {
    let (k, n) = (x.dim(x.rank() - 1)?, b.dim(1)?);
    let mut shape = x.dims().to_vec();
    let rows = shape[..shape.len() - 1].iter().product::<usize>();
    shape[x.rank() - 1] = n;
    product(&x.reshape((rows, k))?, b, bias, dtype)?.reshape(shape)
}

fn broadcast(a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor)> {
    let (batch_a, batch_b) = (&a.dims()[..a.rank() - 2], &b.dims()[..b.rank() - 2]);
    if batch_a == batch_b {
        return Ok((a.clone(), b.clone()));
    }
    let rank = batch_a.len().max(batch_b.len());
    let size =
        |batch: &[usize], d: usize| (d + batch.len()).checked_sub(rank).map_or(1, |at| batch[at]);
    let batch = (0..rank).map(|d| size(batch_a, d).max(size(batch_b, d))).collect::<Vec<_>>();
    let to = |tensor: &Tensor| {
        let shape = [&batch[..], &tensor.dims()[tensor.rank() - 2..]].concat();
        tensor.broadcast_as(shape)
    };
    Ok((to(a)?, to(b)?))
}

/// Of equal leading dimensions; with a bias over the columns.
fn product(a: &Tensor, b: &Tensor, bias: Option<&Tensor>, dtype: DType) -> Result<Tensor> {
    let rank = a.rank();
    let mut shape = a.dims().to_vec();
    shape[rank - 1] = b.dim(b.rank() - 1)?;
    let inputs = [Some(In::new(a)), Some(In::new(b)), bias.map(In::new)];
    let [out] = launch("matmul", inputs, [Out::new(dtype, shape)], |views, [mut out], on| {
        let [Some(a), Some(b), bias] = views else { bail!("matmul: no operands") };
        let mut call = ops::matmul(a, b).out(&mut out);
        if let Some(bias) = bias {
            call = call.bias(bias);
        }
        on.run(call)
    })?;
    let backward = |args: &[&Tensor], _: &Tensor, d_out: &Tensor| gradients(args, d_out);
    match bias {
        Some(bias) => attach("matmul", &[a, b, bias], out, backward),
        None => attach("matmul", &[a, b], out, backward),
    }
}

/// Those of a, b and the bias, if there is one.
fn gradients(args: &[&Tensor], d_out: &Tensor) -> Result<Vec<Option<Tensor>>> {
    let (a, b) = (args[0], args[1]);
    let inputs = [Some(In::new(d_out)), Some(In::new(a)), Some(In::new(b))];
    let Some(bias) = args.get(2) else {
        let outputs = [Out::like(a), Out::like(b)];
        let made = launch("matmul", inputs, outputs, |views, [mut d_a, mut d_b], on| {
            let [Some(d_out), Some(a), Some(b)] = views else { bail!("matmul: no operands") };
            on.run(ops::matmul_backward(d_out, a, b, &mut d_a, &mut d_b))
        })?;
        return Ok(made.into_iter().map(|made| Some(made.tensor())).collect());
    };
    let [d_out, a_in, b_in] = inputs;
    let inputs = [d_out, a_in, b_in, Some(In::new(bias))];
    let outputs = [Out::like(a), Out::like(b), Out::like(bias)];
    let made = launch("matmul", inputs, outputs, |views, [mut d_a, mut d_b, mut d_bias], on| {
        let [Some(d_out), Some(a), Some(b), Some(bias)] = views else {
            bail!("matmul: no operands")
        };
        on.run(ops::matmul_backward(d_out, a, b, &mut d_a, &mut d_b).bias(bias).d_bias(&mut d_bias))
    })?;
    Ok(made.into_iter().map(|made| Some(made.tensor())).collect())
}
