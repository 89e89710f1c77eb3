//! Decoding with a Llama of random weights, batch 1: every linear layer stays in INT4, keys and values
//! are cached. The logits are compared with those of the decoded weights.
//!
//! cargo run --release --example llama_step
#![forbid(unsafe_code)]

use candle_core::{bail, DType, Device, Module, Result, Tensor};
use pestle_candle::{
    attention, linear, rms_norm, rope, silu_mul, Attention, Causal, Format, Pairs, QLinear,
};
use std::time::Instant;

const WIDTH: usize = 512;
const INNER: usize = 1408;
const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const HEAD: usize = WIDTH / HEADS;
const LAYERS: usize = 2;
const TOKENS: usize = 1000;

/// A linear layer twice: in INT4, and decoded to f32.
struct Projection {
    quantized: QLinear,
    decoded: Tensor,
}

impl Projection {
    fn new(out_features: usize, in_features: usize) -> Result<Projection> {
        let deviation = (in_features as f32).powf(-0.5);
        let weight = Tensor::randn(0f32, deviation, (out_features, in_features), &Device::Cpu)?;
        let quantized = QLinear::quantize(&weight, None, Format::Int4 { group_size: 64 })?;
        let decoded = quantized.dequantize(DType::F32)?;
        Ok(Projection { quantized, decoded })
    }

    fn forward(&self, x: &Tensor, in_int4: bool) -> Result<Tensor> {
        if in_int4 {
            self.quantized.forward(x)
        } else {
            linear(x, &self.decoded, None)
        }
    }
}

struct Layer {
    q: Projection,
    k: Projection,
    v: Projection,
    o: Projection,
    gate: Projection,
    up: Projection,
    down: Projection,
    norms: [Tensor; 2],
}

/// Keys and values so far, [1, KV_HEADS, S, HEAD] each.
type Cache = Vec<Option<(Tensor, Tensor)>>;

impl Layer {
    fn new() -> Result<Layer> {
        let ones = || Tensor::ones(WIDTH, DType::F32, &Device::Cpu);
        Ok(Layer {
            q: Projection::new(WIDTH, WIDTH)?,
            k: Projection::new(KV_HEADS * HEAD, WIDTH)?,
            v: Projection::new(KV_HEADS * HEAD, WIDTH)?,
            o: Projection::new(WIDTH, WIDTH)?,
            gate: Projection::new(INNER, WIDTH)?,
            up: Projection::new(INNER, WIDTH)?,
            down: Projection::new(WIDTH, INNER)?,
            norms: [ones()?, ones()?],
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        angles: &(Tensor, Tensor),
        cache: &mut Option<(Tensor, Tensor)>,
        in_int4: bool,
    ) -> Result<Tensor> {
        let seq = x.dim(1)?;
        let heads =
            |x: Tensor| x.reshape((1, seq, x.elem_count() / seq / HEAD, HEAD))?.transpose(1, 2);
        let normal = rms_norm(x, &self.norms[0], 1e-5)?;
        let turn = |x: &Tensor| rope(x, &angles.0, &angles.1, Pairs::SplitHalf);
        let q = turn(&heads(self.q.forward(&normal, in_int4)?)?)?;
        let mut k = turn(&heads(self.k.forward(&normal, in_int4)?)?)?;
        let mut v = heads(self.v.forward(&normal, in_int4)?)?;
        if let Some((keys, values)) = cache {
            k = Tensor::cat(&[&*keys, &k], 2)?;
            v = Tensor::cat(&[&*values, &v], 2)?;
        }
        *cache = Some((k.clone(), v.clone()));
        let how = Attention { causal: Causal::BottomRight, ..Attention::default() };
        let mixed = attention(&q, &k, &v, &how)?.transpose(1, 2)?.reshape((1, seq, WIDTH))?;
        let x = (x + self.o.forward(&mixed, in_int4)?)?;
        let normal = rms_norm(&x, &self.norms[1], 1e-5)?;
        let gate = self.gate.forward(&normal, in_int4)?;
        let inner = silu_mul(&gate, &self.up.forward(&normal, in_int4)?)?;
        x + self.down.forward(&inner, in_int4)?
    }
}

struct Llama {
    embedding: Tensor,
    layers: Vec<Layer>,
    head: Projection,
}

impl Llama {
    fn step(&self, tokens: &[u32], at: usize, cache: &mut Cache, in_int4: bool) -> Result<Tensor> {
        let tokens = Tensor::new(tokens, &Device::Cpu)?;
        let mut x = self.embedding.index_select(&tokens, 0)?.unsqueeze(0)?;
        let angles = angles(at, x.dim(1)?)?;
        for (layer, cache) in self.layers.iter().zip(cache) {
            x = layer.forward(&x, &angles, cache, in_int4)?;
        }
        let last = x.narrow(1, x.dim(1)? - 1, 1)?.contiguous()?;
        self.head.forward(&last, in_int4)?.flatten_all()
    }
}

fn angles(at: usize, count: usize) -> Result<(Tensor, Tensor)> {
    let values = (at..at + count).flat_map(|position| {
        let turn = move |i| position as f32 * 10000f32.powf(-2.0 * i as f32 / HEAD as f32);
        (0..HEAD / 2).map(turn)
    });
    let angles = Tensor::from_iter(values.collect::<Vec<_>>(), &Device::Cpu)?;
    let angles = angles.reshape((count, HEAD / 2))?;
    Ok((angles.cos()?, angles.sin()?))
}

fn main() -> Result<()> {
    let llama = Llama {
        embedding: Tensor::randn(0f32, 1.0, (TOKENS, WIDTH), &Device::Cpu)?,
        layers: (0..LAYERS).map(|_| Layer::new()).collect::<Result<_>>()?,
        head: Projection::new(TOKENS, WIDTH)?,
    };
    let (mut ours, mut plain): (Cache, Cache) = (vec![None; LAYERS], vec![None; LAYERS]);
    let mut tokens = vec![1u32, 17, 42, 256];
    let mut at = 0;
    for step in 0..8 {
        let start = Instant::now();
        let logits = llama.step(&tokens, at, &mut ours, true)?;
        let time = start.elapsed();
        let exact = llama.step(&tokens, at, &mut plain, false)?;
        let error = (&logits - &exact)?.abs()?.max_all()?.to_scalar::<f32>()?;
        let next = logits.argmax(0)?.to_scalar::<u32>()?;
        println!(
            "step {step}: {} tokens in {time:?}, next {next}, largest difference {error:e}",
            tokens.len()
        );
        if error > 1e-3 {
            bail!("INT4 layers and their decoded weights differ");
        }
        at += tokens.len();
        tokens = vec![next];
    }
    Ok(())
}
