//! Typed calls against the library that is there: results, refusals, what a call may have.
use half::bf16;
use pestle::{ops, DType, Run, Status, View, ViewMut, Workspace};

fn wave(count: usize, step: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * step).sin()).collect()
}

/// a @ b of row-major matrices in f64.
fn product(a: &[f32], b: &[f32], m: usize, n: usize, k: usize) -> Vec<f64> {
    let at = |i: usize, j: usize| {
        (0..k).map(|p| f64::from(a[i * k + p]) * f64::from(b[p * n + j])).sum::<f64>()
    };
    (0..m * n).map(|index| at(index / n, index % n)).collect()
}

#[track_caller]
fn assert_near(got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(g) - w).abs() <= tolerance, "element {i} is {g}, not {w}");
    }
}

#[test]
fn every_op_of_the_library_has_a_function() {
    let made = include_str!("../src/ops.rs");
    let table = pestle::table().unwrap();
    assert!(table.len() > 50);
    for op in &table {
        let row = made
            .split("op! {")
            .find(|row| row.trim_start().starts_with(&format!("{} \"", op.name)));
        let row = row.unwrap_or_else(|| panic!("no row for {}: run make dump", op.name));
        let rows = row.lines().filter(|line| {
            let line = line.trim_start();
            line.starts_with("must ") || line.starts_with("may ")
        });
        assert_eq!(rows.count(), op.arguments.len(), "arguments of {}", op.name);
        assert!(op.implementations.contains(&"reference"), "{}", op.name);
    }
}

#[test]
fn quantizes_and_decodes() {
    let x = wave(8 * 256, 0.1);
    let (mut codes, mut scale) = (vec![0u8; x.len()], vec![0f32; 8]);
    ops::quantize_fp8(
        &View::new(&x, &[8, 256]).unwrap(),
        &mut ViewMut::coded(&mut codes, DType::E4M3, &[8, 256]).unwrap(),
    )
    .scale_out(&mut ViewMut::new(&mut scale, &[8, 1]).unwrap())
    .granularity(ops::quantize_fp8::Granularity::Row)
    .run()
    .unwrap();
    let mut again = vec![0f32; x.len()];
    ops::dequantize_fp8(
        &View::coded(&codes, DType::E4M3, &[8, 256]).unwrap(),
        &View::new(&scale, &[8, 1]).unwrap(),
        &mut ViewMut::new(&mut again, &[8, 256]).unwrap(),
    )
    .granularity(ops::dequantize_fp8::Granularity::Row)
    .run()
    .unwrap();
    let want: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
    assert_near(&again, &want, 1.0 / 16.0); // 3 bits of mantissa of at most 1
    let largest = x[..256].iter().fold(0f32, |m, v| m.max(v.abs()));
    assert_eq!(scale[0], largest / 448.0);
}

#[test]
fn takes_strides_and_offsets() {
    let (m, n, k) = (5, 7, 9);
    let (a, b) = (wave(m * k, 0.3), wave(k * n, 0.7));
    let want = product(&a, &b, m, n, k);

    // a with a gap behind each row and three elements before the first; b transposed in memory.
    let mut gapped = vec![f32::NAN; 3 + m * (k + 2)];
    for i in 0..m {
        gapped[3 + i * (k + 2)..][..k].copy_from_slice(&a[i * k..][..k]);
    }
    let weight: Vec<f32> = (0..n * k).map(|at| b[at % k * n + at / k]).collect();
    let mut out = vec![0f32; n * m]; // also transposed
    ops::matmul(
        &View::strided(&gapped, &[m, k], &[k + 2, 1], 3).unwrap(),
        &View::new(&weight, &[n, k]).unwrap().transposed().unwrap(),
    )
    .out(&mut ViewMut::new(&mut out, &[n, m]).unwrap().transposed().unwrap())
    .run()
    .unwrap();
    let row_major: Vec<f32> = (0..m * n).map(|at| out[at % n * m + at / n]).collect();
    assert_near(&row_major, &want, 1e-5);
}

