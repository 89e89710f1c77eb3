//! Every op of the table that has a gradient: here it trains, or there is a reason. What trains is held to
//! finite differences, to itself on strided and offset memory, and to itself in half precision.
mod common;
use candle_core::{DType, Module, Result, Tensor, Var};
use common::{assert_close, f64s, place, tensor, values};
use pestle_candle::activation::{activation, gated};
use pestle_candle::{
    adaln, attention, cross_entropy, group_norm, hadamard, layer_norm, log_softmax, matmul,
    rms_adaln, rms_norm, rms_rope, rope, softmax, Activation, Attention, CrossEntropy, Format,
    Pairs, QLinear,
};

/// A function of tensors of these shapes, all of which have a gradient.
struct Trained {
    op: &'static str,
    shapes: &'static [&'static [usize]],
    call: fn(&[Tensor]) -> Result<Tensor>,
}

const fn trained(
    op: &'static str,
    shapes: &'static [&'static [usize]],
    call: fn(&[Tensor]) -> Result<Tensor>,
) -> Trained {
    Trained { op, shapes, call }
}

fn quantized(t: &[Tensor], format: Format) -> Result<Tensor> {
    QLinear::quantize(&tensor(&[24, 256], 9), Some(&t[1]), format)?.forward(&t[0])
}

/// Cosines and sines of 3 positions and 4 pairs.
fn angles() -> Result<(Tensor, Tensor)> {
    let angles = tensor(&[3, 4], 5);
    Ok((angles.cos()?, angles.sin()?))
}

const LAYER: &[&[usize]] = &[&[2, 3, 256], &[24]];
const HEADS: &[usize] = &[2, 2, 3, 8];

const TRAINED: &[Trained] = &[
    trained("matmul", &[&[2, 3, 5], &[2, 5, 4]], |t| matmul(&t[0], &t[1])),
    trained("linear_fp8", LAYER, |t| quantized(t, Format::Fp8Row)),
    trained("linear_int8", LAYER, |t| quantized(t, Format::Int8Row)),
    trained("linear_nvfp4", LAYER, |t| quantized(t, Format::Nvfp4)),
    trained("linear_mxfp8", LAYER, |t| quantized(t, Format::Mxfp8)),
    trained("linear_mxfp4", LAYER, |t| quantized(t, Format::Mxfp4)),
    trained("linear_int4", LAYER, |t| quantized(t, Format::Int4 { group_size: 32 })),
    trained("linear_w4a8", LAYER, |t| quantized(t, Format::W4a8)),
    trained("hadamard", &[&[3, 16]], |t| hadamard(&t[0], 4)),
    trained("apply_rope", &[HEADS], |t| {
        let (cos, sin) = angles()?;
        rope(&t[0], &cos, &sin, Pairs::SplitHalf)
    }),
    trained("rms_rope", &[HEADS, &[8]], |t| {
        let (cos, sin) = angles()?;
        rms_rope(&t[0], &t[1], &cos, &sin, Pairs::Interleaved, 1e-5)
    }),
    trained("softmax", &[&[2, 3, 9]], |t| softmax(&t[0], 1)),
    trained("log_softmax", &[&[2, 3, 9]], |t| log_softmax(&t[0], 2)),
    trained("cross_entropy", &[&[4, 7]], |t| {
        let target = Tensor::new(&[1u32, 6, 0, 3], place())?;
        let how = CrossEntropy { ignore_index: Some(6), label_smoothing: 0.1 };
        cross_entropy(&t[0], &target, how)
    }),
    trained("rms_norm", &[&[3, 33], &[33]], |t| rms_norm(&t[0], &t[1], 1e-5)),
    trained("layer_norm", &[&[3, 33], &[33], &[33]], |t| layer_norm(&t[0], &t[1], &t[2], 1e-5)),
    trained("adaln", &[&[2, 3, 16], &[2, 1, 16], &[2, 1, 16]], |t| {
        adaln(&t[0], &t[1], &t[2], 1e-5)
    }),
    trained("rms_adaln", &[&[2, 3, 16], &[2, 3, 16], &[2, 3, 16]], |t| {
        rms_adaln(&t[0], &t[1], &t[2], 1e-5)
    }),
    trained("group_norm", &[&[2, 6, 5], &[6], &[6]], |t| group_norm(&t[0], &t[1], &t[2], 3, 1e-5)),
    trained("activation", &[&[3, 7]], |t| activation(&t[0], Activation::Gelu)),
    trained("gated_activation", &[&[3, 7], &[3, 7]], |t| gated(&t[0], &t[1], Activation::Silu)),
    trained("attention", &[HEADS, &[2, 1, 4, 8], &[2, 1, 4, 6]], |t| {
        attention(&t[0], &t[1], &t[2], &Attention::default())
    }),
];

