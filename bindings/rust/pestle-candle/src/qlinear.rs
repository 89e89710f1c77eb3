//! Linear layers whose weight stays quantised; x has its gradient.
use crate::graph::attach;
use crate::matmul::matmul_to;
use crate::quantize::Format;
use crate::weight::Weight;
use candle_core::{bail, DType, Module, Result, Tensor};
use std::sync::Arc;

/// `x @ W^T + bias` with a quantised W.
#[derive(Debug, Clone)]
pub struct QLinear {
    weight: Arc<Weight>,
    bias: Option<Tensor>,
    in_features: usize,
    out_features: usize,
    /// Where column i of the stored weight is in x (GPTQ with act-order).
    order: Option<Tensor>,
}

impl QLinear {
    /// From a weight whose rows and columns are all meant.
    pub fn new(weight: Weight, bias: Option<Tensor>) -> Result<Self> {
        let (out_features, in_features) = weight.shape()?;
        QLinear::with_shape(weight, bias, out_features, in_features)
    }

    /// From a weight that was padded to more rows and columns than are meant.
    pub fn with_shape(
        weight: Weight,
        bias: Option<Tensor>,
        out_features: usize,
        in_features: usize,
    ) -> Result<Self> {
        let (n, k) = weight.shape()?;
        if out_features > n || in_features > k {
            bail!("QLinear: the stored weight [{n}, {k}] has no [{out_features}, {in_features}] in it");
        }
        if let Some(bias) = &bias {
            if bias.dims() != [out_features] {
                bail!("QLinear: bias {:?} is not [{out_features}]", bias.dims());
            }
        }
        Ok(QLinear { weight: Arc::new(weight), bias, in_features, out_features, order: None })
    }

    /// Quantises a linear layer's weight [N, K].
    pub fn quantize(weight: &Tensor, bias: Option<&Tensor>, format: Format) -> Result<Self> {
        let (n, k) = weight.dims2()?;
        QLinear::with_shape(Weight::quantize(weight, format)?, bias.cloned(), n, k)
    }

    pub(crate) fn with_order(mut self, order: Tensor) -> Self {
        self.order = Some(order);
        self
    }

    pub fn in_features(&self) -> usize {
        self.in_features
    }

    pub fn out_features(&self) -> usize {
        self.out_features
    }

    pub fn weight(&self) -> &Weight {
        &self.weight
    }

    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// The decoded weight [out_features, in_features], columns in x's order.
    pub fn dequantize(&self, dtype: DType) -> Result<Tensor> {
        let weight = self.weight.dequantize(dtype)?;
        let weight = weight.narrow(0, 0, self.out_features)?.narrow(1, 0, self.in_features)?;
        match &self.order {
            None => weight.contiguous(),
            Some(order) => weight.index_select(&inverse(order)?, 1),
        }
    }

    /// The layer's result in a dtype of choice.
    pub fn forward_to(&self, x: &Tensor, dtype: DType) -> Result<Tensor> {
        let rank = x.rank();
        if rank == 0 || x.dim(rank - 1)? != self.in_features {
            bail!("QLinear: x {:?} does not end in {} features", x.dims(), self.in_features);
        }
        let x = match &self.order {
            Some(order) => x.index_select(order, rank - 1)?,
            None => x.clone(),
        };
        let (n, k) = self.weight.shape()?;
        let x = if k > self.in_features {
            x.pad_with_zeros(rank - 1, 0, k - self.in_features)?
        } else {
            x
        };
        if n == self.out_features {
            return linear(&self.weight, &x, self.bias.as_ref(), dtype);
        }
        let out = linear(&self.weight, &x, None, dtype)?.narrow(rank - 1, 0, self.out_features)?;
        match &self.bias {
            Some(bias) => out.broadcast_add(&bias.to_dtype(dtype)?),
            None => out.contiguous(),
        }
    }
}

impl Module for QLinear {
    /// In x's dtype.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_to(x, x.dtype())
    }
}

/// Queries, keys and values of one x by three layers, whose widths may differ.
pub fn qkv_project(
    x: &Tensor,
    q: &QLinear,
    k: &QLinear,
    v: &QLinear,
) -> Result<(Tensor, Tensor, Tensor)> {
    Ok((q.forward(x)?, k.forward(x)?, v.forward(x)?))
}

/// Of a permutation: where each of x's features is.
fn inverse(order: &Tensor) -> Result<Tensor> {
    let features: Vec<u32> = order.to_vec1()?;
    let mut inverse = vec![0u32; features.len()];
    for (at, &feature) in features.iter().enumerate() {
        inverse[feature as usize] = at as u32;
    }
    Tensor::from_vec(inverse, features.len(), order.device())
}

/// `x @ W^T + bias`; the gradient of x goes through the decoded weight, that of the bias is a sum.
pub(crate) fn linear(
    weight: &Arc<Weight>,
    x: &Tensor,
    bias: Option<&Tensor>,
    dtype: DType,
) -> Result<Tensor> {
    let made = weight.linear(x, bias, dtype)?;
    let weight = Arc::clone(weight);
    let backward = move |args: &[&Tensor], _: &Tensor, d_out: &Tensor| {
        let (x, d_out) = (args[0], d_out.detach());
        let (n, _) = weight.shape()?;
        let rows = d_out.reshape((d_out.elem_count() / n.max(1), n))?;
        let decoded = weight.dequantize(d_out.dtype())?;
        let d_x = matmul_to(&rows, &decoded, x.dtype())?.reshape(x.dims())?;
        let mut gradients = vec![Some(d_x)];
        if let Some(bias) = args.get(1) {
            let sum = rows.to_dtype(DType::F32)?.sum(0)?;
            gradients.push(Some(sum.to_dtype(bias.dtype())?));
        }
        Ok(gradients)
    };
    match bias {
        Some(bias) => attach("linear", &[x, bias], made, backward),
        None => attach("linear", &[x], made, backward),
    }
}
