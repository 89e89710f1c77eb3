"""Quantisers and their inverses by comfy-kitchen's names, over Pestle's ops."""

from __future__ import annotations

import torch
from torch import Tensor

from pestle.backends._codebook import W4A8  # which a quantised weight is returned with

from . import _w4a8
from ._serve import (
    BYTES,
    E4M3,
    E8M0,
    F32,
    FLOATS,
    FP8,
    INT8,
    ONE,
    ROWWISE,
    TWO,
    ValidationResult,
    adapter,
    of,
    refuse_unless,
)
from .float_utils import roundup

BY_CODE = {
    0: torch.float32,
    1: torch.float16,
    2: torch.bfloat16,
    5: torch.float8_e4m3fn,
    6: torch.float8_e5m2,
}
DTYPE_TO_CODE = {dtype: code for code, dtype in BY_CODE.items()}


def one(scale: Tensor, like: Tensor) -> Tensor:
    """A scale of one element as [1], in f32, where the tensor is."""
    return scale.to(like.device, torch.float32).reshape(1)


def as_tiles(scales: Tensor, rows: int, columns: int) -> Tensor:
    """Swizzled scales as the matrix of whole tiles that they are, also where they come flat."""
    shape = (roundup(rows, 128), roundup(columns, 4))
    if scales.shape == shape or scales.numel() != shape[0] * shape[1]:
        return scales
    return scales.reshape(shape)


def nibbles(hi_first: bool) -> str:
    return "high_first" if hi_first else "low_first"


def rounding(seed: int | None) -> dict:
    if seed is None or seed <= 0:
        return {}
    return {"rounding": "stochastic", "seed": seed}


def need_groups(x: Tensor, size: int, name: str) -> None:
    if size and x.shape[-1] % size:
        raise ValueError(f"{x.shape[-1]} columns are not divisible by {name}, which is {size}")


def need_64(quant_group_size: int) -> None:
    """The one value of an argument that has no effect: a scale is a whole row's."""
    if quant_group_size != 64:
        raise ValueError(f"quant_group_size is {quant_group_size}: INT4 of rotated rows takes 64")


# ---- FP8


@adapter("quantize_fp8", x=of(FLOATS), scale=of(F32), output_type=of(FP8))
def quantize_per_tensor_fp8(p, x, scale, output_type=torch.float8_e4m3fn):
    return p.quantize_fp8(x, one(scale, x), q_dtype=output_type).view(x.shape)


@adapter("dequantize_fp8", x=of(FP8), scale=of(FLOATS), output_type=of(FLOATS))
def dequantize_per_tensor_fp8(p, x, scale, output_type=torch.bfloat16):
    return p.dequantize_fp8(x, one(scale, x), out_dtype=output_type).view(x.shape)


@adapter("stochastic_round_fp8", x=of(FLOATS), rng=of(BYTES), output_type=of(FP8))
def stochastic_rounding_fp8(p, x, rng, output_type=torch.float8_e4m3fn):
    rng = torch.broadcast_to(rng, x.shape)
    return p.stochastic_round_fp8(x, rng, q_dtype=output_type).view(x.shape)


# ---- NVFP4, MXFP8


@adapter("quantize_nvfp4", x=of(FLOATS, TWO), per_tensor_scale=of(F32))
def quantize_nvfp4(p, x, per_tensor_scale, epsilon=0.0, pad_16x=False, hi_first=True):
    scale = one(per_tensor_scale, x)
    return p.quantize_nvfp4(x, scale, nibbles=nibbles(hi_first), pad=pad_16x)


@adapter(
    "dequantize_nvfp4",
    qx=of(BYTES, TWO),
    per_tensor_scale=of(F32),
    block_scales=of(E4M3 | BYTES),
    output_type=of(FLOATS),
)
def dequantize_nvfp4(
    p, qx, per_tensor_scale, block_scales, output_type=torch.bfloat16, hi_first=True
):
    rows, groups = qx.shape[0], qx.shape[1] // 8
    return p.dequantize_nvfp4(
        qx,
        as_tiles(block_scales, rows, groups),
        one(per_tensor_scale, qx),
        nibbles=nibbles(hi_first),
        out_dtype=output_type,
    )


@adapter("quantize_mxfp8", x=of(FLOATS, TWO))
def quantize_mxfp8(p, x, pad_32x=False):
    return p.quantize_mxfp8(x, pad=pad_32x)


