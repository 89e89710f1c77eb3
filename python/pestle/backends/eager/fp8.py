"""FP8 with a decode scale per tensor, row, column or block: docs/formats/fp8.md."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._backends import implements
from . import _numbers as n

_MIN_SCALE = 2.0**-126


def _block(granularity: str, m: int, k: int) -> tuple[int, int]:
    """Rows and columns that share a scale; at least 1, also of an empty matrix."""
    return {
        "tensor": (max(m, 1), max(k, 1)),
        "row": (1, max(k, 1)),
        "column": (max(m, 1), 1),
        "block_1x128": (1, 128),
        "block_128x128": (128, 128),
    }[granularity]


def scale_shape(x: Tensor, granularity: str) -> tuple[int, ...]:
    m, k = n.rows(x).shape
    return {
        "tensor": (1,),
        "row": (*x.shape[:-1], 1),
        "column": (1, k),
        "block_1x128": (*x.shape[:-1], -(-k // 128)),
        "block_128x128": (-(-m // 128), -(-k // 128)),
    }[granularity]


def spread_scale(scale: Tensor, granularity: str, m: int, k: int) -> Tensor:
    """A scale of any granularity as something that multiplies [M, K]."""
    if granularity == "tensor":
        return scale.reshape(1, 1)
    if granularity == "row":
        return scale.reshape(m, 1)
    if granularity == "column":
        return scale.reshape(1, k)
    high, wide = _block(granularity, m, k)
    return n.spread(scale.reshape(-(-m // high), -(-k // wide)), high, wide, m, k)


def _computed_scale(x: Tensor, granularity: str, largest: float) -> Tensor:
    values = n.rows(x)
    high, wide = _block(granularity, *values.shape)
    magnitudes = n.amax(n.in_blocks(n.abs_bits(values), high, wide), (1, 3))
    scale = n.max_keep_nan(n.divide(n.float_of(magnitudes), largest), _MIN_SCALE)
    shape = scale_shape(x, granularity)
    # An empty tensor has a scale, though it has no block.
    return scale.reshape(shape) if scale.numel() else scale.new_full(shape, _MIN_SCALE)


@implements("quantize_fp8", backend="eager")
def quantize_fp8(x, scale=None, *, granularity, rounding, seed, transposed, q_dtype):
    given = scale is not None
    if not given:
        scale = _computed_scale(x, granularity, n.FP8[q_dtype].max)
    values = n.rows(x).float()
    v = n.divide(values, spread_scale(scale, granularity, *values.shape))
    if rounding == "stochastic":
        q = n.stochastic_fp8_codes(v, q_dtype, n.random_bits(seed, v.shape, v.device))
    else:
        q = n.fp8_codes(v, q_dtype)
    results = (q.reshape(x.shape),) if given else (q.reshape(x.shape), scale)
    return (*results, n.turned(q)) if transposed else results


@implements("dequantize_fp8", backend="eager")
def dequantize_fp8(q, scale, *, granularity, out_dtype):
    codes = n.rows(q)
    values = codes.float() * spread_scale(scale, granularity, *codes.shape)
    return values.to(out_dtype).reshape(q.shape)


@implements("stochastic_round_fp8", backend="eager")
def stochastic_round_fp8(x, rng, *, q_dtype):
    return n.stochastic_fp8_codes(x.to(torch.float16).float(), q_dtype, rng.long() << 8)
