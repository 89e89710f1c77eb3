"""NVFP4 in Triton: quantize_nvfp4, dequantize_nvfp4. Kernels in _blocks.py, amax in _rows.py."""

from __future__ import annotations

import torch

from ..._backends import implements
from . import _blocks as blocks
from ._launch import cdiv, finish, fresh, launch, power_of_2
from ._rows import NVFP4_GLOBAL, scales_of_parts, tensor_amax_parts


def _global_scale(x: torch.Tensor, g: torch.Tensor) -> None:
    """g = amax / 2688 of the tensor, without waiting for it."""
    parts, count = tensor_amax_parts(x)
    launch(scales_of_parts, 1, x, parts, g, count, 1, QKIND=NVFP4_GLOBAL.value,
           PARTS=power_of_2(count), SIZE=1)  # fmt: skip


@implements("quantize_nvfp4", backend="triton")
def quantize_nvfp4(x, global_scale, *, nibbles, scale_layout, pad, rounding, seed, out=None):
    m, k = blocks.padded(x, 16, pad)
    swizzled = scale_layout == "swizzled"
    q_out, s_out, *g_out = out or (None, None, None)
    q = fresh(q_out, (m, k // 2), torch.uint8, x)
    scales = fresh(s_out, blocks.scale_shape(m, cdiv(k, 16), swizzled), torch.float8_e4m3fn, x)
    made = (q, scales)
    g = global_scale
    if g is None:
        g = fresh(g_out[0], (1,), torch.float32, x)
        _global_scale(x, g)
        made = (q, scales, g)
    blocks.quantize(x, q, scales, g, blocks.NVFP4.value, 16, high_first=nibbles == "high_first",
                    swizzled=swizzled, stochastic=rounding == "stochastic", seed=seed)  # fmt: skip
    return finish(out, *made)


@implements("dequantize_nvfp4", backend="triton")
def dequantize_nvfp4(q, scale, global_scale, *, nibbles, scale_layout, out_dtype, out=None):
    values = fresh(out, (q.shape[0], q.shape[1] * 2), out_dtype, q)
    blocks.dequantize(q, scale, global_scale, values, blocks.NVFP4.value, 16,
                      high_first=nibbles == "high_first",
                      swizzled=scale_layout == "swizzled")  # fmt: skip
    return finish(out, values)
