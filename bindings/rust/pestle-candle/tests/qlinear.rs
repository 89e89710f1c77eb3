//! Layers whose weight stays quantised, in every format.
mod common;
use candle_core::{DType, Module, Tensor, Var};
use common::{assert_close, tensor};
use pestle_candle::{
    qkv_project, scaled_mm_fp8, scaled_mm_int8, scaled_mm_mxfp8, scaled_mm_nvfp4, Format, Nvfp4,
    QLinear, Weight,
};

/// Every format, and how far a weight of uniform values may be from its codes.
const FORMATS: [(Format, f64); 13] = [
    (Format::Fp8, 0.05),
    (Format::Fp8E5m2, 0.1),
    (Format::Int8, 0.02),
    (Format::W4a4Convrot, 0.25),
    (Format::Fp8Row, 0.05),
    (Format::Fp8Block, 0.05),
    (Format::Int8Row, 0.02),
    (Format::Int8Convrot, 0.02),
    (Format::Nvfp4, 0.2),
    (Format::Mxfp8, 0.05),
    (Format::Mxfp4, 0.25),
    (Format::Int4 { group_size: 64 }, 0.2),
    (Format::W4a8, 0.2),
];

fn norm(tensor: &Tensor) -> f64 {
    common::f64s(tensor).iter().map(|v| v * v).sum::<f64>().sqrt()
}

#[test]
fn every_format_decodes_to_what_it_multiplies_by() {
    let (weight, bias) = (tensor(&[40, 256], 1), tensor(&[40], 2));
    for (format, error) in FORMATS {
        let layer = QLinear::quantize(&weight, Some(&bias), format).unwrap();
        assert_eq!((layer.out_features(), layer.in_features()), (40, 256));
        let decoded = layer.dequantize(DType::F32).unwrap();
        let off = norm(&(&decoded - &weight).unwrap()) / norm(&weight);
        assert!(off < error, "{format:?}: {off}");

        let exact = decoded.to_dtype(DType::F64).unwrap();
        let exact_bias = bias.to_dtype(DType::F64).unwrap();
        for (x, dtype, near) in [
            (tensor(&[2, 3, 256], 3), DType::F32, 1e-4),
            (tensor(&[5, 256], 4), DType::BF16, 5e-2),
            (tensor(&[256, 7], 5).t().unwrap(), DType::F32, 1e-4),
            (tensor(&[9, 256], 6).narrow(0, 3, 1).unwrap(), DType::F16, 1e-2),
        ] {
            let x = x.to_dtype(dtype).unwrap();
            let got = layer.forward(&x).unwrap();
            assert_eq!(got.dtype(), dtype);
            let want = x.to_dtype(DType::F64).unwrap().contiguous().unwrap();
            let want = want.broadcast_matmul(&exact.t().unwrap()).unwrap();
            assert_close(&got, &want.broadcast_add(&exact_bias).unwrap(), near, near * 3.0);
        }
    }
}

#[test]
fn x_and_bias_have_their_gradients() {
    let weight = tensor(&[24, 256], 1);
    for (format, _) in FORMATS {
        let bias = Var::from_tensor(&tensor(&[24], 2)).unwrap();
        let layer = QLinear::quantize(&weight, Some(&bias), format).unwrap();
        let x = Var::from_tensor(&tensor(&[2, 2, 256], 3)).unwrap();
        let weights = tensor(&[2, 2, 24], 4);
        let out = layer.forward(&x).unwrap();
        let gradients = (&out * &weights).unwrap().sum_all().unwrap().backward().unwrap();
        let decoded = layer.dequantize(DType::F32).unwrap();
        let want = weights.broadcast_matmul(&decoded).unwrap();
        assert_close(gradients.get(&x).unwrap(), &want, 1e-4, 1e-4);
        let want = weights.sum((0, 1)).unwrap();
        assert_close(gradients.get(&bias).unwrap(), &want, 1e-5, 1e-5);
    }
}

#[test]
fn sizes_that_formats_pad() {
    let (weight, bias) = (tensor(&[19, 40], 1), tensor(&[19], 2));
    for format in [Format::Nvfp4, Format::Mxfp8, Format::Mxfp4] {
        let layer = QLinear::quantize(&weight, Some(&bias), format).unwrap();
        let x = Var::from_tensor(&tensor(&[3, 40], 3)).unwrap();
        let out = layer.forward(&x).unwrap();
        let decoded = layer.dequantize(DType::F32).unwrap();
        assert_eq!(decoded.dims(), [19, 40]);
        let want = x.matmul(&decoded.t().unwrap()).unwrap().broadcast_add(&bias).unwrap();
        assert_close(&out, &want, 1e-4, 1e-4);
        let gradients = out.sum_all().unwrap().backward().unwrap();
        let want = decoded.sum_keepdim(0).unwrap().broadcast_as((3, 40)).unwrap();
        assert_close(gradients.get(&x).unwrap(), &want, 1e-4, 1e-4);
    }
}

