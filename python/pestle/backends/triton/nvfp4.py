"""NVFP4 in Triton: quantize_nvfp4, dequantize_nvfp4. Kernels in blocks.py, amax in rows.py."""

from __future__ import annotations

import torch

from . import blocks
from .launch import cdiv, launch, power_of_2
from .rows import NVFP4_GLOBAL, scales_of_parts, tensor_amax_parts


def _global_scale(x: torch.Tensor) -> torch.Tensor:
    """amax / 2688 of the tensor, without waiting for it."""
    g = torch.empty(1, dtype=torch.float32, device=x.device)
    parts, count = tensor_amax_parts(x)
    launch(scales_of_parts, 1, x, parts, g, count, 1, QKIND=NVFP4_GLOBAL.value,
           PARTS=power_of_2(count), SIZE=1)  # fmt: skip
    return g


def quantize_nvfp4(x, global_scale=None, *, nibbles="high_first", scale_layout="swizzled",
                   pad=False, rounding="nearest", seed=0):  # fmt: skip
    m, k = blocks.padded(x, 16, pad)
    swizzled = scale_layout == "swizzled"
    q = torch.empty(m, k // 2, dtype=torch.uint8, device=x.device)
    scales = torch.empty(blocks.scale_shape(m, cdiv(k, 16), swizzled),
                         dtype=torch.float8_e4m3fn, device=x.device)  # fmt: skip
    g = _global_scale(x) if global_scale is None else global_scale
    blocks.quantize(x, q, scales, g, blocks.NVFP4.value, 16, high_first=nibbles == "high_first",
                    swizzled=swizzled, stochastic=rounding == "stochastic", seed=seed)  # fmt: skip
    return (q, scales, g) if global_scale is None else (q, scales)


def dequantize_nvfp4(q, scale, global_scale, *, nibbles="high_first", scale_layout="swizzled",
                     out_dtype=None):  # fmt: skip
    out = torch.empty(q.shape[0], q.shape[1] * 2, dtype=out_dtype or torch.bfloat16,
                      device=q.device)  # fmt: skip
    blocks.dequantize(q, scale, global_scale, out, blocks.NVFP4.value, 16,
                      high_first=nibbles == "high_first",
                      swizzled=scale_layout == "swizzled")  # fmt: skip
    return out
