"""INT8 with a decode scale per tensor, row or group: docs/formats/int8.md."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._backends import implements
from . import _layouts
from . import _numbers as n

MIN_SCALE = 1e-30


def _wide(granularity: str, group_size: int, k: int) -> int:
    return group_size if granularity == "group" else max(k, 1)


def spread_scale(scale: Tensor, granularity: str, group_size: int, m: int, k: int) -> Tensor:
    if granularity == "tensor":
        return scale.reshape(1, 1)
    if granularity == "row":
        return scale.reshape(m, 1)
    wide = _wide(granularity, group_size, k)
    return n.spread(scale.reshape(m, -(-k // wide)), 1, wide, m, k)


def _computed_scale(values: Tensor, shape: tuple, granularity: str, group_size: int) -> Tensor:
    m, k = values.shape
    high = max(m, 1) if granularity == "tensor" else 1
    wide = _wide(granularity, group_size, k)
    magnitudes = n.amax(n.in_blocks(n.abs_bits(values), high, wide), (1, 3))
    scale = n.max_keep_nan(n.divide(n.float_of(magnitudes), 127.0), MIN_SCALE)
    return scale.reshape(shape) if scale.numel() else scale.new_full(shape, MIN_SCALE)


@implements("quantize_int8", backend="eager")
def quantize_int8(x, scale=None, *, granularity, group_size, hadamard, rounding, seed, transposed):
    values = _layouts.rotate(n.rows(x).float(), hadamard)
    m, k = values.shape
    given = scale is not None
    if not given:
        last = {"tensor": None, "row": 1, "group": -(-k // group_size)}[granularity]
        shape = (1,) if last is None else (*x.shape[:-1], last)
        scale = _computed_scale(values, shape, granularity, group_size)
    v = n.divide(values, spread_scale(scale, granularity, group_size, m, k))
    if rounding == "stochastic":
        q = n.int_stochastic(v, n.random_bits(seed, v.shape, v.device), -128, 127)
    else:
        q = n.round_clamp(v, -128, 127)
    q = q.to(torch.int8)
    results = (q.reshape(x.shape),) if given else (q.reshape(x.shape), scale)
    return (*results, n.turned(q)) if transposed else results


def decode(q: Tensor, scale: Tensor, granularity: str, group_size: int) -> Tensor:
    """The f32 values of [M, K] codes, not rotated back."""
    return q.float() * spread_scale(scale, granularity, group_size, *q.shape)


@implements("dequantize_int8", backend="eager")
def dequantize_int8(q, scale, *, granularity, group_size, hadamard, out_dtype):
    values = _layouts.rotate(decode(n.rows(q), scale, granularity, group_size), hadamard)
    return values.to(out_dtype).reshape(q.shape)