#[test]
fn what_does_not_fit_is_said() {
    let layer = QLinear::quantize(&tensor(&[8, 32], 1), None, Format::Int8Row).unwrap();
    let error = layer.forward(&tensor(&[2, 31], 2)).unwrap_err().to_string();
    assert!(error.contains("[2, 31]") && error.contains("32 features"), "{error}");
    let wrong = tensor(&[9], 3);
    assert!(QLinear::quantize(&tensor(&[8, 32], 1), Some(&wrong), Format::Fp8).is_err());
    let odd = QLinear::quantize(&tensor(&[8, 31], 1), None, Format::Int4 { group_size: 8 });
    assert!(odd.unwrap_err().to_string().contains("even"));
}

#[test]
fn products_of_two_quantised_operands() {
    let (a, b) = (tensor(&[5, 64], 1), tensor(&[7, 64], 2));
    for format in [Format::Fp8Row, Format::Int8Row, Format::Nvfp4, Format::Mxfp8] {
        let [a, b] = [&a, &b].map(|t| Weight::quantize(t, format).unwrap());
        let exact = |w: &Weight| w.dequantize(DType::F32).unwrap().to_dtype(DType::F64).unwrap();
        let want = exact(&a).matmul(&exact(&b).t().unwrap()).unwrap();
        let got = match (&a, &b) {
            (
                Weight::Fp8 { codes: a, scale: scale_a, .. },
                Weight::Fp8 { codes: b, scale: scale_b, .. },
            ) => scaled_mm_fp8(a, b, scale_a, scale_b, "row", DType::F32),
            (
                Weight::Int8 { codes: a, scale: scale_a, .. },
                Weight::Int8 { codes: b, scale: scale_b, .. },
            ) => scaled_mm_int8(a, b, scale_a, scale_b, "row", DType::F32),
            (
                Weight::Nvfp4 { codes, scale, global, .. },
                Weight::Nvfp4 { codes: codes_b, scale: scale_b, global: global_b, .. },
            ) => {
                let a = Nvfp4 { codes, scale, global };
                let b = Nvfp4 { codes: codes_b, scale: scale_b, global: global_b };
                scaled_mm_nvfp4(a, b, DType::F32)
            }
            (
                Weight::Mxfp8 { codes: a, scale: scale_a, .. },
                Weight::Mxfp8 { codes: b, scale: scale_b, .. },
            ) => scaled_mm_mxfp8(a, b, scale_a, scale_b, DType::F32),
            _ => panic!("{format:?} has no product of two"),
        };
        // A GPU's tensor cores keep fewer bits of sums of FP8.
        let lossy = cfg!(feature = "cuda") && format == Format::Fp8Row;
        let near = if lossy { 2e-3 } else { 1e-4 };
        assert_close(&got.unwrap(), &want, near, near);
    }
}

#[test]
fn a_scale_that_is_tracked_is_refused() {
    let Weight::Int8 { codes, scale, .. } =
        Weight::quantize(&tensor(&[5, 64], 1), Format::Int8Row).unwrap()
    else {
        panic!("int8")
    };
    let tracked = Var::from_tensor(&scale).unwrap();
    let error = scaled_mm_int8(&codes, &codes, &tracked, &scale, "row", DType::F32).unwrap_err();
    assert!(error.to_string().contains("scale_a is tracked"), "{error}");
    let error = scaled_mm_int8(&codes, &codes, &scale, &scale, "column", DType::F32).unwrap_err();
    assert!(error.to_string().contains("column") && error.to_string().contains("row"), "{error}");
}

#[test]
fn projections_of_different_widths() {
    let layer = |n, seed| QLinear::quantize(&tensor(&[n, 64], seed), None, Format::Nvfp4).unwrap();
    let (q, k, v) = (layer(48, 1), layer(16, 2), layer(32, 3));
    let x = tensor(&[2, 64], 4);
    let (a, b, c) = qkv_project(&x, &q, &k, &v).unwrap();
    assert_eq!((a.dims(), b.dims(), c.dims()), (&[2, 48][..], &[2, 16][..], &[2, 32][..]));
    assert_close(&b, &k.forward(&x).unwrap(), 0.0, 0.0);
}
