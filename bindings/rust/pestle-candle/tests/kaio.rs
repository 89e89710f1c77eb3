//! The 12 functions of kaio-candle, and the inputs that it refuses or gets wrong.
mod common;
use candle_core::{DType, Tensor, Var};
use common::{assert_close, assert_same_with_gradients, f64s, place, tensor, values};
use pestle_candle::kaio::{self, prelude::KaioDevice};
use std::sync::Arc;

fn device() -> Arc<KaioDevice> {
    Arc::new(KaioDevice::new(0).unwrap())
}

fn f16(shape: &[usize], seed: u64) -> Tensor {
    tensor(shape, seed).to_dtype(DType::F16).unwrap()
}

/// Signed 4-bit codes [K, N], their words in KAIO's packing declared as [K/8, N], scales f16 that
/// differ in every column, and the decoded weight in f64.
fn int4(k: usize, n: usize, seed: u64) -> (Tensor, Tensor, Tensor) {
    let codes: Vec<i32> = values(k * n, seed)
        .into_iter()
        .map(|v| (v * 8.0).floor().clamp(-8.0, 7.0) as i32)
        .collect();
    let mut words = vec![0u32; k / 8 * n];
    for column in 0..n {
        for row in 0..k {
            let nibble = (codes[row * n + column] & 15) as u32;
            words[column * (k / 8) + row / 8] |= nibble << (row % 8 * 4);
        }
    }
    let scales = values(k / 128 * n, seed + 1).into_iter().map(|v| 0.01 + v.abs() * 0.1);
    let scales = Tensor::from_iter(scales, place()).unwrap().reshape((k / 128, n)).unwrap();
    let scales = scales.to_dtype(DType::F16).unwrap();
    let exact = f64s(&scales);
    let decoded = (0..k * n).map(|at| f64::from(codes[at]) * exact[at / n / 128 * n + at % n]);
    let decoded = Tensor::from_iter(decoded, place()).unwrap().reshape((k, n)).unwrap();
    (Tensor::from_vec(words, (k / 8, n), place()).unwrap(), scales, decoded)
}

/// Two's complement bytes [K, N] and their values in f64.
fn int8(k: usize, n: usize, seed: u64) -> (Tensor, Tensor) {
    let codes: Vec<i8> = values(k * n, seed).into_iter().map(|v| (v * 127.0) as i8).collect();
    let bytes: Vec<u8> = codes.iter().map(|&code| code as u8).collect();
    let exact: Vec<f64> = codes.into_iter().map(f64::from).collect();
    (
        Tensor::from_vec(bytes, (k, n), place()).unwrap(),
        Tensor::from_vec(exact, (k, n), place()).unwrap(),
    )
}

fn exact(tensor: &Tensor) -> Tensor {
    tensor.to_dtype(DType::F64).unwrap()
}

