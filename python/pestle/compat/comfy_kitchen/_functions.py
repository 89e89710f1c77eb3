"""The functions that Pestle serves, by comfy-kitchen's names, arguments and defaults. Which backend
runs a call is the registry's choice; the work itself is in the adapters of _quantizers.py,
_linears.py, _ropes.py and _norms.py. Signatures stand here one by one, for people and type
checkers."""

from __future__ import annotations

import torch
from torch import Tensor

from ._dispatch import public
from .constraints import axes_of

__all__ = [
    "adaln",
    "apply_rope",
    "apply_rope1",
    "apply_rope1_",
    "apply_rope_",
    "apply_rope_split_half",
    "apply_rope_split_half1",
    "apply_rope_split_half1_",
    "apply_rope_split_half_",
    "convrot_w4a4_linear",
    "dequantize_convrot_w4a4_weight",
    "dequantize_int8_simple",
    "dequantize_mxfp8",
    "dequantize_nvfp4",
    "dequantize_per_tensor_fp8",
    "dequantize_w4a8_int8_weight",
    "flash_attention_decode",
    "flash_attention_decode_gqa",
    "fp16_conv3d",
    "fp16_linear",
    "gemv_awq_w4a16",
    "group_norm_silu_pad3d",
    "group_norm_stats3d",
    "int8_attention",
    "int8_linear",
    "int8_linear_modulated",
    "int8_linear_rms_modulated",
    "mm_int8",
    "na2d",
    "na3d",
    "quantize_convrot_w4a4_weight",
    "quantize_int8_rowwise",
    "quantize_int8_tensorwise",
    "quantize_mxfp8",
    "quantize_nvfp4",
    "quantize_per_tensor_fp8",
    "quantize_svdquant_w4a4",
    "quantize_w4a8_int8_weight",
    "rms_adaln",
    "rms_gated_residual",
    "rms_rope",
    "rms_rope1",
    "rms_rope1_",
    "rms_rope_",
    "rms_rope_split_half",
    "rms_rope_split_half1",
    "rms_rope_split_half1_",
    "rms_rope_split_half_",
    "scaled_mm_mxfp8",
    "scaled_mm_nvfp4",
    "scaled_mm_svdquant_w4a4",
    "stochastic_rounding_fp8",
    "w4a8_int8_linear",
]


@public
def adaln(x: Tensor, scale: Tensor, shift: Tensor, eps: float = 1e-06) -> Tensor:
    """layer_norm(x) * (1 + scale) + shift."""


@public
def rms_adaln(x: Tensor, scale: Tensor, shift: Tensor, eps: float = 1e-06) -> Tensor:
    """rms_norm(x) * (1 + scale) + shift."""


@public
def quantize_per_tensor_fp8(
    x: Tensor, scale: Tensor, output_type: torch.dtype = torch.float8_e4m3fn
) -> Tensor:
    """Codes of x under a given decode scale, clamped to the format; x may have any shape."""


@public
def dequantize_per_tensor_fp8(
    x: Tensor, scale: Tensor, output_type: torch.dtype = torch.bfloat16
) -> Tensor:
    """code * scale: one f32 product, one rounding."""


@public
def quantize_nvfp4(
    x: Tensor,
    per_tensor_scale: Tensor,
    epsilon: float = 0.0,
    pad_16x: bool = False,
    hi_first: bool = True,
) -> tuple[Tensor, Tensor]:
    """E2M1 codes, two a byte, and swizzled E4M3 scales of 16 elements; the global scale is a decode
    scale, amax / 2688. `epsilon` has no effect, as there.
    """


@public
def dequantize_nvfp4(
    qx: Tensor,
    per_tensor_scale: Tensor,
    block_scales: Tensor,
    output_type: torch.dtype = torch.bfloat16,
    hi_first: bool = True,
) -> Tensor:
    """code * (block scale * global scale), rounded once; rows and columns keep their padding."""


@public
def quantize_mxfp8(x: Tensor, pad_32x: bool = False) -> tuple[Tensor, Tensor]:
    """E4M3 codes and swizzled E8M0 scales of 32 elements, rounded up so that nothing saturates."""


@public
def dequantize_mxfp8(
    qx: Tensor, block_scales: Tensor, output_type: torch.dtype = torch.bfloat16
) -> Tensor:
    """code * 2^(scale - 127), rounded once."""


@public
def quantize_convrot_w4a4_weight(
    weight: Tensor,
    convrot_groupsize: int = 256,
    quant_group_size: int = 64,
    stochastic_rounding: int | None = 0,
) -> tuple[Tensor, Tensor]:
    """Rotated weight as INT4, low nibble first, with one scale a row."""


