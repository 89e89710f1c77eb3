//! silu(x) * gate in one pass, beside candle's two ops: the difference and the times.
//!
//! cargo run --release --example silu_gate
#![forbid(unsafe_code)]

use candle_core::{bail, Device, Result, Tensor};
use std::time::{Duration, Instant};

/// The shortest of several runs.
fn shortest(mut job: impl FnMut() -> Result<Tensor>) -> Result<(Tensor, Duration)> {
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
    for (rows, columns) in [(256, 1024), (64, 14336), (3, 1001)] {
        let x = Tensor::randn(0f32, 1.0, (rows, columns), &Device::Cpu)?;
        let gate = Tensor::randn(0f32, 1.0, (rows, columns), &Device::Cpu)?;
        let (fused, ours) = shortest(|| pestle_candle::silu_mul(&x, &gate))?;
        let (plain, candle) = shortest(|| x.silu()? * &gate)?;
        let error = (fused - plain)?.abs()?.max_all()?.to_scalar::<f32>()?;
        println!("[{rows}, {columns}]: {ours:?}, candle {candle:?}; largest difference {error:e}");
        if error > 1e-5 {
            bail!("the two differ");
        }
    }
    Ok(())
}
