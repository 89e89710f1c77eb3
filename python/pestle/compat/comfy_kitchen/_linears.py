"""Matrix products by comfy-kitchen's names, over Pestle's ops."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ._quantizers import W4A8_STORED, as_tiles, need_64, need_groups, one
from ._serve import (
    BYTES,
    E4M3,
    E8M0,
    F32,
    FLOATS,
    FP8,
    INT8,
    ONE,
    ROWS,
    ROWWISE,
    TWO,
    adapter,
    of,
    refuse_unless,
)

_BF16 = torch.bfloat16


def flat(bias: Tensor | None, columns: int) -> Tensor | None:
    """A bias as [N], where it came as [1, N] or as one value."""
    if bias is None or bias.shape == (columns,) or bias.numel() not in (1, columns):
        return bias
    return bias.reshape(-1).expand(columns)


@adapter(
    "scaled_mm_nvfp4",
    a=of(BYTES, TWO),
    b=of(BYTES, TWO),
    tensor_scale_a=of(F32),
    tensor_scale_b=of(F32),
    block_scale_a=of(E4M3),
    block_scale_b=of(E4M3),
    bias=of(FLOATS),
    out_dtype=of(FLOATS),
)
def scaled_mm_nvfp4(
    p,
    a,
    b,
    tensor_scale_a,
    tensor_scale_b,
    block_scale_a,
    block_scale_b,
    bias=None,
    out_dtype=None,
    alpha=None,
):
    scale_a, scale_b = one(tensor_scale_a, a), one(tensor_scale_b, a)
    if alpha is not None:  # stands for the product of both
        scale_a, scale_b = one(alpha, a), torch.ones_like(scale_b)
    groups = a.shape[1] // 8
    return p.scaled_mm_nvfp4(
        a,
        b,
        as_tiles(block_scale_a, a.shape[0], groups),
        as_tiles(block_scale_b, b.shape[0], groups),
        scale_a,
        scale_b,
        bias=flat(bias, b.shape[0]),
        out_dtype=out_dtype or _BF16,
    )


@adapter(
    "scaled_mm_mxfp8",
    a=of(FP8, TWO),
    b=of(FP8, TWO),
    block_scale_a=of(E8M0),
    block_scale_b=of(E8M0),
    bias=of(FLOATS),
    out_dtype=of(FLOATS),
)
def scaled_mm_mxfp8(p, a, b, block_scale_a, block_scale_b, bias=None, out_dtype=None):
    groups = a.shape[1] // 32
    return p.scaled_mm_mxfp8(
        a,
        b,
        as_tiles(block_scale_a, a.shape[0], groups),
        as_tiles(block_scale_b, b.shape[0], groups),
        bias=flat(bias, b.shape[0]),
        out_dtype=out_dtype or _BF16,
    )


# ---- floats


@adapter("matmul", x=of(FLOATS), weight=of(FLOATS, TWO), bias=of(FLOATS))
def fp16_linear(p, x, weight, bias=None, residual=None, residual_scale=None):
    bias = flat(bias, weight.shape[0])
    out = p.matmul(x.reshape(-1, x.shape[-1]), weight.t(), bias=bias, out_dtype=x.dtype)
    return added(out.view(*x.shape[:-1], weight.shape[0]), residual, residual_scale)


@adapter(
    "linear_int4",
    x=of(FLOATS),
    qweight=of(INT8, TWO),
    wscales=of(FLOATS, TWO),
    wzeros=of(FLOATS, TWO),
    bias=of(FLOATS),
)
def gemv_awq_w4a16(p, x, qweight, wscales, wzeros, bias=None, group_size=64):
    n, k = qweight.shape[0], 2 * qweight.shape[1]
    if x.shape[-1] != k or k % group_size:
        raise ValueError(f"x has {x.shape[-1]} columns: give {k}, a multiple of group_size")
    rows = x.reshape(-1, k)
    # x @ (codes - 8)^T and the zeros times the sums of x's groups, not rounded up to the end. The
    # sums are few: f64 is quick, and no setting of torch makes it TF32.
    sums = rows.double().view(-1, k // group_size, group_size).sum(-1)
    zeros = (sums @ wzeros.double()).float()
    out = p.linear_int4(
        rows,
        qweight.view(torch.uint8),
        wscales.float().t(),
        torch.full((n, k // group_size), 8, dtype=torch.uint8, device=x.device),
        group_size=group_size,
        mode="asymmetric",
        bias=flat(bias, n),
        residual=zeros,
        out_dtype=wscales.dtype,
    )
    return out.view(*x.shape[:-1], n)


# ---- INT8

# So many products of int8 have a sum that f32 holds exactly: 2**10 * 2**14 = 2**24.
_EXACT = 1024


@adapter("scaled_mm_int8", a=of(INT8, TWO), b=of(INT8, TWO))
def mm_int8(p, a, b):
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"a has {a.shape[1]} columns and b {b.shape[0]} rows: they must agree")
    one = torch.ones(1, device=a.device)
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.int32, device=a.device)
    for k in range(0, a.shape[1], _EXACT):
        left, right = a[:, k : k + _EXACT], b[k : k + _EXACT].t()
        total += p.scaled_mm_int8(left, right, one, one, out_dtype=torch.float32).int()
    return total


def activated(
    x: Tensor, input_act: str | None, act_weight: Tensor | None = None, act_eps: float = 0.0
) -> Tensor:
    """What stands before the linear: PyTorch's own functions, in x's dtype."""
    if input_act in (None, "none"):
        return x
    if input_act == "gelu_tanh":
        return functional.gelu(x, approximate="tanh")
    if input_act == "rms_norm":
        if act_weight is None:
            raise ValueError('input_act "rms_norm" needs input_act_weight')
        return functional.rms_norm(x, x.shape[-1:], act_weight.to(x.dtype), act_eps)
    first, second = x.chunk(2, -1)
    if input_act == "swiglu":
        return functional.silu(first) * second
    if input_act == "situ":
        gate = 4 * torch.tanh(second / 4) * torch.sigmoid(second)
        return 25 * torch.tanh(first / 25) * gate
    known = "gelu_tanh, swiglu, situ, rms_norm"
    raise ValueError(f'unsupported input_act "{input_act}": use one of {known}, or None')


def added(out: Tensor, residual: Tensor | None, residual_scale: Tensor | None) -> Tensor:
    if residual is None:
        return out
    if residual_scale is None:
        raise ValueError("residual needs residual_scale")
    return torch.addcmul(residual.to(out.dtype), out, residual_scale.to(out.dtype))


def int8_product(p, x, weight, weight_scale, bias, out_dtype, hadamard) -> Tensor:
    """x in INT8 by rows, times the weight: integers are summed exactly, one rounding at the end."""
    n, k = weight.shape
    if x.shape[-1] != k:
        raise ValueError(f"x has {x.shape[-1]} columns and the weight {k}: they must agree")
    scale = weight_scale.to(x.device, torch.float32).reshape(-1, 1)
    if scale.shape[0] not in (1, n):
        raise ValueError(f"weight_scale has {scale.shape[0]} elements: give 1, or {n}, one a row")
    q, x_scale = p.quantize_int8(x, granularity="row", hadamard=hadamard)
    return p.scaled_mm_int8(
        q,
        weight.to(x.device),
        x_scale,
        scale.expand(n, 1).contiguous(),
        granularity="row",
        bias=flat(bias, n),
        out_dtype=out_dtype or _BF16,
    )


_INT8_LINEAR = {
    "x": of(FLOATS),
    "weight": of(INT8, TWO),
    "weight_scale": of(FLOATS),
    "bias": of(FLOATS),
    "out_dtype": of(FLOATS),
}


# comfy-kitchen's rule on GPUs; one row of its own falls through to eager.
@adapter("quantize_int8", "scaled_mm_int8", on_gpu={"x": of(FLOATS, ROWS)}, **_INT8_LINEAR)
def int8_linear(
    p,
    x,
    weight,
    weight_scale,
    bias=None,
    out_dtype=None,
    convrot=False,
    convrot_groupsize=256,
    input_act=None,
    input_act_weight=None,
    input_act_eps=0.0,
    residual=None,
    residual_scale=None,
):
    x = activated(x, input_act, input_act_weight, input_act_eps)
    group = convrot_groupsize if convrot else 0
    need_groups(x, group, "convrot_groupsize")
    out = int8_product(p, x, weight, weight_scale, bias, out_dtype, group)
    return added(out, residual, residual_scale)


def modulated(x: Tensor, scale: Tensor) -> Tensor:
    if scale.numel() != x.shape[-1]:
        count = scale.numel()
        raise ValueError(f"modulation_scale has {count} elements: give {x.shape[-1]}, one a column")
    return x * (1 + scale.reshape(x.shape[-1]))


@adapter("quantize_int8", "scaled_mm_int8", modulation_scale=of(FLOATS), **_INT8_LINEAR)
def int8_linear_modulated(
    p,
    x,
    modulation_scale,
    weight,
    weight_scale,
    bias=None,
    out_dtype=None,
    convrot=False,
    convrot_groupsize=256,
):
    group = convrot_groupsize if convrot else 0
    x = modulated(x, modulation_scale)
    return int8_product(p, x, weight, weight_scale, bias, out_dtype, group)


@adapter(
    "quantize_int8",
    "scaled_mm_int8",
    norm_weight=of(FLOATS),
    modulation_scale=of(FLOATS),
    **_INT8_LINEAR,
)
def int8_linear_rms_modulated(
    p,
    x,
    norm_weight,
    norm_eps,
    modulation_scale,
    weight,
    weight_scale,
    bias=None,
    out_dtype=None,
    convrot=False,
    convrot_groupsize=256,
):
    group = convrot_groupsize if convrot else 0
    x = modulated(functional.rms_norm(x, x.shape[-1:], norm_weight, norm_eps), modulation_scale)
    return int8_product(p, x, weight, weight_scale, bias, out_dtype, group)


# ---- INT4, W4A8


@adapter(
    "linear_int4",
    x=of(FLOATS),
    qweight=of(INT8, TWO),
    wscales=of(FLOATS, ROWWISE),
    bias=of(FLOATS),
)
def convrot_w4a4_linear(
    p,
    x,
    qweight,
    wscales,
    bias=None,
    convrot_groupsize=256,
    quant_group_size=64,
    linear_dtype="int4",
):
    if linear_dtype not in ("int4", "int8"):
        raise ValueError(f'linear_dtype is "{linear_dtype}": int4 or int8')
    need_64(quant_group_size)
    need_groups(x, convrot_groupsize, "convrot_groupsize")
    return p.linear_int4(
        x,
        qweight.view(torch.uint8),
        wscales.to(x.device, torch.float32).reshape(-1, 1),
        group_size=0,
        hadamard=convrot_groupsize,
        bias=flat(bias, qweight.shape[0]),
        out_dtype=x.dtype,
    )


CANONICAL = refuse_unless("mma_packed", "canonical storage", lambda packed: not packed)


@adapter(
    "linear_w4a8",
    x=of(FLOATS),
    qdata=of(INT8, TWO),
    s_rel=of(E4M3, TWO),
    s_channel=of(F32, ROWWISE),
    codebook=of(F32, ONE),
    bias=of(FLOATS),
    out_dtype=of(FLOATS),
    rules=(*W4A8_STORED, CANONICAL),
)
def w4a8_int8_linear(
    p,
    x,
    qdata,
    s_rel,
    s_channel,
    codebook=None,
    correction=None,
    bias=None,
    group_size=16,
    convrot_groupsize=256,
    out_dtype=_BF16,
    mma_packed=False,
    input_act=None,
    input_act_weight=None,
    input_act_eps=0.0,
    residual=None,
    residual_scale=None,
):
    out = p.linear_w4a8(
        activated(x, input_act, input_act_weight, input_act_eps),
        qdata.view(torch.uint8),
        s_rel,
        s_channel.reshape(-1),
        codebook,
        hadamard=convrot_groupsize,
        bias=flat(bias, qdata.shape[0]),
        out_dtype=out_dtype,
    )
    return added(out, residual, residual_scale)
