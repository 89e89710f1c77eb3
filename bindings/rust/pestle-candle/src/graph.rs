//! Results with a gradient: one forward, whatever it kept, and a backward by the library's ops.
use crate::memory::Made;
use candle_core::{
    bail, CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, Layout, Result, Shape, Storage,
    Tensor,
};
use std::sync::Mutex;

/// Of the arguments, in their order and dtypes.
pub(crate) type Gradients = Vec<Option<Tensor>>;

/// The gradients from the arguments, the result and its gradient.
type Backward = Box<dyn Fn(&[&Tensor], &Tensor, &Tensor) -> Result<Gradients> + Send + Sync>;

/// A node of candle's graph whose result is there already: candle asks for it once.
struct Node {
    name: &'static str,
    made: Mutex<Option<Made>>,
    backward: Backward,
}

impl Node {
    fn take(&self) -> Result<Made> {
        let made = self.made.lock().ok().and_then(|mut made| made.take());
        made.ok_or_else(|| candle_core::Error::Msg(format!("{}: made twice", self.name)).bt())
    }

    fn cpu(&self) -> Result<(CpuStorage, Shape)> {
        let made = self.take()?;
        match made.storage {
            Storage::Cpu(storage) => Ok((storage, made.shape.into())),
            _ => bail!("{}: arguments on a CPU, result elsewhere", self.name),
        }
    }

    fn cuda(&self) -> Result<(CudaStorage, Shape)> {
        let made = self.take()?;
        match made.storage {
            Storage::Cuda(storage) => Ok((storage, made.shape.into())),
            _ => bail!("{}: arguments on a GPU, result elsewhere", self.name),
        }
    }

    fn gradients<const N: usize>(
        &self,
        args: [&Tensor; N],
        result: &Tensor,
        gradient: &Tensor,
    ) -> Result<[Option<Tensor>; N]> {
        let gradients = (self.backward)(&args, result, gradient)?;
        gradients.try_into().map_err(|gradients: Vec<_>| {
            let message = format!("{}: {} gradients for {N} arguments", self.name, gradients.len());
            candle_core::Error::Msg(message).bt()
        })
    }
}

impl CustomOp1 for Node {
    fn name(&self) -> &'static str {
        self.name
    }
    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        self.cpu()
    }
    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        self.cuda()
    }
    fn bwd(&self, a: &Tensor, result: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let [a] = self.gradients([a], result, gradient)?;
        Ok(a)
    }
}

impl CustomOp2 for Node {
    fn name(&self) -> &'static str {
        self.name
    }
    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.cpu()
    }
    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.cuda()
    }
    fn bwd(
        &self,
        a: &Tensor,
        b: &Tensor,
        result: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let [a, b] = self.gradients([a, b], result, gradient)?;
        Ok((a, b))
    }
}

impl CustomOp3 for Node {
    fn name(&self) -> &'static str {
        self.name
    }
    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.cpu()
    }
    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.cuda()
    }
    fn bwd(
        &self,
        a: &Tensor,
        b: &Tensor,
        c: &Tensor,
        result: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [a, b, c] = self.gradients([a, b, c], result, gradient)?;
        Ok((a, b, c))
    }
}

/// `made` as a tensor that depends on `args`: in candle's graph if one of them is tracked.
pub(crate) fn attach(
    name: &'static str,
    args: &[&Tensor],
    made: Made,
    backward: impl Fn(&[&Tensor], &Tensor, &Tensor) -> Result<Gradients> + Send + Sync + 'static,
) -> Result<Tensor> {
    if !args.iter().any(|arg| arg.track_op()) {
        return Ok(made.tensor());
    }
    let node = Node { name, made: Mutex::new(Some(made)), backward: Box::new(backward) };
    match *args {
        [a] => a.apply_op1(node),
        [a, b] => a.apply_op2(b, node),
        [a, b, c] => a.apply_op3(b, c, node),
        _ => bail!("{name}: candle's graph takes one to three arguments, not {}", args.len()),
    }
}

