//! Attention against plain f64 operations: heads, groups, causality, lengths, masks, gradients.
mod common;
use candle_core::{DType, Result, Tensor, Var, D};
use common::{assert_close, assert_same_with_gradients, tensor};
use pestle_candle::{attention, Attention, Causal};

const TIGHT: (f64, f64) = (1e-4, 2e-5);

/// [B, H, Sq, Sk] of what is added, in f64.
fn plain(q: &Tensor, k: &Tensor, v: &Tensor, scale: f64, mask: &Tensor) -> Result<Tensor> {
    let groups = q.dim(1)? / k.dim(1)?;
    let repeat = |t: &Tensor| -> Result<Tensor> {
        let (b, h, s, d) = t.dims4()?;
        t.unsqueeze(2)?.broadcast_as((b, h, groups, s, d))?.reshape((b, h * groups, s, d))
    };
    let scores = (q.matmul(&repeat(k)?.t()?.contiguous()?)? * scale)?.broadcast_add(mask)?;
    let e = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?.detach())?.exp()?;
    e.broadcast_div(&e.sum_keepdim(D::Minus1)?)?.matmul(&repeat(v)?)
}

/// 0 where `sees(batch, query, key)`, else minus infinity.
fn mask(
    (batch, queries, keys): (usize, usize, usize),
    sees: impl Fn(usize, usize, usize) -> bool,
) -> Tensor {
    let mut values = Vec::new();
    for b in 0..batch {
        for q in 0..queries {
            values.extend((0..keys).map(|k| if sees(b, q, k) { 0.0 } else { f64::NEG_INFINITY }));
        }
    }
    Tensor::from_vec(values, (batch, 1, queries, keys), &common::CPU).unwrap()
}

#[test]
fn heads_and_groups_of_queries() {
    for (heads, kv_heads) in [(4, 4), (4, 2), (6, 1)] {
        let all = mask((2, 5, 7), |_, _, _| true);
        let ours = |t: &[Tensor]| attention(&t[0], &t[1], &t[2], &Attention::default());
        let exact = |t: &[Tensor]| plain(&t[0], &t[1], &t[2], 8f64.powf(-0.5), &all);
        let shapes = [&[2, heads, 5, 8][..], &[2, kv_heads, 7, 8], &[2, kv_heads, 7, 6]];
        assert_same_with_gradients(&ours, &exact, &shapes, DType::F32, TIGHT);
        assert_same_with_gradients(&ours, &exact, &shapes, DType::BF16, (3e-2, 3e-2));
    }
}

#[test]
fn causal_both_ways() {
    let shapes = [&[1, 2, 3, 8][..], &[1, 2, 5, 8], &[1, 2, 5, 8]];
    for (causal, shift) in [(Causal::TopLeft, 0), (Causal::BottomRight, 2)] {
        let seen = mask((1, 3, 5), |_, q, k| k <= q + shift);
        let how = Attention { causal, ..Attention::default() };
        let ours = |t: &[Tensor]| attention(&t[0], &t[1], &t[2], &how);
        let exact = |t: &[Tensor]| plain(&t[0], &t[1], &t[2], 8f64.powf(-0.5), &seen);
        assert_same_with_gradients(&ours, &exact, &shapes, DType::F32, TIGHT);
    }
}

#[test]
fn lengths_a_mask_and_a_scale() {
    let bias = tensor(&[4, 6], 5);
    let exact_bias = bias.to_dtype(DType::F64).unwrap();
    let seen = mask((2, 4, 6), |b, _, k| k < [6, 3][b]);
    let all = seen.broadcast_add(&exact_bias).unwrap();
    let how = Attention {
        scale: Some(0.7),
        lengths: Some(vec![6, 3]),
        mask: Some(bias),
        ..Attention::default()
    };
    let ours = |t: &[Tensor]| attention(&t[0], &t[1], &t[2], &how);
    let exact = |t: &[Tensor]| plain(&t[0], &t[1], &t[2], 0.7, &all);
    let shapes = [&[2, 4, 4, 8][..], &[2, 2, 6, 8], &[2, 2, 6, 8]];
    assert_same_with_gradients(&ours, &exact, &shapes, DType::F32, TIGHT);
}

#[test]
fn a_mask_of_heads() {
    let bias = tensor(&[1, 4, 3, 5], 5);
    let exact_bias = bias.to_dtype(DType::F64).unwrap();
    let how = Attention { mask: Some(bias), ..Attention::default() };
    let ours = |t: &[Tensor]| attention(&t[0], &t[1], &t[2], &how);
    let exact = |t: &[Tensor]| plain(&t[0], &t[1], &t[2], 8f64.powf(-0.5), &exact_bias);
    let shapes = [&[2, 4, 3, 8][..], &[2, 2, 5, 8], &[2, 2, 5, 8]];
    assert_same_with_gradients(&ours, &exact, &shapes, DType::F32, TIGHT);
}

#[test]
fn fewer_dimensions_and_other_strides() {
    let q = tensor(&[6, 2, 8], 1); // [S, H, D] in memory
    let turned = q.transpose(0, 1).unwrap();
    let how = Attention::default();
    let got = attention(&turned, &turned, &turned, &how).unwrap();
    for head in 0..2 {
        let one = turned.get(head).unwrap();
        let alone = attention(&one, &one, &one, &how).unwrap();
        assert_close(&got.get(head).unwrap(), &alone, 0.0, 0.0);
    }
}

#[test]
fn what_no_query_may_see_is_said() {
    let (q, k) = (tensor(&[1, 1, 4, 8], 1), tensor(&[1, 1, 2, 8], 2));
    let how = Attention { causal: Causal::BottomRight, ..Attention::default() };
    let error = attention(&q, &k, &k, &how).unwrap_err().to_string();
    assert!(error.contains("query 0 of 4 sees none"), "{error}");
    let how = Attention { lengths: Some(vec![3]), ..Attention::default() };
    assert!(attention(&q, &k, &k, &how).unwrap_err().to_string().contains("length of 3"));
    let three = tensor(&[1, 3, 2, 8], 3);
    let error = attention(&q, &three, &three, &Attention::default()).unwrap_err().to_string();
    assert!(error.contains("1 heads of q are no multiple of 3"), "{error}");
}

#[test]
fn a_tracked_mask_is_refused() {
    let q = tensor(&[2, 8], 1);
    let mask = Var::from_tensor(&tensor(&[2, 2], 2)).unwrap();
    let how = Attention { mask: Some(mask.as_tensor().clone()), ..Attention::default() };
    let error = attention(&q, &q, &q, &how).unwrap_err().to_string();
    assert!(error.contains("mask is tracked"), "{error}");
}