/// How near differences come to a gradient, and other strides to the same sums: on a GPU other kernels may
/// serve them, and sums of products keep fewer bits.
const NEAR: f64 = if cfg!(feature = "cuda") { 2e-2 } else { 2e-3 };
const SAME: f64 = if cfg!(feature = "cuda") { 1e-3 } else { 1e-5 };

/// Ops with a gradient that are not called here, and why.
const NOT_HERE: &[(&str, &str)] = &[
    (
        "qkv_project",
        "a node of candle's graph has one result: three linear layers, each with its gradient",
    ),
    ("copy", "contiguous() and to_dtype() are candle's, with gradients"),
    ("copy_transpose", "t() and contiguous() are candle's, with gradients"),
    ("reduce", "sum, mean, max, min and log_sum_exp are candle's, with gradients"),
];

#[test]
fn every_op_with_a_gradient_trains_here_or_has_a_reason() {
    for op in &pestle::table().unwrap() {
        let contract = pestle::contract(op.name).unwrap();
        let has_gradient = !contract["backward"]["op"].is_null();
        let trains = TRAINED.iter().any(|ours| ours.op == op.name);
        let reason = NOT_HERE.iter().find(|(name, _)| *name == op.name).map(|(_, why)| *why);
        match (has_gradient, trains, reason) {
            (true, true, None) => println!("{}: trains", op.name),
            (true, false, Some(why)) => println!("{}: not here, {why}", op.name),
            (false, false, None) => {
                println!("{}: no gradient, {}", op.name, contract["backward"]["why_not"]);
            }
            _ => panic!(
                "{}: has a gradient in the table: {has_gradient}; trains here: {trains}; reason \
                 against it: {reason:?}",
                op.name
            ),
        }
    }
    for ours in TRAINED {
        assert!(pestle::contract(ours.op).is_ok(), "{} is not in the table", ours.op);
    }
}

fn args(ours: &Trained) -> Vec<Tensor> {
    ours.shapes.iter().zip(1..).map(|(shape, seed)| tensor(shape, seed)).collect()
}

/// Sum of the result's elements, each weighed differently.
fn loss(ours: &Trained, args: &[Tensor]) -> f64 {
    let out = f64s(&(ours.call)(args).unwrap());
    values(out.len(), 77).into_iter().zip(out).map(|(w, v)| f64::from(w) * v).sum()
}

#[test]
fn gradients_agree_with_finite_differences() {
    for ours in TRAINED {
        let args = args(ours);
        let vars: Vec<Var> = args.iter().map(|arg| Var::from_tensor(arg).unwrap()).collect();
        let tracked: Vec<Tensor> = vars.iter().map(|var| var.as_tensor().clone()).collect();
        let out = (ours.call)(&tracked).unwrap();
        let weights = tensor(out.dims(), 77);
        let gradients = (out * weights).unwrap().sum_all().unwrap().backward().unwrap();
        for (index, var) in vars.iter().enumerate() {
            let gradient = gradients.get(var).unwrap_or_else(|| panic!("{} {index}", ours.op));
            assert_eq!((gradient.dims(), gradient.dtype()), (var.dims(), var.dtype()));
            let gradient = f64s(gradient);
            let kept: Vec<f32> = args[index].flatten_all().unwrap().to_vec1().unwrap();
            for at in [0, kept.len() / 3, kept.len() / 2, kept.len() - 1] {
                let moved = |step: f32| {
                    let mut moved = kept.clone();
                    moved[at] += step;
                    let mut args = args.clone();
                    args[index] = Tensor::from_vec(moved, var.dims(), place()).unwrap();
                    loss(ours, &args)
                };
                let difference = (moved(0.01) - moved(-0.01)) / 0.02;
                let allowed = NEAR * (1.0 + difference.abs());
                assert!(
                    (difference - gradient[at]).abs() < allowed,
                    "{}, argument {index}, element {at}: {} where differences say {difference}",
                    ours.op,
                    gradient[at]
                );
            }
        }
    }
}

