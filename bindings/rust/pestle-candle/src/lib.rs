//! Pestle's kernels in candle: fused ops that train, and layers whose weights stay quantised.
//!
//! Every function takes tensors of any rank that makes sense, any strides and any offset, on a CPU
//! (candle's own memory, no copies) or, with the feature `cuda`, on a GPU (candle's stream, context
//! and allocator). A result depends on its arguments in candle's graph: it is computed once, what
//! the backward needs is kept, and the gradients come from the library's ops. Where an op has no
//! gradient, a tracked argument is an error, never a cut graph.
//!
//! [`kaio`] has the 12 functions of kaio-candle by name and signature.

pub mod activation;
mod attention;
pub mod checkpoint;
#[cfg(feature = "cuda")]
mod cuda;
mod gguf;
mod graph;
mod hadamard;
pub mod kaio;
mod loss;
mod matmul;
mod memory;
mod norm;
mod packed;
mod qlinear;
mod quantize;
mod rope;
mod scaled_mm;
mod softmax;
mod weight;

pub use activation::{silu_mul, Activation};
pub use attention::{attention, attention_to, Attention, Causal};
pub use checkpoint::{var_builder, Checkpoint, QVarBuilder};
pub use hadamard::hadamard;
pub use loss::{cross_entropy, CrossEntropy};
pub use matmul::{linear, matmul, matmul_to};
pub use norm::{adaln, group_norm, layer_norm, rms_adaln, rms_norm};
pub use qlinear::{qkv_project, QLinear};
pub use quantize::Format;
pub use rope::{rms_rope, rope, Pairs};
pub use scaled_mm::{scaled_mm_fp8, scaled_mm_int8, scaled_mm_mxfp8, scaled_mm_nvfp4, Nvfp4};
pub use softmax::{log_softmax, softmax, softmax_with};
pub use weight::Weight;