@public
def quantize_w4a8_int8_weight(
    weight: Tensor,
    group_size: int = 16,
    convrot_groupsize: int = 256,
    symmetric: bool = True,
    scale_dtype: torch.dtype = torch.float8_e4m3fn,
    codebook: bool = True,
    codebook_tensor: Tensor | None = None,
    stochastic_rounding: int = 0,
    bits: int = 4,
    scale_search: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Rotated weight as codebook indices: codes, scales of 16 columns and of rows, None, and the
    codebook."""


@public
def quantize_int8_rowwise(x: Tensor, stochastic_rounding: int | None = 0) -> tuple[Tensor, Tensor]:
    """Codes and one scale a row, [..., 1]."""


@public
def quantize_int8_tensorwise(
    x: Tensor, scale: Tensor | float | str | None = None, stochastic_rounding: int | None = 0
) -> tuple[Tensor, Tensor]:
    """Codes and one scale: computed, amax / 127, if None or "recalculate". `stochastic_rounding` is
    a seed; 0 or None rounds to nearest.
    """


@public
def dequantize_int8_simple(q: Tensor, scale: Tensor) -> Tensor:
    """code * scale in f32."""


@public
def scaled_mm_nvfp4(
    a: Tensor,
    b: Tensor,
    tensor_scale_a: Tensor,
    tensor_scale_b: Tensor,
    block_scale_a: Tensor,
    block_scale_b: Tensor,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    alpha: Tensor | None = None,
) -> Tensor:
    """a @ b.T * alpha + bias; alpha is the product of both global scales unless given."""


@public
def scaled_mm_mxfp8(
    a: Tensor,
    b: Tensor,
    block_scale_a: Tensor,
    block_scale_b: Tensor,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """a @ b.T + bias over MXFP8 codes."""


@public
def convrot_w4a4_linear(
    x: Tensor,
    qweight: Tensor,
    wscales: Tensor,
    bias: Tensor | None = None,
    convrot_groupsize: int = 256,
    quant_group_size: int = 64,
    linear_dtype: str = "int4",
) -> Tensor:
    """x @ W.T + bias over a rotated INT4 weight; x is rotated in f32 and not quantised."""


@public
def dequantize_convrot_w4a4_weight(
    qdata: Tensor,
    scales: Tensor,
    convrot_groupsize: int = 256,
    quant_group_size: int = 64,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The weight of quantize_convrot_w4a4_weight, rotated back."""


@public
def dequantize_w4a8_int8_weight(
    qdata: Tensor,
    s_rel: Tensor,
    s_channel: Tensor,
    codebook: Tensor | None = None,
    correction: Tensor | None = None,
    group_size: int = 16,
    convrot_groupsize: int = 256,
    output_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """The weight of quantize_w4a8_int8_weight, rotated back."""


@public
def fp16_conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    stride: int | tuple[int, int, int] = 1,
    out: Tensor | None = None,
) -> Tensor:
    """A convolution of x [N, C, D, H, W] without padding, plus residual: PyTorch's own, by its
    settings. The result is channels_last_3d, or written into out."""


@public
def fp16_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    residual_scale: Tensor | None = None,
) -> Tensor:
    """x @ W.T + bias, summed in f32; with `residual`, residual + residual_scale * that."""


@public
def int8_linear(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    convrot: bool = False,
    convrot_groupsize: int = 256,
    input_act: str | None = None,
    input_act_weight: Tensor | None = None,
    input_act_eps: float = 0.0,
    residual: Tensor | None = None,
    residual_scale: Tensor | None = None,
) -> Tensor:
    """x, quantised by rows on the way, times an INT8 weight; rotated first if `convrot`.

    `input_act` ("gelu_tanh", "swiglu", "situ" or "rms_norm") is applied to x before; with
    `residual` the result is residual + residual_scale * linear(x).
    """


@public
def int8_linear_modulated(
    x: Tensor,
    modulation_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    convrot: bool = False,
    convrot_groupsize: int = 256,
) -> Tensor:
    """int8_linear of x * (1 + modulation_scale), one row of modulation for all of x."""


@public
def int8_linear_rms_modulated(
    x: Tensor,
    norm_weight: Tensor,
    norm_eps: float,
    modulation_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    convrot: bool = False,
    convrot_groupsize: int = 256,
) -> Tensor:
    """int8_linear of rms_norm(x) * (1 + modulation_scale)."""


