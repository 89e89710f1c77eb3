//! Every op that trains, its result and its gradients against plain f64 operations of candle.
mod common;
use candle_core::{DType, Result, Tensor, Var, D};
use common::{assert_close, assert_same_with_gradients, f64s, place, tensor, var};
use pestle_candle::activation::{activation, gated};
use pestle_candle::{
    layer_norm, linear, matmul, matmul_to, rms_norm, rope, silu_mul, softmax, softmax_with,
    Activation, Pairs,
};

const TIGHT: (f64, f64) = (1e-4, 2e-5);
const BF16: (f64, f64) = (3e-2, 3e-2);

#[test]
fn matmul_with_broadcast_dimensions() {
    let plain = |t: &[Tensor]| t[0].broadcast_matmul(&t[1]);
    let ours = |t: &[Tensor]| matmul(&t[0], &t[1]);
    for shapes in [
        [&[5, 7][..], &[7, 3][..]],
        [&[2, 3, 5, 7], &[7, 3]],
        [&[2, 1, 5, 7], &[4, 7, 3]],
        [&[3, 4, 6], &[3, 6, 2]],
    ] {
        assert_same_with_gradients(&ours, &plain, &shapes, DType::F32, TIGHT);
    }
}

#[test]
fn matmul_of_turned_and_cut_operands() {
    let cut = |t: &[Tensor]| -> Result<(Tensor, Tensor)> {
        Ok((t[0].t()?.narrow(0, 2, 5)?, t[1].narrow(1, 3, 4)?))
    };
    let ours = |t: &[Tensor]| cut(t).and_then(|(a, b)| matmul(&a, &b));
    let plain = |t: &[Tensor]| cut(t).and_then(|(a, b)| a.contiguous()?.matmul(&b.contiguous()?));
    assert_same_with_gradients(&ours, &plain, &[&[6, 9], &[6, 8]], DType::F32, TIGHT);
}

#[test]
fn linear_with_bias_in_both_dtypes() {
    let ours = |t: &[Tensor]| linear(&t[0], &t[1], Some(&t[2]));
    let plain = |t: &[Tensor]| t[0].broadcast_matmul(&t[1].t()?)?.broadcast_add(&t[2]);
    let shapes = [&[2, 5, 7][..], &[4, 7], &[4]];
    assert_same_with_gradients(&ours, &plain, &shapes, DType::F32, TIGHT);
    assert_same_with_gradients(&ours, &plain, &shapes, DType::BF16, BF16);
}

#[test]
fn a_result_of_another_dtype() {
    let (a, b) = (var(&[4, 6], 1, DType::BF16), var(&[6, 3], 2, DType::BF16));
    let out = matmul_to(&a, &b, DType::F32).unwrap();
    assert_eq!(out.dtype(), DType::F32);
    let want = a.to_dtype(DType::F64).unwrap().matmul(&b.to_dtype(DType::F64).unwrap()).unwrap();
    assert_close(&out, &want, 1e-6, 1e-6);
    let gradients = out.sum_all().unwrap().backward().unwrap();
    assert_eq!(gradients.get(&a).unwrap().dtype(), DType::BF16);
}

#[test]
fn rms_norm_of_x_and_weight() {
    let ours = |t: &[Tensor]| rms_norm(&t[0], &t[1], 1e-5);
    let plain = |t: &[Tensor]| {
        let mean = (t[0].sqr()?.mean_keepdim(D::Minus1)? + 1e-5)?;
        t[0].broadcast_div(&mean.sqrt()?)?.broadcast_mul(&t[1])
    };
    assert_same_with_gradients(&ours, &plain, &[&[2, 3, 33], &[33]], DType::F32, TIGHT);
    assert_same_with_gradients(&ours, &plain, &[&[4, 64], &[64]], DType::BF16, BF16);
}

#[test]
fn layer_norm_of_x_weight_and_bias() {
    let ours = |t: &[Tensor]| layer_norm(&t[0], &t[1], &t[2], 1e-5);
    let plain = |t: &[Tensor]| {
        let centred = t[0].broadcast_sub(&t[0].mean_keepdim(D::Minus1)?)?;
        let variance = (centred.sqr()?.mean_keepdim(D::Minus1)? + 1e-5)?;
        let normal = centred.broadcast_div(&variance.sqrt()?)?;
        normal.broadcast_mul(&t[1])?.broadcast_add(&t[2])
    };
    let shapes = [&[3, 2, 40][..], &[40], &[40]];
    assert_same_with_gradients(&ours, &plain, &shapes, DType::F32, (1e-4, 1e-4));
}

fn plain_softmax(x: &Tensor, dim: usize) -> Result<Tensor> {
    let e = x.broadcast_sub(&x.max_keepdim(dim)?.detach())?.exp()?;
    e.broadcast_div(&e.sum_keepdim(dim)?)
}

#[test]
fn softmax_along_any_dimension() {
    for dim in 0..3 {
        let ours = |t: &[Tensor]| softmax(&t[0], dim);
        let plain = |t: &[Tensor]| plain_softmax(&t[0], dim);
        assert_same_with_gradients(&ours, &plain, &[&[3, 4, 17]], DType::F32, TIGHT);
    }
}

