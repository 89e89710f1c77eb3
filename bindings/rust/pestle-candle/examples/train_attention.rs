//! A small model with attention learns to find the one rare token of a sequence: the loss falls, and
//! the gradients agree with finite differences.
//!
//! cargo run --example train_attention
#![forbid(unsafe_code)]

use candle_core::{bail, DType, Device, Module, Result, Tensor, Var, D};
use candle_nn::{AdamW, Optimizer, ParamsAdamW};
use pestle_candle::{attention, linear, rms_norm, silu_mul, Attention, Causal};

const TOKENS: usize = 12;
const SEQUENCE: usize = 8;
const WIDTH: usize = 32;
const HEADS: usize = 4;

struct Model {
    embedding: Var,
    positions: Var,
    norm: Var,
    qkv: Var,
    out: Var,
    up: Var,
    gate: Var,
    down: Var,
}

impl Model {
    fn new() -> Result<Model> {
        let mut seed = 0u64;
        let mut weight = |shape: (usize, usize)| -> Result<Var> {
            seed += 1;
            Var::from_tensor(&uniform(shape.0 * shape.1, seed, 0.25)?.reshape(shape)?)
        };
        Ok(Model {
            embedding: weight((TOKENS, WIDTH))?,
            positions: weight((SEQUENCE, WIDTH))?,
            norm: Var::ones(WIDTH, DType::F32, &Device::Cpu)?,
            qkv: weight((3 * WIDTH, WIDTH))?,
            out: weight((WIDTH, WIDTH))?,
            up: weight((2 * WIDTH, WIDTH))?,
            gate: weight((2 * WIDTH, WIDTH))?,
            down: weight((WIDTH, 2 * WIDTH))?,
        })
    }

    fn vars(&self) -> Vec<Var> {
        let Model { embedding, positions, norm, qkv, out, up, gate, down } = self;
        [embedding, positions, norm, qkv, out, up, gate, down].map(Var::clone).to_vec()
    }

    /// Logits [B, S, TOKENS].
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let (batch, sequence) = tokens.dims2()?;
        let x =
            candle_nn::Embedding::new(self.embedding.as_tensor().clone(), WIDTH).forward(tokens)?;
        let x = x.broadcast_add(&self.positions)?;
        let qkv = linear(&rms_norm(&x, &self.norm, 1e-5)?, &self.qkv, None)?;
        let qkv = qkv.reshape((batch, sequence, 3, HEADS, WIDTH / HEADS))?;
        // [B, S, H, D] in memory, read as [B, H, S, D]: strides, no copy of heads.
        let part = |i: usize| qkv.narrow(2, i, 1)?.squeeze(2)?.transpose(1, 2);
        let how = Attention { causal: Causal::TopLeft, ..Attention::default() };
        let heads = attention(&part(0)?, &part(1)?, &part(2)?, &how)?;
        let mixed = heads.transpose(1, 2)?.reshape((batch, sequence, WIDTH))?;
        let x = (x + linear(&mixed, &self.out, None)?)?;
        let inner = silu_mul(&linear(&x, &self.gate, None)?, &linear(&x, &self.up, None)?)?;
        let x = (x + linear(&inner, &self.down, None)?)?;
        linear(&x, &self.embedding, None)
    }

    /// Mean cross entropy of the last position.
    fn loss(&self, tokens: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let logits = self.forward(tokens)?.narrow(1, SEQUENCE - 1, 1)?.squeeze(1)?;
        candle_nn::loss::cross_entropy(&logits, targets)
    }
}

/// Numbers below `within` in magnitude that look random and are the same in every run.
fn uniform(count: usize, seed: u64, within: f32) -> Result<Tensor> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let values = (0..count).map(|_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * within
    });
    Tensor::from_iter(values.collect::<Vec<_>>(), &Device::Cpu)
}

/// Common tokens with one of the rare ones, the upper half, among them: the last position must name it.
fn batch(size: usize, seed: u64) -> Result<(Tensor, Tensor)> {
    let noise: Vec<f32> = uniform(size * (SEQUENCE + 2), seed, 0.999)?.to_vec1()?;
    let pick = |value: f32, count: usize| ((value + 1.0) / 2.0 * count as f32) as usize;
    let (mut tokens, mut targets) = (Vec::new(), Vec::new());
    for row in noise.chunks(SEQUENCE + 2) {
        let common = row[..SEQUENCE].iter().map(|&value| pick(value, TOKENS / 2) as u32);
        let mut line: Vec<u32> = common.collect();
        let rare = (TOKENS / 2 + pick(row[SEQUENCE], TOKENS / 2)) as u32;
        line[pick(row[SEQUENCE + 1], SEQUENCE)] = rare;
        targets.push(rare);
        tokens.extend(line);
    }
    let tokens = Tensor::from_vec(tokens, (size, SEQUENCE), &Device::Cpu)?;
    Ok((tokens, Tensor::from_vec(targets, size, &Device::Cpu)?))
}

/// The gradient of a few weights, by the loss a little to both sides of each.
fn check_gradients(model: &Model) -> Result<()> {
    let (tokens, targets) = batch(16, 1)?;
    let gradients = model.loss(&tokens, &targets)?.backward()?;
    for var in [&model.qkv, &model.out, &model.norm] {
        let Some(gradient) = gradients.get(var) else { bail!("a weight has no gradient") };
        let gradient: Vec<f32> = gradient.flatten_all()?.to_vec1()?;
        let kept: Vec<f32> = var.flatten_all()?.to_vec1()?;
        for at in [0, kept.len() / 2, kept.len() - 1] {
            let loss_at = |step: f32| -> Result<f32> {
                let mut moved = kept.clone();
                moved[at] += step;
                var.set(&Tensor::from_vec(moved, var.dims(), &Device::Cpu)?)?;
                model.loss(&tokens, &targets)?.to_scalar::<f32>()
            };
            let difference = (loss_at(0.01)? - loss_at(-0.01)?) / 0.02;
            loss_at(0.0)?; // puts the weight back
            if (difference - gradient[at]).abs() > 2e-3 {
                bail!("gradient {} where differences say {difference}", gradient[at]);
            }
        }
    }
    println!("gradients agree with finite differences");
    Ok(())
}

fn main() -> Result<()> {
    let model = Model::new()?;
    check_gradients(&model)?;
    let settings = ParamsAdamW { lr: 5e-3, weight_decay: 0.0, ..ParamsAdamW::default() };
    let mut optimizer = AdamW::new(model.vars(), settings)?;
    let mut losses = Vec::new();
    for step in 0..150 {
        let (tokens, targets) = batch(64, 100 + step)?;
        let loss = model.loss(&tokens, &targets)?;
        optimizer.backward_step(&loss)?;
        losses.push(loss.to_scalar::<f32>()?);
        if step % 25 == 0 {
            println!("step {step}: loss {:.3}", losses[losses.len() - 1]);
        }
    }
    let (tokens, targets) = batch(256, 7)?;
    let logits = model.forward(&tokens)?.narrow(1, SEQUENCE - 1, 1)?.squeeze(1)?;
    let hits = logits.argmax(D::Minus1)?.eq(&targets)?.to_dtype(DType::F32)?.mean_all()?;
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    println!("loss {first:.3} -> {last:.3}, right in {:.0} %", hits.to_scalar::<f32>()? * 100.0);
    if last > first / 2.0 {
        bail!("the loss did not fall by half");
    }
    Ok(())
}
