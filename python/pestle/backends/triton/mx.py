"""MX formats in Triton: quantise and dequantise MXFP8 and MXFP4. Kernels in blocks.py."""

from __future__ import annotations

import torch

from . import blocks
from .launch import cdiv, kind


def _scales(m: int, k: int, layout: str, like: torch.Tensor) -> torch.Tensor:
    shape = blocks.scale_shape(m, cdiv(k, 32), layout == "swizzled")
    return torch.empty(shape, dtype=torch.float8_e8m0fnu, device=like.device)


def quantize_mxfp8(x, *, scale_layout="swizzled", pad=False, rounding="nearest", seed=0,
                   q_dtype=None):  # fmt: skip
    m, k = blocks.padded(x, 32, pad)
    q = torch.empty(m, k, dtype=q_dtype or torch.float8_e4m3fn, device=x.device)
    scales = _scales(m, k, scale_layout, x)
    blocks.quantize(x, q, scales, None, kind(q.dtype), 32, high_first=False,
                    swizzled=scale_layout == "swizzled", stochastic=rounding == "stochastic",
                    seed=seed)  # fmt: skip
    return q, scales


def quantize_mxfp4(x, *, nibbles="low_first", scale_layout="swizzled", pad=False,
                   rounding="nearest", seed=0):  # fmt: skip
    m, k = blocks.padded(x, 32, pad)
    q = torch.empty(m, k // 2, dtype=torch.uint8, device=x.device)
    scales = _scales(m, k, scale_layout, x)
    blocks.quantize(x, q, scales, None, blocks.MXFP4.value, 32,
                    high_first=nibbles == "high_first", swizzled=scale_layout == "swizzled",
                    stochastic=rounding == "stochastic", seed=seed)  # fmt: skip
    return q, scales


def dequantize_mxfp8(q, scale, *, scale_layout="swizzled", out_dtype=None):
    out = torch.empty(q.shape, dtype=out_dtype or torch.bfloat16, device=q.device)
    blocks.dequantize(q, scale, None, out, kind(q.dtype), 32, high_first=False,
                      swizzled=scale_layout == "swizzled")  # fmt: skip
    return out


def dequantize_mxfp4(q, scale, *, nibbles="low_first", scale_layout="swizzled", out_dtype=None):
    out = torch.empty(q.shape[0], q.shape[1] * 2, dtype=out_dtype or torch.bfloat16,
                      device=q.device)  # fmt: skip
    blocks.dequantize(q, scale, None, out, blocks.MXFP4.value, 32,
                      high_first=nibbles == "high_first",
                      swizzled=scale_layout == "swizzled")  # fmt: skip
    return out