#[test]
fn half_precision_and_an_epilogue() {
    let x: Vec<bf16> = wave(6 * 64, 0.2).into_iter().map(bf16::from_f32).collect();
    let gate: Vec<bf16> = wave(6 * 64, 0.5).into_iter().map(bf16::from_f32).collect();
    let mut out = vec![bf16::ZERO; 6 * 64];
    ops::gated_activation(&View::new(&x, &[6, 64]).unwrap())
        .gate(&View::new(&gate, &[6, 64]).unwrap())
        .out(&mut ViewMut::new(&mut out, &[6, 64]).unwrap())
        .act(ops::gated_activation::Act::Silu)
        .run()
        .unwrap();
    for i in 0..out.len() {
        let v = x[i].to_f64();
        let want = v / (1.0 + (-v).exp()) * gate[i].to_f64();
        assert!((out[i].to_f64() - want).abs() <= want.abs() / 250.0 + 1e-6, "element {i}");
    }
}

#[test]
fn a_refusal_says_op_argument_and_rule() {
    let x = wave(8 * 30, 0.1);
    let mut out = vec![0f32; x.len()];
    let error = ops::hadamard(
        &View::new(&x, &[8, 30]).unwrap(),
        &mut ViewMut::new(&mut out, &[8, 30]).unwrap(),
    )
    .hadamard(16)
    .run()
    .unwrap_err();
    assert_eq!(error.status(), Some(Status::InvalidArgument));
    let sentence = error.to_string();
    assert!(sentence.contains("hadamard") && sentence.contains("multiple"), "{sentence}");
}

#[test]
fn an_output_left_out_is_refused() {
    let a = wave(4, 0.1);
    let a = View::new(&a, &[2, 2]).unwrap();
    let error = ops::matmul(&a, &a).run().unwrap_err();
    assert!(error.to_string().contains("out"), "{error}");
}

#[test]
fn why_names_every_implementation() {
    let x = wave(64, 0.1);
    let mut out = vec![0f32; 64];
    let (x, mut out) =
        (View::new(&x, &[1, 64]).unwrap(), ViewMut::new(&mut out, &[1, 64]).unwrap());
    let call = ops::hadamard(&x, &mut out).hadamard(64);
    let (chosen, _) = call.choose(Run::default()).unwrap();
    let verdicts = call.why().unwrap();
    let verdicts = verdicts.as_array().unwrap();
    assert_eq!(verdicts[0]["id"], chosen);
    assert!(verdicts.iter().any(|v| v["id"] == "reference"));
    call.run().unwrap();
}

#[test]
fn an_implementation_and_a_workspace_may_be_given() {
    let (m, n, k) = (33, 40, 64);
    let (a, b) = (wave(m * k, 0.3), wave(k * n, 0.7));
    let (a_view, b_view) = (View::new(&a, &[m, k]).unwrap(), View::new(&b, &[k, n]).unwrap());
    let mut workspace = Workspace::new();
    for implementation in [None, Some(c"reference")] {
        let mut out = vec![0f32; m * n];
        let how = Run { workspace: Some(&mut workspace), implementation, ..Run::default() };
        ops::matmul(&a_view, &b_view)
            .out(&mut ViewMut::new(&mut out, &[m, n]).unwrap())
            .run_with(how)
            .unwrap();
        assert_near(&out, &product(&a, &b, m, n, k), 1e-5);
    }
    let mut out = vec![0f32; m * n];
    let how = Run { implementation: Some(c"cpu/nothing"), ..Run::default() };
    let error = ops::matmul(&a_view, &b_view)
        .out(&mut ViewMut::new(&mut out, &[m, n]).unwrap())
        .run_with(how)
        .unwrap_err();
    assert!(error.to_string().contains("cpu/nothing"), "{error}");
}