/// The four functions and their gradients, under a loss that weighs every element differently.
#[track_caller]
fn assert_matmuls(shapes: &[(usize, usize, usize)]) {
    let device = device();
    for &(m, n, k) in shapes {
        let plain = |t: &[Tensor]| t[0].matmul(&t[1]);
        let tc = |t: &[Tensor]| kaio::matmul_tc(&device, &t[0], &t[1]);
        let tc_async = |t: &[Tensor]| kaio::matmul_tc_async(&device, &t[0], &t[1]);
        let bf16 = |t: &[Tensor]| kaio::matmul_tc_bf16(&device, &t[0], &t[1]);
        let bf16_async = |t: &[Tensor]| kaio::matmul_tc_bf16_async(&device, &t[0], &t[1]);
        let shapes = [&[m, k][..], &[k, n]];
        for (ours, dtype) in [
            (&tc as common::Function<'_>, DType::F16),
            (&tc_async, DType::F16),
            (&bf16, DType::BF16),
            (&bf16_async, DType::BF16),
        ] {
            assert_same_with_gradients(ours, &plain, &shapes, dtype, (1e-2, 1e-3));
        }
    }
}

#[test]
fn gradients_of_32_cubed() {
    assert_matmuls(&[(32, 32, 32)]);
}

#[test]
fn gradients_of_64_32_128_whichever_of_them_is_k() {
    assert_matmuls(&[(64, 32, 128), (64, 128, 32)]);
}

#[test]
fn gradients_of_128_cubed() {
    assert_matmuls(&[(128, 128, 128)]);
}

/// M and N that are no multiples of 16: kaio-candle runs forward and fails in the step's backward.
#[test]
fn a_legal_forward_has_a_legal_backward() {
    assert_matmuls(&[(5, 7, 16), (16, 17, 32), (17, 16, 16)]);
}

#[test]
fn k_of_any_size() {
    assert_matmuls(&[(3, 9, 10), (1, 1, 1)]);
}

#[test]
fn turned_cut_and_higher_operands_are_taken() {
    let device = device();
    let (a, b) = (f16(&[48, 64], 1), f16(&[64, 32], 2));
    let want = kaio::matmul_tc(&device, &a, &b).unwrap();
    let turned = a.t().unwrap().contiguous().unwrap().t().unwrap();
    assert!(!turned.is_contiguous());
    assert_close(&kaio::matmul_tc(&device, &turned, &b).unwrap(), &want, 1e-6, 1e-6);
    let cut = Tensor::cat(&[&a, &a], 0).unwrap().narrow(0, 48, 48).unwrap();
    assert!(cut.layout().start_offset() > 0);
    assert_close(&kaio::matmul_tc(&device, &cut, &b).unwrap(), &want, 1e-6, 1e-6);
    let stacked = Tensor::stack(&[&a, &a, &a], 0).unwrap();
    let got = kaio::matmul_tc(&device, &stacked, &b).unwrap();
    assert_eq!(got.dims(), [3, 48, 32]);
    assert_close(&got.get(2).unwrap(), &want, 1e-6, 1e-6);
}

/// The way through candle changes no bit of what the library gives.
#[cfg(not(feature = "cuda"))]
#[test]
fn the_bridge_gives_the_librarys_own_bits() {
    use pestle::{half::f16, ops, View, ViewMut};
    for n in [64, 256] {
        let host =
            |seed| -> Vec<f16> { values(n * n, seed).into_iter().map(f16::from_f32).collect() };
        let (a, b, mut want) = (host(1), host(2), vec![0f32; n * n]);
        let views = [&a, &b].map(|data| View::new(data, &[n, n]).unwrap());
        ops::matmul(&views[0], &views[1])
            .out(&mut ViewMut::new(&mut want, &[n, n]).unwrap())
            .run()
            .unwrap();
        let [a, b] = [a, b].map(|data| Tensor::from_vec(data, (n, n), place()).unwrap());
        for function in [kaio::matmul_tc, kaio::matmul_tc_async] {
            let got = function(&device(), &a, &b).unwrap();
            let got: Vec<f32> = got.flatten_all().unwrap().to_vec1().unwrap();
            assert!(got.iter().zip(&want).all(|(g, w)| g.to_bits() == w.to_bits()));
        }
    }
}

#[test]
fn matmul_results_are_f32_and_dtypes_are_asked_for() {
    let (a, b) = (f16(&[4, 16], 1), f16(&[16, 4], 2));
    assert_eq!(kaio::matmul_tc(&device(), &a, &b).unwrap().dtype(), DType::F32);
    let error = kaio::matmul_tc_bf16(&device(), &a, &b).unwrap_err().to_string();
    assert!(error.contains("a is f16, not bf16") && error.contains("to_dtype"), "{error}");
}

/// Handle, operands and result go in every order, before the backward and after it.
#[test]
fn any_drop_order() {
    for order in 0..4 {
        let (handle, b) = (device(), f16(&[16, 4], 2));
        let a = Var::from_tensor(&f16(&[4, 16], 1)).unwrap();
        let out = kaio::matmul_tc(&handle, &a, &b).unwrap();
        let loss = out.sum_all().unwrap();
        match order {
            0 => drop(handle),
            1 => drop((b, out, handle)),
            2 => drop((out, handle, b)),
            _ => drop((Arc::clone(&handle), handle)),
        }
        let gradients = loss.backward().unwrap();
        drop(loss);
        assert_eq!(gradients.get(&a).unwrap().dims(), [4, 16]);
    }
    let clone = device().as_ref().clone(); // a handle owns nothing
    assert_eq!((clone.ordinal(), &clone), (0, &*device()));
}

#[test]
fn int4_scales_past_the_first_64_columns() {
    for (m, n, k) in [(3, 200, 256), (1, 192, 128)] {
        let (packed, scales, decoded) = int4(k, n, 3);
        let a = f16(&[m, k], 4);
        let got = kaio::matmul_int4(&device(), &a, &packed, &scales).unwrap();
        assert_eq!(got.dtype(), DType::F32);
        assert_close(&got, &exact(&a).matmul(&decoded).unwrap(), 1e-5, 1e-4);
    }
}

#[test]
fn int4_of_an_odd_number_of_columns() {
    let (packed, scales, decoded) = int4(256, 67, 5);
    let a = f16(&[5, 256], 6);
    let got = kaio::matmul_int4(&device(), &a, &packed, &scales).unwrap();
    assert_close(&got, &exact(&a).matmul(&decoded).unwrap(), 1e-5, 1e-4);
}

#[test]
fn int4_gives_x_its_gradient_and_scales_none() {
    let (packed, scales, decoded) = int4(128, 24, 7);
    let a = Var::from_tensor(&f16(&[2, 3, 128], 8)).unwrap();
    let out = kaio::matmul_int4(&device(), &a, &packed, &scales).unwrap();
    let gradients = out.sum_all().unwrap().backward().unwrap();
    let want = Tensor::ones((2, 3, 24), DType::F64, place()).unwrap();
    let want = want.broadcast_matmul(&decoded.t().unwrap()).unwrap();
    assert_close(gradients.get(&a).unwrap(), &want, 1e-2, 1e-3);

    let scales = Var::from_tensor(&scales).unwrap();
    let error = kaio::matmul_int4(&device(), &a, &packed, &scales).unwrap_err().to_string();
    assert!(error.contains("scales is tracked"), "{error}");
}

#[test]
fn int4_words_that_candle_turned_are_refused() {
    let (packed, scales, _) = int4(128, 16, 9);
    let turned = packed.t().unwrap();
    let error = kaio::matmul_int4(&device(), &f16(&[1, 128], 1), &turned, &scales);
    assert!(error.is_err());
    let cut = packed.narrow(1, 0, 8).unwrap();
    let error =
        kaio::matmul_int4(&device(), &f16(&[1, 128], 1), &cut, &scales.narrow(1, 0, 8).unwrap());
    assert!(error.unwrap_err().to_string().contains("as they were packed"));
}

#[test]
fn int8_sums_are_exact() {
    for (m, n, k) in [(4, 8, 32), (3, 5, 33), (17, 65, 96)] {
        let ((a, exact_a), (b, exact_b)) = (int8(m, k, 1), int8(k, n, 2));
        let got = kaio::matmul_int8(&device(), &a, &b, 0.5).unwrap();
        let want = (exact_a.matmul(&exact_b).unwrap() * 0.5).unwrap();
        assert_close(&got, &want, 1e-7, 0.0);
    }
}

/// Attention of one head in f64.
fn attend(q: &Tensor, k: &Tensor, v: &Tensor, causal: bool) -> Tensor {
    let (queries, keys) = (q.dim(0).unwrap(), k.dim(0).unwrap());
    let scale = (q.dim(1).unwrap() as f64).powf(-0.5);
    let scores = f64s(&exact(q).matmul(&exact(k).t().unwrap()).unwrap());
    let mut weights = Vec::new();
    for (i, row) in scores.chunks(keys).enumerate() {
        let seen = if causal { keys.min(i + 1) } else { keys };
        let e: Vec<f64> = row[..seen].iter().map(|s| (s * scale).exp()).collect();
        let sum: f64 = e.iter().sum();
        weights.extend((0..keys).map(|j| e.get(j).map_or(0.0, |e| e / sum)));
    }
    Tensor::from_vec(weights, (queries, keys), place()).unwrap().matmul(&exact(v)).unwrap()
}

#[test]
fn short_attention_of_any_length() {
    // On a GPU exponentials of f16 inputs are rounded to f16.
    let (relative, absolute) = if cfg!(feature = "cuda") { (2e-3, 5e-4) } else { (1e-4, 1e-5) };
    for (queries, keys, d, d_v) in [(16, 16, 16, 8), (5, 401, 12, 7)] {
        let (q, k, v) = (f16(&[queries, d], 1), f16(&[keys, d], 2), f16(&[keys, d_v], 3));
        let got = kaio::attention_tc(&device(), &q, &k, &v).unwrap();
        assert_eq!(got.dtype(), DType::F32);
        assert_close(&got, &attend(&q, &k, &v, false), relative, absolute);
        let got = kaio::attention_tc_causal(&device(), &q, &k, &v).unwrap();
        assert_close(&got, &attend(&q, &k, &v, true), relative, absolute);
    }
}

#[test]
fn flash_attention_and_its_gradients() {
    let device = device();
    for seq in [1, 7, 33] {
        for causal in [false, true] {
            let ours = |t: &[Tensor]| {
                let flash =
                    if causal { kaio::attention_flash_causal } else { kaio::attention_flash };
                flash(&device, &t[0], &t[1], &t[2])
            };
            let mask = (0..seq * seq).map(|at| {
                if causal && at % seq > at / seq {
                    f64::NEG_INFINITY
                } else {
                    0.0
                }
            });
            let mask = Tensor::from_iter(mask, place()).unwrap().reshape((seq, seq)).unwrap();
            let plain = |t: &[Tensor]| {
                let scores = ((t[0].matmul(&t[1].t()?)? * 0.25)? + &mask)?;
                let e = scores.exp()?;
                e.broadcast_div(&e.sum_keepdim(1)?)?.matmul(&t[2])
            };
            let shapes = [&[seq, 16][..], &[seq, 16], &[seq, 16]];
            assert_same_with_gradients(&ours, &plain, &shapes, DType::F32, (1e-4, 2e-5));
        }
    }
}

#[test]
fn heads_do_not_see_each_other() {
    let (q, k, v) = (tensor(&[3, 6, 8], 1), tensor(&[3, 6, 8], 2), tensor(&[3, 6, 8], 3));
    let got = kaio::attention_flash(&device(), &q, &k, &v).unwrap();
    for head in 0..3 {
        let [q, k, v] = [&q, &k, &v].map(|t| t.get(head).unwrap());
        assert_close(&got.get(head).unwrap(), &attend(&q, &k, &v, false), 1e-4, 1e-5);
    }
}

#[test]
fn projections_of_different_widths() {
    let x = Var::from_tensor(&f16(&[3, 128], 1)).unwrap();
    let weights = [(40, 2), (8, 3), (16, 4)].map(|(n, seed)| int4(128, n, seed));
    let [(wq, sq, dq), (wk, sk, dk), (wv, sv, dv)] = &weights;
    let (q, k, v) = kaio::qkv_project_int4(&device(), &x, wq, wk, wv, sq, sk, sv).unwrap();
    for (got, decoded) in [(&q, dq), (&k, dk), (&v, dv)] {
        assert_eq!(got.dtype(), DType::F16);
        assert_close(got, &exact(&x).matmul(decoded).unwrap(), 1e-3, 1e-3);
    }
    // Tracked: the gradient is that of all three.
    let sum = (q.sum_all().unwrap() + v.sum_all().unwrap()).unwrap();
    let gradients = sum.backward().unwrap();
    let want = (dq.sum(1).unwrap() + dv.sum(1).unwrap()).unwrap();
    let want = want.unsqueeze(0).unwrap().broadcast_as((3, 128)).unwrap();
    assert_close(gradients.get(&x).unwrap(), &want, 1e-2, 1e-2);

    let weights = [(24, 5), (8, 6), (12, 7)].map(|(n, seed)| int8(128, n, seed));
    let [(wq, dq), (wk, dk), (wv, dv)] = &weights;
    let (q, k, v) = kaio::qkv_project_int8(&device(), &x, wq, wk, wv, 0.01, 0.02, 0.03).unwrap();
    for (got, decoded, scale) in [(&q, dq, 0.01), (&k, dk, 0.02), (&v, dv, 0.03)] {
        let want = (exact(&x).matmul(decoded).unwrap() * scale).unwrap();
        assert_close(got, &want, 1e-3, 1e-3);
    }
}
