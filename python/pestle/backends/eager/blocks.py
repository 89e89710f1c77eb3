"""NVFP4, MXFP8 and MXFP4: a small scale for each 16 or 32 columns. docs/formats/nvfp4.md, mx.md."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._backends import implements
from ..._contract import DTYPES
from . import _layouts
from . import _numbers as n


def _padded(x: Tensor, block: int, pad: bool) -> Tensor:
    values = x.float()
    if not pad:
        return values
    m, k = x.shape
    return n.padded(values, -k % block, -m % block)


def _block_amax(values: Tensor, block: int) -> Tensor:
    """The bits of the largest |x| of each block, [M, K / block]."""
    magnitudes = n.abs_bits(values).reshape(values.shape[0], values.shape[1] // block, block)
    return n.amax(magnitudes, (2,)).squeeze(2)


def _laid_out(scale: Tensor, layout: str, dtype: torch.dtype) -> Tensor:
    return (_layouts.swizzle(scale) if layout == "swizzled" else scale).contiguous().view(dtype)


def _codes(v: Tensor, form: n.Format, rounding: str, seed: int) -> Tensor:
    u = n.random_bits(seed, v.shape, v.device) if rounding == "stochastic" else None
    return n.small_codes(v, form, u)


def _nvfp4_global(x: Tensor) -> Tensor:
    amax = n.float_of(n.amax(n.abs_bits(x), (0, 1)).reshape(1))
    g = n.divide(amax, 2688.0)
    return torch.where(g.isnan(), n.number(torch.nan, g), g)


def _nvfp4_scales(amax: Tensor, g: Tensor) -> Tensor:
    t = n.divide(n.divide(n.float_of(amax), 6.0), g)
    codes = n.fp8_codes(t, torch.float8_e4m3fn).view(torch.uint8)
    return torch.where((amax == 0) | (g == 0), 0, codes).to(torch.uint8)


@implements("quantize_nvfp4", backend="eager")
def quantize_nvfp4(x, global_scale=None, *, nibbles, scale_layout, pad, rounding, seed):
    g = _nvfp4_global(x) if global_scale is None else global_scale
    values = _padded(x, 16, pad)
    scales = _nvfp4_scales(_block_amax(values, 16), g)
    factor = (scales.view(torch.float8_e4m3fn).float() * g).repeat_interleave(16, 1)
    codes = _codes(n.divide(values, factor), n.E2M1, rounding, seed)
    zero = (scales == 0).repeat_interleave(16, 1) | (factor == 0)
    q = _layouts.pack(torch.where(zero, 0, codes).to(torch.uint8), nibbles == "high_first")
    scale_out = _laid_out(scales, scale_layout, torch.float8_e4m3fn)
    return (q, scale_out) if global_scale is not None else (q, scale_out, g)


def decode_nvfp4(q: Tensor, scale: Tensor, g: Tensor, nibbles: str, layout: str) -> Tensor:
    values = _layouts.e2m1_values(_layouts.unpack(q, nibbles == "high_first"))
    m, k = values.shape
    scales = _layouts.plain_scale(scale, layout, m, k // 16)
    factor = scales.contiguous().view(torch.float8_e4m3fn).float() * g
    return values * factor.repeat_interleave(16, 1)


@implements("dequantize_nvfp4", backend="eager")
def dequantize_nvfp4(q, scale, global_scale, *, nibbles, scale_layout, out_dtype):
    return decode_nvfp4(q, scale, global_scale, nibbles, scale_layout).to(out_dtype)


def _mx_scales(amax: Tensor, form: n.Format) -> Tensor:
    up = ((amax & 0x007FFFFF) > form.max_fraction).int()
    e = ((amax >> 23) - form.max_exponent + up).clamp(min=0)
    return torch.where(amax > n.INF_BITS, 255, e).to(torch.uint8)


def _quantize_mx(x: Tensor, form: n.Format, pad: bool, rounding: str, seed: int):
    values = _padded(x, 32, pad)
    amax = _block_amax(values, 32)
    scales = _mx_scales(amax, form)
    inverse = _layouts.e8m0_inverses(scales).repeat_interleave(32, 1)
    codes = _codes(values * inverse, form, rounding, seed)
    return torch.where((amax == 0).repeat_interleave(32, 1), 0, codes).to(torch.uint8), scales


@implements("quantize_mxfp8", backend="eager")
def quantize_mxfp8(x, *, scale_layout, pad, rounding, seed, q_dtype):
    q, scales = _quantize_mx(x, n.FP8[q_dtype], pad, rounding, seed)
    return q.view(q_dtype), _laid_out(scales, scale_layout, DTYPES["e8m0"])


@implements("quantize_mxfp4", backend="eager")
def quantize_mxfp4(x, *, nibbles, scale_layout, pad, rounding, seed):
    q, scales = _quantize_mx(x, n.E2M1, pad, rounding, seed)
    q = _layouts.pack(q, nibbles == "high_first")
    return q, _laid_out(scales, scale_layout, DTYPES["e8m0"])


def _decode_mx(values: Tensor, scale: Tensor, layout: str) -> Tensor:
    m, k = values.shape
    scales = _layouts.plain_scale(scale, layout, m, k // 32)
    return values * _layouts.e8m0_values(scales).repeat_interleave(32, 1)


def decode_mxfp8(q: Tensor, scale: Tensor, layout: str) -> Tensor:
    return _decode_mx(q.float(), scale, layout)


def decode_mxfp4(q: Tensor, scale: Tensor, nibbles: str, layout: str) -> Tensor:
    values = _layouts.e2m1_values(_layouts.unpack(q, nibbles == "high_first"))
    return _decode_mx(values, scale, layout)


@implements("dequantize_mxfp8", backend="eager")
def dequantize_mxfp8(q, scale, *, scale_layout, out_dtype):
    return decode_mxfp8(q, scale, scale_layout).to(out_dtype)


@implements("dequantize_mxfp4", backend="eager")
def dequantize_mxfp4(q, scale, *, nibbles, scale_layout, out_dtype):
    return decode_mxfp4(q, scale, nibbles, scale_layout).to(out_dtype)