@public
def w4a8_int8_linear(
    x: Tensor,
    qdata: Tensor,
    s_rel: Tensor,
    s_channel: Tensor,
    codebook: Tensor | None = None,
    correction: Tensor | None = None,
    bias: Tensor | None = None,
    group_size: int = 16,
    convrot_groupsize: int = 256,
    out_dtype: torch.dtype = torch.bfloat16,
    mma_packed: bool = False,
    input_act: str | None = None,
    input_act_weight: Tensor | None = None,
    input_act_eps: float = 0.0,
    residual: Tensor | None = None,
    residual_scale: Tensor | None = None,
) -> Tensor:
    """x @ W.T + bias over codebook indices; x is rotated in f32 and not quantised."""


@public
def apply_rope(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    """Rotates neighbouring pairs of each by freqs_cis."""


@public
def apply_rope_(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    """Rotates neighbouring pairs of each by freqs_cis, in place."""


@public
def apply_rope1(x: Tensor, freqs_cis: Tensor) -> Tensor:
    """Rotates neighbouring pairs of x by freqs_cis."""


@public
def apply_rope1_(x: Tensor, freqs_cis: Tensor) -> Tensor:
    """Rotates neighbouring pairs of x by freqs_cis, in place."""


@public
def apply_rope_split_half(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    """Rotates pairs (i, i + D/2) of each by freqs_cis."""


@public
def apply_rope_split_half_(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    """Rotates pairs (i, i + D/2) of each by freqs_cis, in place."""


@public
def apply_rope_split_half1(x: Tensor, freqs_cis: Tensor) -> Tensor:
    """Rotates pairs (i, i + D/2) of x by freqs_cis."""


@public
def apply_rope_split_half1_(x: Tensor, freqs_cis: Tensor) -> Tensor:
    """Rotates pairs (i, i + D/2) of x by freqs_cis, in place."""


@public
def rms_rope(
    q: Tensor,
    k: Tensor,
    freqs_cis: Tensor,
    q_scale: Tensor,
    k_scale: Tensor | None = None,
    epsilon: float = 1e-06,
) -> tuple[Tensor, Tensor]:
    """Rotates neighbouring pairs of the per-head RMS norm of each by freqs_cis."""


@public
def rms_rope_(
    q: Tensor,
    k: Tensor,
    freqs_cis: Tensor,
    q_scale: Tensor,
    k_scale: Tensor | None = None,
    epsilon: float = 1e-06,
) -> tuple[Tensor, Tensor]:
    """Rotates neighbouring pairs of the per-head RMS norm of each by freqs_cis, in place."""


@public
def rms_rope1(x: Tensor, freqs_cis: Tensor, scale: Tensor, epsilon: float = 1e-06) -> Tensor:
    """Rotates neighbouring pairs of the per-head RMS norm of x by freqs_cis."""


@public
def rms_rope1_(x: Tensor, freqs_cis: Tensor, scale: Tensor, epsilon: float = 1e-06) -> Tensor:
    """Rotates neighbouring pairs of the per-head RMS norm of x by freqs_cis, in place."""


@public
def rms_rope_split_half(
    q: Tensor,
    k: Tensor,
    freqs_cis: Tensor,
    q_scale: Tensor,
    k_scale: Tensor | None = None,
    epsilon: float = 1e-06,
    rot_dim: int = 0,
) -> tuple[Tensor, Tensor]:
    """Rotates pairs (i, i + D/2) of the per-head RMS norm of each by freqs_cis."""


@public
def rms_rope_split_half_(
    q: Tensor,
    k: Tensor,
    freqs_cis: Tensor,
    q_scale: Tensor,
    k_scale: Tensor | None = None,
    epsilon: float = 1e-06,
    rot_dim: int = 0,
) -> tuple[Tensor, Tensor]:
    """Rotates pairs (i, i + D/2) of the per-head RMS norm of each by freqs_cis, in place."""


@public
def rms_rope_split_half1(
    x: Tensor, freqs_cis: Tensor, scale: Tensor, epsilon: float = 1e-06
) -> Tensor:
    """Rotates pairs (i, i + D/2) of the per-head RMS norm of x by freqs_cis."""


@public
def rms_rope_split_half1_(
    x: Tensor, freqs_cis: Tensor, scale: Tensor, epsilon: float = 1e-06
) -> Tensor:
    """Rotates pairs (i, i + D/2) of the per-head RMS norm of x by freqs_cis, in place."""


@public
def stochastic_rounding_fp8(
    x: Tensor, rng: Tensor, output_type: torch.dtype = torch.float8_e4m3fn
) -> Tensor:
    """Rounds to FP8 by one random byte an element, without a scale. `rng` is left as it is."""


@public
def rms_gated_residual(
    activation: Tensor, norm_weight: Tensor, residual: Tensor, gate: Tensor, eps: float = 1e-05
) -> Tensor:
    """residual + gate * rms_norm(activation) * norm_weight, each step rounded to x's dtype."""


@public
def group_norm_silu_pad3d(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    num_groups: int = 32,
    eps: float = 1e-06,
    pad: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0),
    silu: bool = True,
    zero_pad: bool = False,
    out: Tensor | None = None,
    stats: Tensor | None = None,
) -> Tensor:
    """Group norm of each frame of x [B, C, T, H, W], silu if asked, then padding (left, right,
    top, bottom, front): the border reflects, or is 0 with zero_pad; frames in front are 0.
    Without a weight there is no norm; stats are group_norm_stats3d's. The result is
    channels_last_3d, or written into out."""


@public
def group_norm_stats3d(x: Tensor, num_groups: int = 32, eps: float = 1e-06) -> Tensor:
    """(mean, 1 / deviation) of each frame's groups, f32 [B*T, num_groups, 2]."""


@public
def gemv_awq_w4a16(
    x: Tensor,
    qweight: Tensor,
    wscales: Tensor,
    wzeros: Tensor,
    bias: Tensor | None = None,
    group_size: int = 64,
) -> Tensor:
    """x @ W^T + bias, W = (code - 8) * scale + zero by groups of columns, codes from 0 to 15, the
    even column in the low nibble."""


@public
def mm_int8(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in int32, exactly."""


@public
def na3d(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel_size: int | list[int],
    is_causal: bool | list[bool] | None = None,
    scale: float | None = None,
) -> Tensor:
    """Attention of [B, T, H, W, heads, D] where each query sees kernel_size keys along each axis,
    around it or, where the axis is causal, up to it; PyTorch's own attention does it."""


def na2d(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel_size: int | list[int],
    is_causal: bool | list[bool] | None = None,
    scale: float | None = None,
    *,
    backend: str | None = None,
) -> Tensor:
    """na3d of one frame: [B, H, W, heads, D]."""
    sizes, causal = axes_of(kernel_size, 2), axes_of(is_causal, 2)
    for name, given in (("kernel_size", sizes), ("is_causal", causal)):
        if len(given) != 2:
            raise ValueError(f"na2d: {name} has {len(given)} elements: must have 2 elements")
    frame = (x.unsqueeze(1) for x in (q, k, v))
    return na3d(*frame, [1, *sizes], [False, *causal], scale, backend=backend).squeeze(1)


@public
def quantize_svdquant_w4a4(
    x: Tensor,
    smooth: Tensor,
    lora_down: Tensor,
    pad_size: int = 256,
    act_unsigned: bool = False,
    lora_x: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes of x / smooth by groups of 64 columns, their scales [K / 64, rows], and
    lora_x @ lora_down (of x unless given); rows are padded to a multiple of pad_size."""


@public
def scaled_mm_svdquant_w4a4(
    act: Tensor,
    wgt: Tensor,
    ascales: Tensor,
    wscales: Tensor,
    lora_act_in: Tensor,
    lora_up: Tensor,
    bias: Tensor | None = None,
    act_unsigned: bool = False,
) -> Tensor:
    """act @ wgt^T by their scales, plus lora_act_in @ lora_up^T, plus bias; weights row by row, or
    in tiles of 128 rows."""


@public
def int8_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, attn_mask: Tensor | None = None
) -> Tensor:
    """Attention of [B, H, N, D] in the inputs' own precision, which is more than INT8's. A query
    that attn_mask lets see nothing gets 0."""


@public
def flash_attention_decode(q: Tensor, k: Tensor, v: Tensor, kv_lengths: Tensor) -> Tensor:
    """Attention of one query [B, 1, H, D] to the first kv_lengths keys of a cache [B, L, Hk, D]."""


@public
def flash_attention_decode_gqa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv_lengths: Tensor,
    return_lse: bool = False,
    causal: bool = True,
) -> Tensor:
    """Attention of S queries [B, H, S, D] to a cache [B, Hk, L, D], as [B, S, H * D]: to its first
    kv_lengths keys, of which a causal query sees those up to its own, the last query the last one.
    With return_lse also the logarithm of the sum of exponentials, [B, H, S]."""
