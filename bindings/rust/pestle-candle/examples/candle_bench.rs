//! Times of pestle-candle beside candle's own ops on GPU 0, one JSON line a row.
//!
//! cargo run --release --features cuda --example candle_bench [COMMIT]
#![forbid(unsafe_code)]

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor, Var};
use pestle_candle::{attention, matmul_to, rms_norm, Attention, Format, QLinear};
use std::time::Instant;

/// One call's microseconds: median of nine rounds, and the least and most.
struct Time {
    median: f64,
    least: f64,
    most: f64,
}

struct Bench {
    device: Device,
    commit: String,
}

impl Bench {
    fn round(&self, count: usize, call: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..count {
            call()?;
        }
        self.device.synchronize()?;
        Ok(start.elapsed().as_secs_f64() * 1e6 / count as f64)
    }

    /// Queues calls for about 50 ms a round, waits once a round.
    fn time(&self, mut call: impl FnMut() -> Result<()>) -> Result<Time> {
        self.round(2, &mut call)?;
        let one = self.round(3, &mut call)?;
        let count = (50_000.0 / one).clamp(1.0, 2_000.0) as usize;
        let rounds = (0..9).map(|_| self.round(count, &mut call)).collect::<Result<Vec<_>>>();
        let mut rounds = rounds?;
        rounds.sort_by(f64::total_cmp);
        Ok(Time { median: rounds[4], least: rounds[0], most: rounds[8] })
    }

    /// Time that the caller spends on a call, the device not waited for.
    fn host(&self, mut call: impl FnMut() -> Result<()>) -> Result<Time> {
        let mut rounds = Vec::new();
        for _ in 0..9 {
            self.device.synchronize()?;
            let start = Instant::now();
            for _ in 0..200 {
                call()?;
            }
            rounds.push(start.elapsed().as_secs_f64() * 1e6 / 200.0);
        }
        self.device.synchronize()?;
        rounds.sort_by(f64::total_cmp);
        Ok(Time { median: rounds[4], least: rounds[0], most: rounds[8] })
    }

    fn tell(&self, row: &str, ours: Time, peer: &str, theirs: Time) {
        println!(
            "{}",
            serde_json::json!({
                "machine": {"commit": self.commit}, "row": row,
                "us": ours.median, "least": ours.least, "most": ours.most,
                "peer": peer, "peer_us": theirs.median,
                "ratio": theirs.median / ours.median,
            })
        );
    }

    fn normal(&self, shape: &[usize], dtype: DType) -> Result<Tensor> {
        Tensor::randn(0f32, 1., shape, &self.device)?.to_dtype(dtype)
    }
}

fn products(bench: &Bench) -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        let (a, b) = (bench.normal(&[4096, 4096], dtype)?, bench.normal(&[4096, 4096], dtype)?);
        let ours = bench.time(|| matmul_to(&a, &b, DType::F32).map(drop))?;
        let theirs = bench.time(|| a.matmul(&b)?.to_dtype(DType::F32).map(drop))?;
        bench.tell(
            &format!("matmul {dtype:?} 4096^3, f32 out"),
            ours,
            "candle's and a cast",
            theirs,
        );

        let (a, b) = (Var::from_tensor(&a)?, Var::from_tensor(&b)?);
        let ours = bench.time(|| matmul_to(&a, &b, dtype)?.sum_all()?.backward().map(drop))?;
        let theirs = bench.time(|| a.matmul(&b)?.sum_all()?.backward().map(drop))?;
        let row = format!("matmul {dtype:?} 4096^3, forward and backward");
        bench.tell(&row, ours, "candle's", theirs);
    }
    Ok(())
}

fn plain_attention(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let scale = (q.dim(candle_core::D::Minus1)? as f64).powf(-0.5);
    let scores = (q.matmul(&k.t()?)? * scale)?;
    candle_nn::ops::softmax(&scores, candle_core::D::Minus1)?.matmul(v)
}

fn attentions(bench: &Bench) -> Result<()> {
    let how = Attention::default();
    for (heads, name) in [(12, "12 heads"), (1, "one head")] {
        let part = || bench.normal(&[1, heads, 8192, 128], DType::F32);
        let (q, k, v) = (part()?, part()?, part()?);
        let ours = bench.time(|| attention(&q, &k, &v, &how).map(drop))?;
        let theirs = bench.time(|| plain_attention(&q, &k, &v).map(drop))?;
        let row = format!("attention f32, {name}, 8192 x 128");
        bench.tell(&row, ours, "matmul, softmax, matmul", theirs);

        let (q, k, v) = (Var::from_tensor(&q)?, Var::from_tensor(&k)?, Var::from_tensor(&v)?);
        let ours = bench.time(|| attention(&q, &k, &v, &how)?.sum_all()?.backward().map(drop))?;
        let step = || plain_attention(&q, &k, &v)?.sum_all()?.backward().map(drop);
        let theirs = bench.time(step)?;
        bench.tell(
            &format!("{row}, forward and backward"),
            ours,
            "matmul, softmax, matmul",
            theirs,
        );
    }
    Ok(())
}

fn linears(bench: &Bench) -> Result<()> {
    let (n, k) = (14336, 4096);
    let weight = bench.normal(&[n, k], DType::F32)?;
    let half = weight.to_dtype(DType::F16)?;
    let gguf = QMatMul::from_qtensor(QTensor::quantize(&weight, GgmlDType::Q4_0)?)?;
    let formats = [
        ("int4-g128", Format::Int4 { group_size: 128 }),
        ("int8-row", Format::Int8Row),
        ("nvfp4", Format::Nvfp4),
    ];
    for m in [1, 16] {
        let x = bench.normal(&[m, k], DType::F16)?;
        let x32 = x.to_dtype(DType::F32)?;
        let transposed = half.t()?;
        for (name, format) in formats {
            let layer = QLinear::quantize(&weight, None, format)?;
            let row = format!("linear {name} {m} x {n} x {k}");
            let ours = bench.time(|| layer.forward(&x).map(drop))?;
            let theirs = bench.time(|| x.matmul(&transposed).map(drop))?;
            bench.tell(&row, ours, "candle's f16", theirs);
            let ours = bench.time(|| layer.forward(&x).map(drop))?;
            let theirs = bench.time(|| gguf.forward(&x32).map(drop))?;
            bench.tell(&row, ours, "candle's GGUF Q4_0", theirs);
        }
    }
    Ok(())
}

fn host_costs(bench: &Bench) -> Result<()> {
    let (x, weight) = (bench.normal(&[4, 256], DType::F32)?, bench.normal(&[256], DType::F32)?);
    let ours = bench.host(|| rms_norm(&x, &weight, 1e-5).map(drop))?;
    let theirs = bench.host(|| candle_nn::ops::rms_norm(&x, &weight, 1e-5).map(drop))?;
    bench.tell("host: rms_norm 4 x 256", ours, "candle's rms_norm", theirs);
    let (a, b) = (bench.normal(&[16, 64], DType::F16)?, bench.normal(&[64, 64], DType::F16)?);
    let ours = bench.host(|| matmul_to(&a, &b, DType::F16).map(drop))?;
    let theirs = bench.host(|| a.matmul(&b).map(drop))?;
    bench.tell("host: matmul 16 x 64 x 64", ours, "candle's matmul", theirs);
    Ok(())
}

fn main() -> Result<()> {
    let commit = std::env::args().nth(1).unwrap_or_else(|| "unknown".into());
    let bench = Bench { device: Device::new_cuda(0)?, commit };
    host_costs(&bench)?;
    products(&bench)?;
    linears(&bench)?;
    attentions(&bench)
}