/// The same values behind an offset, with the last two dimensions exchanged in memory.
fn awkward(tensor: &Tensor) -> Result<Tensor> {
    let rank = tensor.rank();
    let turned = if rank < 2 { tensor.clone() } else { tensor.t()?.contiguous()? };
    let before = turned.narrow(0, 0, 1)?.zeros_like()?;
    let cut = Tensor::cat(&[&before, &turned], 0)?.narrow(0, 1, turned.dim(0)?)?;
    if rank < 2 {
        Ok(cut)
    } else {
        cut.t()
    }
}

#[test]
fn any_strides_and_offsets_give_the_same() {
    for ours in TRAINED {
        let plain = args(ours);
        let turned: Vec<Tensor> = plain.iter().map(|arg| awkward(arg).unwrap()).collect();
        assert!(turned.iter().all(|arg| arg.layout().start_offset() > 0));
        let (want, got) = ((ours.call)(&plain).unwrap(), (ours.call)(&turned));
        let got = got.unwrap_or_else(|error| panic!("{}: {error}", ours.op));
        assert_close(&got, &want, SAME, SAME);
    }
}

#[test]
fn half_precision_gives_nearly_the_same() {
    for ours in TRAINED {
        let want = (ours.call)(&args(ours)).unwrap();
        for (dtype, near) in [(DType::BF16, 5e-2), (DType::F16, 1e-2)] {
            let args: Vec<Tensor> =
                args(ours).iter().map(|arg| arg.to_dtype(dtype).unwrap()).collect();
            let got = (ours.call)(&args).unwrap_or_else(|error| panic!("{}: {error}", ours.op));
            let losses = ours.op == "cross_entropy"; // losses are f32
            assert_eq!(got.dtype(), if losses { DType::F32 } else { dtype }, "{}", ours.op);
            assert_close(&got, &want, near, near);
        }
    }
}

#[test]
fn what_does_not_fit_is_said() {
    let refusal = |result: Result<Tensor>| result.unwrap_err().to_string();
    let x = tensor(&[2, 3, 16], 1);
    let error = refusal(hadamard(&x, 5));
    assert!(error.contains("hadamard") && error.contains("1024"), "{error}");
    let error = refusal(adaln(&x, &tensor(&[2, 1, 16], 2), &tensor(&[2, 16], 3), 1e-5));
    assert!(error.contains("adaln") && error.contains("[2, 16]"), "{error}");
    let error = refusal(group_norm(&x, &tensor(&[3], 2), &tensor(&[3], 3), 2, 1e-5));
    assert!(error.contains("groups must divide"), "{error}");
    let target = Tensor::zeros(2, DType::F32, place()).unwrap();
    let error = refusal(cross_entropy(&tensor(&[2, 4], 1), &target, CrossEntropy::default()));
    assert!(error.contains("target"), "{error}");
    let (cos, sin) = angles().unwrap();
    let cos = Var::from_tensor(&cos).unwrap();
    let heads = tensor(HEADS, 1);
    let error = refusal(rms_rope(&heads, &tensor(&[8], 2), &cos, &sin, Pairs::SplitHalf, 1e-5));
    assert!(error.contains("cos is tracked"), "{error}");
}
