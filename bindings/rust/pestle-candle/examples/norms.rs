//! RMSNorm, LayerNorm and softmax of rows of any length, beside f64: the difference and the times.
//!
//! cargo run --release --example norms
#![forbid(unsafe_code)]

use candle_core::{bail, DType, Device, Result, Tensor, D};
use pestle_candle::{layer_norm, rms_norm, softmax};
use std::time::{Duration, Instant};

/// The shortest of several runs.
fn shortest(job: &dyn Fn() -> Result<Tensor>) -> Result<(Tensor, Duration)> {
    let mut best = (job()?, Duration::MAX);
    for _ in 0..5 {
        let start = Instant::now();
        let result = job()?;
        if start.elapsed() < best.1 {
            best = (result, start.elapsed());
        }
    }
    Ok(best)
}

fn main() -> Result<()> {
    for k in [256, 257, 4096] {
        let x = Tensor::randn(0f32, 1.0, (64, k), &Device::Cpu)?;
        let (weight, bias) = (Tensor::ones(k, DType::F32, &Device::Cpu)?, x.get(0)?);
        let exact = x.to_dtype(DType::F64)?;
        let centred = exact.broadcast_sub(&exact.mean_keepdim(D::Minus1)?)?;
        let over = |x: &Tensor| -> Result<Tensor> {
            x.broadcast_div(&(x.sqr()?.mean_keepdim(D::Minus1)? + 1e-5)?.sqrt()?)
        };
        let exponents = exact.exp()?;
        type Row<'f> = (&'f str, &'f dyn Fn() -> Result<Tensor>, Tensor);
        let rows: [Row<'_>; 3] = [
            ("rms_norm", &|| rms_norm(&x, &weight, 1e-5), over(&exact)?),
            (
                "layer_norm",
                &|| layer_norm(&x, &weight, &bias, 1e-5),
                over(&centred)?.broadcast_add(&bias.to_dtype(DType::F64)?)?,
            ),
            (
                "softmax",
                &|| softmax(&x, D::Minus1),
                exponents.broadcast_div(&exponents.sum_keepdim(D::Minus1)?)?,
            ),
        ];
        for (name, job, want) in rows {
            let (got, time) = shortest(job)?;
            let error = (got.to_dtype(DType::F64)? - want)?.abs()?.max_all()?.to_scalar::<f64>()?;
            println!("{name} [64, {k}]: {time:?}; largest error {error:e}");
            if error > 1e-5 {
                bail!("{name} is wrong");
            }
        }
    }
    Ok(())
}