#[test]
fn softmax_with_scale_and_mask() {
    let mask = tensor(&[4, 9], 3);
    let exact = mask.to_dtype(DType::F64).unwrap();
    let ours = |t: &[Tensor]| softmax_with(&t[0], D::Minus1, 0.3, Some(&mask));
    let plain = |t: &[Tensor]| plain_softmax(&(&t[0] * 0.3)?.broadcast_add(&exact)?, 2);
    assert_same_with_gradients(&ours, &plain, &[&[2, 4, 9]], DType::F32, TIGHT);
}

#[test]
fn a_mask_that_is_tracked_is_refused() {
    let x = tensor(&[2, 3], 1);
    let mask = Var::from_tensor(&tensor(&[2, 3], 2)).unwrap();
    let error = softmax_with(&x, 1, 1.0, Some(&mask)).unwrap_err().to_string();
    assert!(error.contains("mask is tracked") && error.contains("detach()"), "{error}");
}

#[test]
fn rope_of_both_kinds_of_pairs() {
    let angles = tensor(&[6, 4], 5).to_dtype(DType::F64).unwrap();
    let (cos, sin) = (angles.cos().unwrap(), angles.sin().unwrap());
    let (cos32, sin32) = (cos.to_dtype(DType::F32).unwrap(), sin.to_dtype(DType::F32).unwrap());
    let turned = |x0: &Tensor, x1: &Tensor, cos: &Tensor, sin: &Tensor| -> Result<_> {
        let y0 = (x0.broadcast_mul(cos)? - x1.broadcast_mul(sin)?)?;
        Ok((y0, (x0.broadcast_mul(sin)? + x1.broadcast_mul(cos)?)?))
    };
    let halves = |t: &[Tensor]| {
        let (y0, y1) = turned(&t[0].narrow(3, 0, 4)?, &t[0].narrow(3, 4, 4)?, &cos, &sin)?;
        Tensor::cat(&[y0, y1], 3)
    };
    let neighbours = |t: &[Tensor]| {
        let pairs = t[0].reshape((2, 3, 6, 4, 2))?;
        let part = |i| pairs.narrow(4, i, 1)?.squeeze(4);
        let (y0, y1) = turned(&part(0)?, &part(1)?, &cos, &sin)?;
        Tensor::stack(&[y0, y1], 4)?.flatten_from(3)
    };
    let ours = |pairs| {
        let (cos, sin) = (cos32.clone(), sin32.clone());
        move |t: &[Tensor]| rope(&t[0], &cos, &sin, pairs)
    };
    let shape = [&[2, 3, 6, 8][..]];
    assert_same_with_gradients(&ours(Pairs::SplitHalf), &halves, &shape, DType::F32, TIGHT);
    assert_same_with_gradients(&ours(Pairs::Interleaved), &neighbours, &shape, DType::F32, TIGHT);
}

#[test]
fn activations_alone_and_gated() {
    let silu = |x: &Tensor| x / (x.neg()?.exp()? + 1.0)?;
    let gelu = |x: &Tensor| (x * 0.5)? * ((x / 2f64.sqrt())?.erf()? + 1.0)?;
    let tanh = |x: &Tensor| {
        let inner = ((x + (x.powf(3.0)? * 0.044715)?)? * (2.0 / std::f64::consts::PI).sqrt())?;
        (x * 0.5)? * (inner.tanh()? + 1.0)?
    };
    type Plain<'f> = (Activation, &'f dyn Fn(&Tensor) -> Result<Tensor>);
    let all: [Plain<'_>; 3] =
        [(Activation::Silu, &silu), (Activation::Gelu, &gelu), (Activation::GeluTanh, &tanh)];
    for (act, plain) in all {
        let alone = |t: &[Tensor]| plain(&t[0]);
        let ours = |t: &[Tensor]| activation(&t[0], act);
        assert_same_with_gradients(&ours, &alone, &[&[3, 21]], DType::F32, TIGHT);
        let with_gate = |t: &[Tensor]| plain(&t[0])? * &t[1];
        let ours = |t: &[Tensor]| gated(&t[0], &t[1], act);
        assert_same_with_gradients(&ours, &with_gate, &[&[3, 21], &[3, 21]], DType::F32, TIGHT);
    }
}

#[test]
fn finite_differences_agree() {
    let (x, gate) = (tensor(&[2, 5], 1), tensor(&[2, 5], 2));
    let loss = |x: &Tensor| -> f64 { f64s(&silu_mul(x, &gate).unwrap()).iter().sum() };
    let tracked = Var::from_tensor(&x).unwrap();
    let sum = silu_mul(&tracked, &gate).unwrap().sum_all().unwrap();
    let gradient = f64s(sum.backward().unwrap().get(&tracked).unwrap());
    let values: Vec<f32> = x.flatten_all().unwrap().to_vec1().unwrap();
    for i in 0..values.len() {
        let at = |step: f32| {
            let mut moved = values.clone();
            moved[i] += step;
            loss(&Tensor::from_vec(moved, (2, 5), place()).unwrap())
        };
        let difference = (at(0.01) - at(-0.01)) / 0.02;
        assert!((difference - gradient[i]).abs() < 1e-3, "{difference} and {}", gradient[i]);
    }
}

#[test]
fn a_refusal_is_the_librarys_sentence() {
    let error = rms_norm(&tensor(&[2, 8], 1), &tensor(&[7], 2), 1e-5).unwrap_err().to_string();
    assert!(error.contains("rms_norm") && error.contains("weight"), "{error}");
    let error = matmul(&tensor(&[2, 8], 1), &tensor(&[7, 2], 2)).unwrap_err().to_string();
    assert!(error.contains("matmul"), "{error}");
}
