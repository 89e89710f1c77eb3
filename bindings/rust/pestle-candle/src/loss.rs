//! Cross entropy of logits.
use crate::graph::attach;
use crate::memory::{launch, In, Kind, Out};
use candle_core::{bail, DType, Result, Tensor};
use pestle::ops;

/// What [`cross_entropy`] may be told besides logits and targets.
#[derive(Debug, Clone, Copy, Default)]
pub struct CrossEntropy {
    /// The target of rows that do not count: their loss and gradient are 0.
    pub ignore_index: Option<i64>,
    /// The part of the target that all classes share evenly.
    pub label_smoothing: f64,
}

/// The loss of each row of logits [.., N], f32: `-log softmax(logits)[target]`. Targets [..] are u32, i32 or
/// i64. Not averaged: `.mean_all()?` does that. The log-sum-exps are kept for the backward.
pub fn cross_entropy(logits: &Tensor, target: &Tensor, how: CrossEntropy) -> Result<Tensor> {
    let op = "cross_entropy";
    let Some((_, rows)) = logits.dims().split_last() else { bail!("{op}: logits have no classes") };
    let outputs = [Out::new(DType::F32, rows), Out::new(DType::F64, rows)];
    let inputs = [Some(In::new(logits)), Some(classes(target))];
    let [loss, lse] = launch(op, inputs, outputs, |views, [mut loss, mut lse], on| {
        let [Some(logits), Some(target)] = views else { bail!("{op}: no operands") };
        let mut call = ops::cross_entropy(logits, target, &mut loss, &mut lse)
            .label_smoothing(how.label_smoothing);
        if let Some(index) = how.ignore_index {
            call = call.ignore_index(index);
        }
        on.run(call)
    })?;
    let (lse, target) = (lse.tensor(), target.clone());
    let backward = move |args: &[&Tensor], _: &Tensor, d_loss: &Tensor| {
        let [d_loss, logits, lse] = [d_loss, args[0], &lse].map(|arg| Some(In::new(arg)));
        let inputs = [d_loss, logits, Some(classes(&target)), lse];
        let [made] = launch(op, inputs, [Out::like(args[0])], |views, [mut d_logits], on| {
            let [Some(d_loss), Some(logits), Some(target), Some(lse)] = views else {
                bail!("{op}: no operands")
            };
            let call = ops::cross_entropy_backward(d_loss, logits, target, lse, &mut d_logits);
            let mut call = call.label_smoothing(how.label_smoothing);
            if let Some(index) = how.ignore_index {
                call = call.ignore_index(index);
            }
            on.run(call)
        })?;
        Ok(vec![Some(made.tensor())])
    };
    attach(op, &[logits], loss, backward)
}

/// Candle's targets are mostly u32: the same bytes as i32, for fewer than 2^31 classes.
fn classes(target: &Tensor) -> In<'_> {
    match target.dtype() {
        DType::U32 => In::coded(target, Kind::I32),
        _ => In::new(target),
    }
}
