"""INT4 in groups along K, symmetric or with a zero point: docs/formats/int4.md."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._backends import implements
from . import _layouts
from . import _numbers as n
from .int8 import MIN_SCALE


def _group(group_size: int, k: int) -> int:
    return group_size or max(k, 1)


def _symmetric(blocks: Tensor) -> tuple[Tensor, None]:
    amax = n.float_of(n.amax(n.abs_bits(blocks), (1, 3)))
    return n.max_keep_nan(n.divide(amax, 7.0), MIN_SCALE)[:, 0, :, 0], None


def _asymmetric(blocks: Tensor) -> tuple[Tensor, Tensor]:
    if blocks.numel() == 0:
        empty = blocks.new_zeros(blocks.shape[0], blocks.shape[2])
        return empty + MIN_SCALE, empty
    is_nan = blocks.isnan().any(3).any(1)
    clean = torch.where(blocks.isnan(), n.number(0.0, blocks), blocks)
    low = clean.amin((1, 3)).clamp(max=0.0)
    high = clean.amax((1, 3)).clamp(min=0.0)
    scale = n.max_keep_nan(n.divide(high - low, 15.0), MIN_SCALE)
    zero = n.round_clamp(n.divide(-low, scale), 0, 15)
    nan = n.number(torch.nan, scale)
    return torch.where(is_nan, nan, scale), torch.where(is_nan, n.number(0.0, zero), zero)


@implements("quantize_int4", backend="eager")
def quantize_int4(x, *, group_size, mode, hadamard, rounding, seed):
    values = _layouts.rotate(x.float(), hadamard)
    m, k = values.shape
    wide = _group(group_size, k)
    find = _asymmetric if mode == "asymmetric" else _symmetric
    scale, zero = find(n.in_blocks(values, 1, wide))
    v = n.divide(values, n.spread(scale, 1, wide, m, k))
    shift = n.number(0.0, v) if zero is None else n.spread(zero, 1, wide, m, k)
    low = -8.0 - shift if zero is None else -shift
    if rounding == "stochastic":
        code = _stochastic(v, n.random_bits(seed, v.shape, v.device), low)
    else:
        inside = torch.where(v.isnan(), n.number(0.0, v), v)
        code = torch.minimum(torch.maximum(inside, low), low + 15).round()
    q = _layouts.pack((code + shift).int() & 0xF, False).to(torch.uint8)
    return (q, scale) if zero is None else (q, scale, zero.to(torch.uint8))


def _stochastic(t: Tensor, u: Tensor, low: Tensor) -> Tensor:
    high = low + 15
    inside = torch.where(t.isnan(), n.number(0.0, t), t)
    inside = torch.minimum(torch.maximum(inside, low), high)
    down = inside.floor()
    up = (u.float() < (inside - down) * 65536.0) & (inside > low) & (inside < high)
    return down + up.float()


def decode(q: Tensor, scale: Tensor, zero: Tensor | None, group_size: int) -> Tensor:
    """The f32 values of packed codes, not rotated back."""
    codes = _layouts.unpack(q, False).int()
    m, k = codes.shape
    wide = _group(group_size, k)
    zeros = 0 if zero is None else n.spread(zero.int(), 1, wide, m, k)
    codes = (codes ^ 8) - 8 if zero is None else codes - zeros
    return codes.float() * n.spread(scale, 1, wide, m, k)


@implements("dequantize_int4", backend="eager")
def dequantize_int4(q, scale, zero=None, *, group_size, mode, hadamard, out_dtype):
    return _layouts.rotate(decode(q, scale, zero, group_size), hadamard).to(out_dtype)