/// Memory of a fixed size is not chosen for: the call itself finds it enough, or says what lacks.
#[test]
fn a_workspace_of_a_fixed_size() {
    let (m, n, k) = (33, 40, 64);
    let (a, b) = (wave(m * k, 0.3), wave(k * n, 0.7));
    let (a_view, b_view) = (View::new(&a, &[m, k]).unwrap(), View::new(&b, &[k, n]).unwrap());
    let mut out = vec![0f32; m * n];
    let mut out_view = ViewMut::new(&mut out, &[m, n]).unwrap();
    let call = ops::matmul(&a_view, &b_view).out(&mut out_view);
    let (_, bytes) = call.choose(Run::default()).unwrap();
    assert!(bytes > 0);
    let mut memory = vec![0u8; bytes + 256];
    let start = memory.as_ptr().align_offset(256);
    for (size, is_enough) in [(bytes - 1, false), (bytes, true)] {
        // SAFETY: within the vector, which outlives the calls.
        let mut workspace =
            unsafe { Workspace::from_raw(memory[start..].as_mut_ptr().cast(), size) };
        let mut view = ViewMut::new(&mut out, &[m, n]).unwrap();
        let how = Run { workspace: Some(&mut workspace), ..Run::default() };
        let result = ops::matmul(&a_view, &b_view).out(&mut view).run_with(how);
        assert_eq!(result.is_ok(), is_enough);
        if let Err(error) = result {
            assert!(error.to_string().contains("workspace has"), "{error}");
        }
    }
    assert_near(&out, &product(&a, &b, m, n, k), 1e-5);
}

#[test]
fn an_ops_contract_is_json() {
    let contract = pestle::contract("softmax").unwrap();
    assert_eq!(contract["backward"]["op"], "softmax_backward");
    let error = pestle::contract("softmaxx").unwrap_err().to_string();
    assert!(error.contains("softmaxx"), "{error}");
}

#[test]
fn lists_of_tensors() {
    let (a, b) = (wave(2 * 16, 0.1), wave(3 * 8, 0.2));
    let (mut qa, mut qb) = (vec![0i8; 32], vec![0i8; 24]);
    let (mut sa, mut sb) = ([0f32; 2], [0f32; 3]);
    ops::quantize_list(
        &[View::new(&a, &[2, 16]).unwrap(), View::new(&b, &[3, 8]).unwrap()],
        &mut [ViewMut::new(&mut qa, &[2, 16]).unwrap(), ViewMut::new(&mut qb, &[3, 8]).unwrap()],
    )
    .scale_out(&mut [
        ViewMut::new(&mut sa, &[2, 1]).unwrap(),
        ViewMut::new(&mut sb, &[3, 1]).unwrap(),
    ])
    .granularity(ops::quantize_list::Granularity::Row)
    .run()
    .unwrap();
    for (x, q, scale, k) in [(&a, &qa, &sa[..], 16), (&b, &qb, &sb[..], 8)] {
        for (i, &value) in x.iter().enumerate() {
            let error = f32::from(q[i]) * scale[i / k] - value;
            assert!(error.abs() <= scale[i / k] * 0.501, "element {i}");
        }
    }
}

#[test]
fn the_reference_gives_exact_values() {
    let (a, b) = (wave(3 * 5, 0.3), wave(5 * 2, 0.7));
    let mut exact = vec![0f64; 6];
    ops::matmul(&View::new(&a, &[3, 5]).unwrap(), &View::new(&b, &[5, 2]).unwrap())
        .out(&mut ViewMut::new(&mut exact, &[3, 2]).unwrap())
        .reference(false)
        .unwrap();
    for (g, w) in exact.iter().zip(product(&a, &b, 3, 2, 5)) {
        assert!((g - w).abs() < 1e-12);
    }
}

#[test]
fn calls_from_many_threads() {
    pestle::set_threads(2).unwrap();
    let (m, n, k) = (64, 48, 32);
    let (a, b) = (wave(m * k, 0.3), wave(k * n, 0.7));
    let want = product(&a, &b, m, n, k);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut out = vec![0f32; m * n];
                let (a, b) = (View::new(&a, &[m, k]).unwrap(), View::new(&b, &[k, n]).unwrap());
                for _ in 0..10 {
                    out.fill(0.0);
                    let mut view = ViewMut::new(&mut out, &[m, n]).unwrap();
                    ops::matmul(&a, &b).out(&mut view).run().unwrap();
                }
                assert_near(&out, &want, 1e-5);
            });
        }
    });
    pestle::set_threads(0).unwrap();
}