@adapter(
    "dequantize_mxfp8",
    qx=of(FP8, TWO),
    block_scales=of(E8M0 | BYTES),
    output_type=of(FLOATS),
)
def dequantize_mxfp8(p, qx, block_scales, output_type=torch.bfloat16):
    scales = as_tiles(block_scales, qx.shape[0], qx.shape[1] // 32)
    return p.dequantize_mxfp8(qx, scales, out_dtype=output_type)


# ---- INT8


@adapter("quantize_int8", x=of(FLOATS), scale=of(FLOATS | {str, int, float}))
def quantize_int8_tensorwise(p, x, scale=None, stochastic_rounding=0):
    how = rounding(stochastic_rounding)
    if scale is None or (isinstance(scale, str) and scale == "recalculate"):
        q, scale = p.quantize_int8(x, granularity="tensor", **how)
        return q.view(x.shape), scale.view(())
    if isinstance(scale, str):
        raise ValueError(f'scale is "{scale}": give a number, a tensor, None or "recalculate"')
    scale = torch.as_tensor(scale, dtype=torch.float32, device=x.device)
    q = p.quantize_int8(x, scale.reshape(1), granularity="tensor", **how)
    return q.view(x.shape), scale


@adapter("quantize_int8", x=of(FLOATS))
def quantize_int8_rowwise(p, x, stochastic_rounding=0):
    return p.quantize_int8(x, granularity="row", **rounding(stochastic_rounding))


@adapter("dequantize_int8", q=of(INT8), scale=of(FLOATS))
def dequantize_int8_simple(p, q, scale):
    return dequantize_int8(p, q, scale, 0, torch.float32)


@adapter("dequantize_int8", q=of(INT8), scale=of(FLOATS))
def dequantize_int8_simple_dtype(p, q, scale, output_dtype_code):
    return dequantize_int8(p, q, scale, 0, BY_CODE[output_dtype_code])


def dequantize_int8(p, q: Tensor, scale: Tensor, hadamard: int, dtype: torch.dtype) -> Tensor:
    scale = scale.to(q.device, torch.float32)
    how = {"hadamard": hadamard, "out_dtype": dtype}
    if scale.numel() == 1:
        return p.dequantize_int8(q, scale.reshape(1), granularity="tensor", **how).view(q.shape)
    if scale.ndim == 0 or scale.shape[-1] != 1:
        shape = f"{tuple(scale.shape)} for codes {tuple(q.shape)}"
        raise ValueError(f"scale has shape {shape}: one scale, or one a row, [..., 1]")
    rows = scale.expand(*q.shape[:-1], 1).contiguous()
    return p.dequantize_int8(q, rows, granularity="row", **how)


@adapter("quantize_int8", weight=of(FLOATS, TWO))
def quantize_int8_convrot_weight(p, weight, group_size, stochastic_rounding=0):
    need_groups(weight, group_size, "group_size")
    how = rounding(stochastic_rounding)
    return p.quantize_int8(weight, granularity="row", hadamard=group_size, **how)


@adapter("quantize_int8", x=of(FLOATS))
def quantize_and_rotate_rowwise(p, x, h, group_size, stochastic_rounding=0):
    """`h` is the rotation's matrix, which Pestle's ops do not read."""
    how = rounding(stochastic_rounding)
    return p.quantize_int8(x, granularity="row", hadamard=group_size, **how)


@adapter("hadamard", weight=of(FLOATS, TWO))
def rotate_int8_convrot_weight(p, weight, group_size):
    need_groups(weight, group_size, "group_size")
    return p.hadamard(weight, hadamard=group_size, out_dtype=weight.dtype)


@adapter("dequantize_int8", q=of(INT8, TWO), scale=of(FLOATS))
def dequantize_int8_convrot_weight(p, q, scale, group_size):
    return dequantize_int8(p, q, scale, group_size, torch.float32)


@adapter("dequantize_int8", q=of(INT8, TWO), scale=of(FLOATS))
def dequantize_int8_convrot_weight_dtype(p, q, scale, group_size, output_dtype_code):
    return dequantize_int8(p, q, scale, group_size, BY_CODE[output_dtype_code])


@adapter("dequantize_int8", q=of(INT8, TWO), scale=of(FLOATS))
def dequantize_int8_embedding(p, q, scale, indices, group_size, output_dtype_code):
    """Gathers rows first, so that no more than these are decoded."""
    flat = indices.reshape(-1)
    rows = scale if scale.numel() == 1 else scale.reshape(-1, 1)[flat]
    values = dequantize_int8(p, q[flat], rows, max(group_size, 0), BY_CODE[output_dtype_code])
    return values.view(*indices.shape, q.shape[-1])


# ---- INT4, W4A8


@adapter("quantize_int4", weight=of(FLOATS, TWO))
def quantize_convrot_w4a4_weight(
    p, weight, convrot_groupsize=256, quant_group_size=64, stochastic_rounding=0
):
    need_64(quant_group_size)
    need_groups(weight, convrot_groupsize, "convrot_groupsize")
    need_groups(weight, quant_group_size, "quant_group_size")
    how = rounding(stochastic_rounding)
    q, scale = p.quantize_int4(weight, group_size=0, hadamard=convrot_groupsize, **how)
    return q.view(torch.int8), scale.view(-1)


@adapter(
    "dequantize_int4", qdata=of(INT8, TWO), scales=of(FLOATS, ROWWISE), output_dtype=of(FLOATS)
)
def dequantize_convrot_w4a4_weight(
    p, qdata, scales, convrot_groupsize=256, quant_group_size=64, output_dtype=torch.float32
):
    need_64(quant_group_size)
    rows = scales.to(qdata.device, torch.float32).reshape(-1, 1)
    return p.dequantize_int4(
        qdata.view(torch.uint8),
        rows,
        group_size=0,
        hadamard=convrot_groupsize,
        out_dtype=output_dtype,
    )


W4A8_RULES = (refuse_unless("group_size", "groups of 16", lambda size: size in (None, 16)),)
NO_CORRECTION = refuse_unless("correction", "symmetric weights", lambda given: given is None)


def _four_bits(kwargs) -> ValidationResult:
    """Two codes a byte; comfy-kitchen's codes of 6 bits lie in rows half as long again."""
    width, groups = kwargs["qdata"].shape[1], kwargs["s_rel"].shape[1]
    if width == groups * 8:
        return ValidationResult.ok()
    rule = f"has rows of {width} bytes for {groups} groups of 16 columns; Pestle has 4 bits alone"
    return ValidationResult.fail("qdata", rule)


W4A8_STORED = (
    *W4A8_RULES,
    NO_CORRECTION,
    refuse_unless("codebook", "codes by a codebook", lambda given: given is not None),
    _four_bits,
)
W4A8_MAKING = (
    *W4A8_RULES,
    refuse_unless("symmetric", "symmetric weights", lambda value: value in (None, True)),
    refuse_unless("codebook", "codes by a codebook", lambda value: value in (None, True)),
    refuse_unless("bits", "4 bits", lambda bits: bits in (None, 4)),
    refuse_unless("stochastic_rounding", "rounding to nearest", lambda seed: not seed),
    refuse_unless("scale_dtype", "E4M3 scales", lambda dtype: dtype in (None, torch.float8_e4m3fn)),
)


@adapter("quantize_w4a8", weight=of(FLOATS, TWO), codebook_tensor=of(F32), rules=W4A8_MAKING)
def quantize_w4a8_int8_weight(
    p,
    weight,
    group_size=16,
    convrot_groupsize=256,
    symmetric=True,
    scale_dtype=torch.float8_e4m3fn,
    codebook=True,
    codebook_tensor=None,
    stochastic_rounding=0,
    bits=4,
    scale_search=True,
):
    _w4a8.check_making(weight, group_size, convrot_groupsize, bits, symmetric, scale_dtype)
    table = codebook_tensor
    if table is None:
        table = torch.tensor(W4A8, dtype=torch.float32, device=weight.device)
    q, rel, channel = p.quantize_w4a8(weight, table, hadamard=convrot_groupsize)
    return q.view(torch.int8), rel, channel, None, table


@adapter(
    "dequantize_w4a8",
    qdata=of(INT8, TWO),
    s_rel=of(E4M3, TWO),
    s_channel=of(F32, ROWWISE),
    codebook=of(F32, ONE),
    output_dtype=of(FLOATS),
    rules=W4A8_STORED,
)
def dequantize_w4a8_int8_weight(
    p,
    qdata,
    s_rel,
    s_channel,
    codebook=None,
    correction=None,
    group_size=16,
    convrot_groupsize=256,
    output_dtype=torch.bfloat16,
):
    return p.dequantize_w4a8(
        qdata.view(torch.uint8),
        s_rel,
        s_channel.reshape(-1),
        codebook,
        hadamard=convrot_groupsize,
        out_dtype=output_dtype,
    )