/// An error where a result would be cut off from a tracked argument.
pub(crate) fn refuse_tracked(name: &str, args: &[(&str, &Tensor)], why: &str) -> Result<()> {
    for (arg, tensor) in args {
        if tensor.track_op() {
            bail!("{name}: {arg} is tracked, and {why}; pass {arg}.detach() to go on without");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::memory::LAUNCHES;
    use candle_core::{Device, Result, Tensor, Var};

    fn launches(job: impl FnOnce() -> Result<()>) -> Vec<&'static str> {
        LAUNCHES.with_borrow_mut(Vec::clear);
        job().unwrap();
        LAUNCHES.with_borrow_mut(std::mem::take)
    }

    #[test]
    fn a_training_step_has_one_forward() {
        let x = Var::randn(0f32, 1., (3, 8), &Device::Cpu).unwrap();
        let w = Var::randn(0f32, 1., 8, &Device::Cpu).unwrap();
        let forward = launches(|| crate::rms_norm(&x, &w, 1e-5).map(drop));
        assert_eq!(forward, ["rms_norm"]);
        let both = launches(|| crate::rms_norm(&x, &w, 1e-5)?.sum_all()?.backward().map(drop));
        assert_eq!(both, ["rms_norm", "rms_norm"], "one forward and one backward");
    }

    #[test]
    fn attention_keeps_what_its_backward_needs() {
        let q = Var::randn(0f32, 1., (2, 4, 8), &Device::Cpu).unwrap();
        let how = crate::Attention::default();
        let forward = launches(|| crate::attention(&q, &q, &q, &how).map(drop));
        assert_eq!(forward, ["attention"]);
        let both = launches(|| crate::attention(&q, &q, &q, &how)?.sum_all()?.backward().map(drop));
        assert_eq!(both, ["attention", "attention"], "one forward and one backward");
    }

    /// Each op: its forward once, and then only its backward, of one launch.
    #[test]
    fn no_op_runs_its_forward_again() {
        let x = Var::randn(0f32, 1., (4, 16), &Device::Cpu).unwrap();
        let w = Tensor::ones((16, 16), candle_core::DType::F32, &Device::Cpu).unwrap();
        let (row, rows) = (w.get(0).unwrap(), Tensor::new(&[1u32, 2, 3, 4], &Device::Cpu).unwrap());
        let layer = crate::QLinear::quantize(&w, None, crate::Format::Int8Row).unwrap();
        type Step<'s> = (&'s dyn Fn() -> Result<Tensor>, &'s [&'s str]);
        let steps: [Step<'_>; 8] = [
            (&|| crate::softmax(&x, 1), &["softmax", "softmax"]),
            (&|| crate::log_softmax(&x, 1), &["log_softmax", "log_softmax"]),
            (&|| crate::layer_norm(&x, &row, &row, 1e-5), &["layer_norm", "layer_norm"]),
            (&|| crate::silu_mul(&x, &x), &["gated_activation", "gated_activation"]),
            (&|| crate::matmul(&x, &w), &["matmul", "matmul"]),
            (&|| crate::hadamard(&x, 16), &["hadamard", "hadamard"]),
            (
                &|| crate::cross_entropy(&x, &rows, crate::CrossEntropy::default()),
                &["cross_entropy", "cross_entropy"],
            ),
            // Through the decoded weight.
            (&|| candle_core::Module::forward(&layer, &x), &["linear", "dequantize", "matmul"]),
        ];
        for (step, names) in steps {
            let forward = launches(|| step().map(drop));
            assert_eq!(forward, &names[..1]);
            let both = launches(|| step()?.sum_all()?.backward().map(drop));
            assert_eq!(both, names);
        }
    }

    #[test]
    fn a_result_without_tracked_arguments_is_in_no_graph() {
        let x = Tensor::randn(0f32, 1., (3, 8), &Device::Cpu).unwrap();
        assert!(!crate::softmax(&x, 1).unwrap().track_op());
        let x = Var::from_tensor(&x).unwrap();
        assert!(crate::softmax(&x, 1).unwrap().track_op());
    }

    #[test]
    fn a_gradient_may_be_asked_for_twice() {
        let x = Var::randn(0f32, 1., (3, 8), &Device::Cpu).unwrap();
        let loss = crate::softmax(&x, 1).unwrap().sqr().unwrap().sum_all().unwrap();
        let gradient =
            || -> Vec<Vec<f32>> { loss.backward().unwrap().get(&x).unwrap().to_vec2().unwrap() };
        assert_eq!(gradient(), gradient());
    }
}
