"""INT8 in Triton: quantize_int8, dequantize_int8, rotated or not. Numerics: docs/formats/int8.md.

The kernels are in _rows.py, the rotation in hadamard.py: rotated f32 values go through memory.
"""

from __future__ import annotations

import torch

from ..._backends import implements
from ._launch import finish, fresh, turned
from ._rows import decode, encode, encode_by_scale, scale_shape
from .hadamard import rotate


def rotated_f32(x: torch.Tensor, size: int) -> torch.Tensor:
    if not size:
        return x
    values = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    rotate(x, values, size)
    return values


@implements("quantize_int8", backend="triton")
def quantize_int8(
    x, scale, *, granularity, group_size, hadamard, rounding, seed, transposed, out=None
):
    stochastic = rounding == "stochastic"
    x = rotated_f32(x, hadamard)
    targets = out if isinstance(out, tuple) else (out, None)
    q = fresh(targets[0], x.shape, torch.int8, x)
    made = (q,)
    if scale is not None:
        encode_by_scale(x, scale, q, granularity, group_size, stochastic, seed)
    else:
        scale_out = fresh(targets[1], scale_shape(x, granularity, group_size), torch.float32, x)
        encode(x, q, scale_out, granularity, group_size, stochastic, seed)
        made = (q, scale_out)
    return finish(out, *made, *((turned(q),) if transposed else ()))


@implements("dequantize_int8", backend="triton")
def dequantize_int8(q, scale, *, granularity, group_size, hadamard, out_dtype, out=None):
    values = fresh(out, q.shape, out_dtype, q)
    if not hadamard:
        decode(q, scale, values, granularity, group_size)
        return finish(out, values)
    rotated = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    decode(q, scale, rotated, granularity, group_size)
    rotate(rotated, values, hadamard)
    return finish(out, values)
