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
    Tensor::from_vec(values, (batch, 1, queries, keys), common::place()).unwrap()
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
fn a_window_and_a_softcap() {
    let seen = mask((1, 5, 6), |_, q, k| k <= q + 1 && k + 1 >= q); // one key before its place, q + 1
    let how = Attention {
        causal: Causal::BottomRight,
        window: Some(2),
        softcap: Some(1.5),
        ..Attention::default()
    };
    let ours = |t: &[Tensor]| attention(&t[0], &t[1], &t[2], &how);
    let exact = |t: &[Tensor]| {
        let scores = (t[0].matmul(&t[1].t()?.contiguous()?)? * (8f64.powf(-0.5) / 1.5))?;
        let scores = ((scores.tanh()? * 1.5)?).broadcast_add(&seen)?;
        let e = scores.exp()?;
        e.broadcast_div(&e.sum_keepdim(D::Minus1)?)?.matmul(&t[2])
    };
    let shapes = [&[1, 2, 5, 8][..], &[1, 2, 6, 8], &[1, 2, 6, 4]];
    assert_same_with_gradients(&ours, &exact, &shapes, DType::F32, TIGHT);
}

#[test]
fn bytes_are_a_mask_of_booleans() {
    let sees = |q: usize, k: usize| !(q + k).is_multiple_of(3);
    let bytes: Vec<u8> = (0..20).map(|at| u8::from(sees(at / 5, at % 5))).collect();
    let bytes = Tensor::from_vec(bytes, (4, 5), common::place()).unwrap();
    let seen = mask((1, 4, 5), |_, q, k| sees(q, k));
    let how = Attention { mask: Some(bytes), ..Attention::default() };
    let ours = |t: &[Tensor]| attention(&t[0], &t[1], &t[2], &how);
    let exact = |t: &[Tensor]| plain(&t[0], &t[1], &t[2], 8f64.powf(-0.5), &seen);
    let shapes = [&[2, 2, 4, 8][..], &[2, 2, 5, 8], &[2, 2, 5, 8]];
    assert_same_with_gradients(&ours, &exact, &shapes, DType::F32, TIGHT);
}

#[test]
fn a_query_that_sees_no_key_gives_0_and_has_no_gradient() {
    let q = Var::from_tensor(&tensor(&[2, 1, 4, 8], 1)).unwrap();
    let k = Var::from_tensor(&tensor(&[2, 1, 2, 8], 2)).unwrap();
    // The first two of four queries lie before both keys; the second of the batch has no key.
    let how = Attention {
        causal: Causal::BottomRight,
        lengths: Some(vec![2, 0]),
        ..Attention::default()
    };
    let out = attention(&q, &k, &k, &how).unwrap();
    let gradients = out.sum_all().unwrap().backward().unwrap();
    for tensor in [&out, gradients.get(&q).unwrap()] {
        let values = common::f64s(tensor);
        assert!(values[..16].iter().chain(&values[32..]).all(|&value| value == 0.0), "{values:?}");
        assert!(values[16..32].iter().all(|value| value.is_finite()), "{values:?}");
    }
}

/// The scores of 32,768 queries and keys would be 4 GiB.
#[test]
fn memory_does_not_grow_with_queries_times_keys() {
    let room = || std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = |status: String| -> usize {
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let q = Var::from_tensor(&tensor(&[1 << 15, 1], 1)).unwrap();
    let how = Attention { causal: Causal::TopLeft, window: Some(16), ..Attention::default() };
    let before = peak(room());
    let out = attention(&q, &q, &q, &how).unwrap();
    out.sum_all().unwrap().backward().unwrap();
    let grown = peak(room()).saturating_sub(before); // the kernel counts roughly
    assert!(grown < 512 << 10, "{grown} KiB");
}

#[test]
fn what_does_not_fit_is_said() {
    let (q, k) = (tensor(&[1, 1, 4, 8], 1), tensor(&[1, 1, 2, 8], 2));
    let refusal = |k: &Tensor, how: Attention| attention(&q, k, k, &how).unwrap_err().to_string();
    let how = Attention { lengths: Some(vec![3]), ..Attention::default() };
    assert!(refusal(&k, how).contains("length of 3"));
    let how = Attention { scale: Some(0.0), ..Attention::default() };
    assert!(refusal(&k, how).contains("scale of 0"));
    let error = refusal(&tensor(&[1, 3, 2, 8], 3), Attention::default());
    assert!(error.contains("attention") && error.contains("multiple"), "{error}");
}

#[test]
fn a_tracked_mask_is_refused() {
    let q = tensor(&[2, 8], 1);
    let mask = Var::from_tensor(&tensor(&[2, 2], 2)).unwrap();
    let how = Attention { mask: Some(mask.as_tensor().clone()), ..Attention::default() };
    let error = attention(&q, &q, &q, &how).unwrap_err().to_string();
    assert!(error.contains("mask is tracked"), "{error}");
}
