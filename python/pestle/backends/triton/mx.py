"""MX formats in Triton: quantise and dequantise MXFP8 and MXFP4. Kernels in _blocks.py."""

from __future__ import annotations

import torch

from ..._backends import implements
from ..._contract import DTYPES
from . import _blocks as blocks
from ._launch import cdiv, finish, fresh, kind


def _quantize(x, k, q, s_out, form, scale_layout, high_first, rounding, seed, out):
    shape = blocks.scale_shape(q.shape[0], cdiv(k, 32), scale_layout == "swizzled")
    scales = fresh(s_out, shape, DTYPES["e8m0"], x)
    blocks.quantize(x, q, scales, None, form, 32, high_first=high_first,
                    swizzled=scale_layout == "swizzled", stochastic=rounding == "stochastic",
                    seed=seed)  # fmt: skip
    return finish(out, q, scales)


@implements("quantize_mxfp8", backend="triton")
def quantize_mxfp8(x, *, scale_layout, pad, rounding, seed, q_dtype, out=None):
    m, k = blocks.padded(x, 32, pad)
    q_out, s_out = out or (None, None)
    q = fresh(q_out, (m, k), q_dtype, x)
    return _quantize(x, k, q, s_out, kind(q_dtype), scale_layout, False, rounding, seed, out)


@implements("quantize_mxfp4", backend="triton")
def quantize_mxfp4(x, *, nibbles, scale_layout, pad, rounding, seed, out=None):
    m, k = blocks.padded(x, 32, pad)
    q_out, s_out = out or (None, None)
    q = fresh(q_out, (m, k // 2), torch.uint8, x)
    return _quantize(x, k, q, s_out, blocks.MXFP4.value, scale_layout, nibbles == "high_first",
                     rounding, seed, out)  # fmt: skip


@implements("dequantize_mxfp8", backend="triton")
def dequantize_mxfp8(q, scale, *, scale_layout, out_dtype, out=None):
    values = fresh(out, q.shape, out_dtype, q)
    blocks.dequantize(q, scale, None, values, kind(q.dtype), 32, high_first=False,
                      swizzled=scale_layout == "swizzled")  # fmt: skip
    return finish(out, values)


@implements("dequantize_mxfp4", backend="triton")
def dequantize_mxfp4(q, scale, *, nibbles, scale_layout, out_dtype, out=None):
    values = fresh(out, (q.shape[0], q.shape[1] * 2), out_dtype, q)
    blocks.dequantize(q, scale, None, values, blocks.MXFP4.value, 32,
                      high_first=nibbles == "high_first",
                      swizzled=scale_layout == "swizzled")  # fmt: skip
    return finish(out, values)
