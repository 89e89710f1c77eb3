"""INT8 in Triton: quantize_int8, dequantize_int8, rotated or not. Numerics: docs/formats/int8.md.

The kernels are in rows.py, the rotation in hadamard.py: rotated f32 values make a trip through memory.
"""

from __future__ import annotations

import torch

from .hadamard import rotate
from .rows import decode, encode, encode_by_scale, scale_shape


def quantize_int8(x, scale=None, *, granularity="tensor", group_size=128, hadamard=0,
                  rounding="nearest", seed=0):  # fmt: skip
    q = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    stochastic = rounding == "stochastic"
    if hadamard:
        rotated = torch.empty(x.shape, dtype=torch.float32, device=x.device)
        rotate(x, rotated, hadamard)
        x = rotated
    if scale is not None:
        encode_by_scale(x, scale, q, granularity, group_size, stochastic, seed)
        return q
    shape = scale_shape(x, granularity, group_size)
    scale_out = torch.empty(shape, dtype=torch.float32, device=x.device)
    encode(x, q, scale_out, granularity, group_size, stochastic, seed)
    return q, scale_out


def dequantize_int8(q, scale, *, granularity="tensor", group_size=128, hadamard=0, out_dtype=None):
    out = torch.empty(q.shape, dtype=out_dtype or torch.bfloat16, device=q.device)
    if not hadamard:
        decode(q, scale, out, granularity, group_size)
        return out
    values = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    decode(q, scale, values, granularity, group_size)
    rotate(values, out, hadamard)
    return out
