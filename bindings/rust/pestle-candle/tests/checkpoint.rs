//! Files: ComfyUI's layout and the plain one as `pestle quantize` writes them, GPTQ and AWQ.
mod common;
use candle_core::{DType, Module, Tensor};
use common::{assert_close, place, tensor, values};
use pestle::files::{quantize_file, quietly};
use pestle_candle::{var_builder, Checkpoint, QVarBuilder};
use serde_json::json;
use std::collections::HashMap;
use std::path::PathBuf;

/// A folder of this test's own, gone at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path =
            std::env::temp_dir().join(format!("pestle-candle-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn save(&self, name: &str, tensors: &[(&str, Tensor)]) -> PathBuf {
        let path = self.0.join(name);
        let tensors: HashMap<&str, Tensor> = tensors.iter().cloned().collect();
        candle_core::safetensors::save(&tensors, &path).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn open(path: &PathBuf) -> Checkpoint {
    // SAFETY: nobody else knows of the test's own file.
    unsafe { Checkpoint::open(&[path]) }.unwrap()
}

#[test]
fn every_format_of_both_layouts() {
    let folder = Folder::new("formats");
    let (weight, bias) = (tensor(&[40, 256], 1), tensor(&[40], 2));
    let model = folder.save(
        "model",
        &[("blocks.0.proj.weight", weight.clone()), ("blocks.0.proj.bias", bias.clone())],
    );
    let comfy = [
        "fp8",
        "fp8-e5m2",
        "nvfp4",
        "mxfp8",
        "int8",
        "int8-row",
        "int8-convrot",
        "w4a8",
        "w4a4-convrot",
    ];
    let plain = ["fp8-row", "fp8-block", "mxfp4", "int4-g32", "int4-g64", "int4-g128"];
    let both = comfy.iter().map(|format| (*format, "comfy"));
    let both = both.chain(comfy.iter().chain(&plain).map(|format| (*format, "plain")));
    for (format, layout) in both {
        let path = folder.0.join(format!("{format}-{layout}"));
        let options = json!({"layout": layout, "default_keep": false});
        let report = quantize_file(&model, &path, format, options, &mut quietly).unwrap();
        let layers = report["layers"].as_array().unwrap();
        let stored = layers.iter().find(|layer| layer["name"] == "blocks.0.proj").unwrap();
        let told = stored["relative_error"].as_f64().unwrap();

        let layer = open(&path).qlinear("blocks.0.proj", place()).unwrap();
        let decoded = layer.dequantize(DType::F32).unwrap();
        let squares = |t: &Tensor| common::f64s(t).iter().map(|v| v * v).sum::<f64>();
        let error = (squares(&(&decoded - &weight).unwrap()) / squares(&weight)).sqrt();
        // Only the layer that was stored has the error that was reported, to its last digits.
        assert!((error - told).abs() < 1e-3 * told, "{format} {layout}: {error}, not {told}");

        let x = tensor(&[3, 256], 3);
        let want = x.matmul(&decoded.t().unwrap()).unwrap().broadcast_add(&bias).unwrap();
        assert_close(&layer.forward(&x).unwrap(), &want, 1e-4, 5e-4);
    }
}

#[test]
fn padded_sizes_come_back() {
    let folder = Folder::new("padded");
    let weight = tensor(&[19, 40], 1);
    let model = folder.save("model", &[("a.weight", weight)]);
    for (format, layout) in [("nvfp4", "comfy"), ("nvfp4", "plain"), ("mxfp8", "comfy")] {
        let path = folder.0.join(format!("{format}-{layout}"));
        let options = json!({"layout": layout, "default_keep": false});
        quantize_file(&model, &path, format, options, &mut quietly).unwrap();
        let layer = open(&path).qlinear("a", place()).unwrap();
        assert_eq!((layer.out_features(), layer.in_features()), (19, 40));
        assert_eq!(layer.forward(&tensor(&[2, 40], 2)).unwrap().dims(), [2, 19]);
    }
}

#[test]
fn a_var_builder_gives_decoded_weights() {
    let folder = Folder::new("builder");
    let (weight, norm) = (tensor(&[32, 64], 1), tensor(&[64], 2));
    let model = folder.save("model", &[("a.proj.weight", weight), ("a.norm.weight", norm.clone())]);
    let path = folder.0.join("q");
    let options = json!({"default_keep": false});
    quantize_file(&model, &path, "int8-row", options, &mut quietly).unwrap();

    // SAFETY: nobody else knows of the test's own file.
    let vb = unsafe { var_builder(&[&path], DType::F32, place()) }.unwrap();
    let decoded = vb.pp("a").pp("proj").get((32, 64), "weight").unwrap();
    let layer = open(&path).qlinear("a.proj", place()).unwrap();
    assert_close(&decoded, &layer.dequantize(DType::F32).unwrap(), 0.0, 0.0);
    assert_close(&vb.pp("a").get(64, "norm.weight").unwrap(), &norm, 0.0, 0.0);
    assert!(vb.contains_tensor("a.proj.weight") && !vb.contains_tensor("b"));
    // Read instead of mapped: no promise is asked for.
    let read = Checkpoint::read(&[&path]).unwrap().into_var_builder(DType::F32, place());
    assert_close(&read.get((32, 64), "a.proj.weight").unwrap(), &decoded, 0.0, 0.0);
    let missing = Checkpoint::read(&[folder.0.join("none")]).err().expect("no file").to_string();
    assert!(missing.contains("none"), "{missing}");
    let error = vb.get((64, 32), "a.proj.weight").unwrap_err().to_string();
    assert!(error.contains("a.proj.weight"), "{error}");

    // SAFETY: as above.
    let vb = unsafe { QVarBuilder::open(&[&path], DType::F32, place()) }.unwrap().pp("a");
    assert_eq!(vb.pp("proj").qlinear(64, 32).unwrap().out_features(), 32);
    assert!(vb.pp("proj").qlinear(32, 64).is_err());
    assert!(vb.pp("norm").qlinear(64, 64).unwrap_err().to_string().contains("not quantised"));
    assert_close(&vb.get(64, "norm.weight").unwrap(), &norm, 0.0, 0.0);
}

const K: usize = 64;
const N: usize = 16;
const GROUP: usize = 32;

/// Codes [K][N], zero points [G][N] and scales [G][N] of a 4-bit weight.
struct Int4 {
    codes: Vec<u32>,
    zeros: Vec<u32>,
    scales: Tensor,
}

impl Int4 {
    fn new() -> Int4 {
        let small = |count, seed, most: f32| -> Vec<u32> {
            values(count, seed).into_iter().map(|v| ((v + 1.0) / 2.0 * most) as u32).collect()
        };
        let scales = (tensor(&[K / GROUP, N], 3).abs().unwrap() + 0.1).unwrap();
        Int4 {
            codes: small(K * N, 1, 15.99),
            zeros: small(K / GROUP * N, 2, 15.99),
            scales: scales.to_dtype(DType::F16).unwrap(),
        }
    }

    /// [N, K] in f64, where row k of the codes is of group `group_of(k)`.
    fn decoded(&self, group_of: impl Fn(usize) -> usize) -> Tensor {
        let scales = common::f64s(&self.scales);
        let mut weight = Vec::new();
        for n in 0..N {
            for k in 0..K {
                let at = group_of(k) * N + n;
                let code = f64::from(self.codes[k * N + n]) - f64::from(self.zeros[at]);
                weight.push(code * scales[at]);
            }
        }
        Tensor::from_vec(weight, (N, K), place()).unwrap()
    }
}

/// Words [rows, columns] of eight nibbles each.
fn words(rows: usize, columns: usize, nibble: impl Fn(usize, usize, usize) -> u32) -> Tensor {
    let mut result = Vec::new();
    for row in 0..rows {
        for column in 0..columns {
            let word = (0..8).fold(0u32, |word, i| word | nibble(row, column, i) << (4 * i));
            result.push(word as i32);
        }
    }
    Tensor::from_vec(result, (rows, columns), place()).unwrap()
}

fn assert_layer(path: &PathBuf, want: &Tensor) {
    let layer = open(path).qlinear("a", place()).unwrap();
    assert_close(&layer.dequantize(DType::F32).unwrap(), want, 1e-6, 1e-6);
    let x = tensor(&[3, K], 9);
    let exact = x.to_dtype(DType::F64).unwrap().matmul(&want.t().unwrap()).unwrap();
    assert_close(&layer.forward(&x).unwrap(), &exact, 1e-4, 1e-3);
}

#[test]
fn gptq_with_and_without_act_order() {
    let folder = Folder::new("gptq");
    let weight = Int4::new();
    let codes = words(K / 8, N, |row, n, i| weight.codes[(row * 8 + i) * N + n]);
    // The first version stores zero points less one, modulo 16.
    let zeros = words(K / GROUP, N / 8, |g, word, i| {
        weight.zeros[g * N + word * 8 + i].wrapping_sub(1) & 15
    });
    let common = [("a.qweight", codes), ("a.qzeros", zeros), ("a.scales", weight.scales.clone())];
    let path = folder.save("in-order", &common);
    assert_layer(&path, &weight.decoded(|k| k / GROUP));

    let shuffled = |k: usize| (k * 37 + 11) % K / GROUP;
    let g_idx: Vec<i32> = (0..K).map(|k| shuffled(k) as i32).collect();
    let g_idx = ("a.g_idx", Tensor::from_vec(g_idx, K, place()).unwrap());
    let path = folder.save("act-order", &[&common[..], &[g_idx]].concat());
    assert_layer(&path, &weight.decoded(shuffled));

    let g_idx = ("a.g_idx", Tensor::zeros(K, DType::I32, place()).unwrap());
    let path = folder.save("wrong", &[&common[..], &[g_idx]].concat());
    let error = open(&path).qlinear("a", place()).unwrap_err().to_string();
    assert!(error.contains("g_idx"), "{error}");
}

#[test]
fn awq() {
    let folder = Folder::new("awq");
    let weight = Int4::new();
    const COLUMN: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7]; // of nibble i
    let codes = words(K, N / 8, |k, word, i| weight.codes[k * N + word * 8 + COLUMN[i]]);
    let zeros = words(K / GROUP, N / 8, |g, word, i| weight.zeros[g * N + word * 8 + COLUMN[i]]);
    let path = folder.save(
        "awq",
        &[("a.qweight", codes), ("a.qzeros", zeros), ("a.scales", weight.scales.clone())],
    );
    assert_layer(&path, &weight.decoded(|k| k / GROUP));
}

/// Blocks that candle itself quantised and decodes are the other side.
#[test]
fn gguf_of_every_type_that_is_read() {
    use candle_core::quantized::{gguf_file, GgmlDType, QTensor};
    let folder = Folder::new("gguf");
    let path = folder.0.join("model.gguf");
    let weight = tensor(&[5, 512], 1).to_device(&candle_core::Device::Cpu).unwrap();
    let kinds = [
        ("q4_0", GgmlDType::Q4_0),
        ("q8_0", GgmlDType::Q8_0),
        ("q4_k", GgmlDType::Q4K),
        ("q6_k", GgmlDType::Q6K),
        ("f16", GgmlDType::F16),
        ("q5_0", GgmlDType::Q5_0),
    ];
    let stored = kinds
        .map(|(name, kind)| (format!("{name}.weight"), QTensor::quantize(&weight, kind).unwrap()));
    let tensors: Vec<_> = stored.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let mut file = std::fs::File::create(&path).unwrap();
    gguf_file::write(&mut file, &[], &tensors).unwrap();

    let checkpoint = open(&path);
    for (name, tensor) in &stored[..5] {
        let want = tensor.dequantize(&candle_core::Device::Cpu).unwrap();
        let got = checkpoint.float(name, DType::F32, place()).unwrap();
        assert_close(&got, &want, 0.0, 0.0);
    }
    let x = tensor(&[3, 512], 2);
    for (index, name) in [(0, "q4_0"), (1, "q8_0"), (3, "q6_k")] {
        let layer = checkpoint.qlinear(name, place()).unwrap();
        let want = stored[index].1.dequantize(place()).unwrap();
        assert_close(&layer.dequantize(DType::F32).unwrap(), &want, 0.0, 0.0);
        let want = x.matmul(&want.t().unwrap()).unwrap();
        assert_close(&layer.forward(&x).unwrap(), &want, 1e-4, 1e-4);
    }
    // SAFETY: nobody else knows of the file.
    let vb = unsafe { var_builder(&[&path], DType::F32, place()) }.unwrap();
    let got = vb.get((5, 512), "q6_k.weight").unwrap();
    assert_close(&got, &stored[3].1.dequantize(place()).unwrap(), 0.0, 0.0);

    let error = checkpoint.qlinear("q4_k", place()).unwrap_err().to_string();
    assert!(error.contains("q4_k") && error.contains("float()"), "{error}");
    let error = checkpoint.float("q5_0.weight", DType::F32, place()).unwrap_err().to_string();
    assert!(error.contains("Q5_0") && error.contains("Q6_K"), "{error}");

    let whole = std::fs::read(&path).unwrap();
    let cut = folder.0.join("cut.gguf");
    std::fs::write(&cut, &whole[..whole.len() - 600]).unwrap();
    let checkpoint = open(&cut);
    let names: Vec<_> = stored.iter().map(|(name, _)| name).collect();
    let told = names.iter().filter_map(|name| checkpoint.float(name, DType::F32, place()).err());
    assert!(told.map(|error| error.to_string()).any(|text| text.contains("the file ends before")));
}
