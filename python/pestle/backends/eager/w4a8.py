"""W4A8: indices into a codebook that decode to int8. docs/formats/w4a8.md."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._backends import implements
from .._codebook import W4A8
from . import _layouts
from . import _numbers as n

_MIN_SCALE = 1e-8


def _levels(codebook: Tensor | None, like: Tensor) -> Tensor:
    if codebook is not None:
        return codebook
    return torch.tensor(W4A8, dtype=torch.float32, device=like.device)


def _index(v: Tensor, levels: Tensor) -> Tensor:
    """How many midpoints of the levels (last dimension) lie below v; 0 for NaN."""
    mids = (levels[..., :-1] + levels[..., 1:]) * 0.5
    index = torch.zeros(v.shape, dtype=torch.int64, device=v.device)
    for i in range(15):
        index += v > mids[..., i, None]
    return index


def _fold(terms: Tensor) -> Tensor:
    """Sum of 16 terms, the upper half on the lower: + 8, + 4, + 2, + 1."""
    for half in (8, 4, 2, 1):
        terms = terms[..., :half] + terms[..., half : 2 * half]
    return terms[..., 0]


def _fit(x: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """Scale of each group [N, G, 16] and the bits of its largest decoded value."""
    amax = n.amax(n.abs_bits(x), (2,)).squeeze(2)
    scale = n.max_keep_nan(n.float_of(amax), _MIN_SCALE)
    for _ in range(2):
        level = levels[_index(n.divide(x, scale[..., None]), levels)]
        den = n.max_keep_nan(_fold(level * level), _MIN_SCALE)
        scale = n.max_keep_nan(n.divide(_fold(x * level), den), _MIN_SCALE)
    made = levels[_index(n.divide(x, scale[..., None]), levels)] * scale[..., None]
    peak = n.amax(n.abs_bits(made), (2,)).squeeze(2)
    bad = amax >= n.INF_BITS
    nan = n.number(torch.nan, scale)
    return torch.where(bad, nan, scale), torch.where(bad, 0x7FC00000, peak)


def _grid(levels: Tensor, scale_rel: Tensor) -> Tensor:
    """The 16 integers that a group decodes to, [N, G, 16], as f32; the sum makes -0 what it is."""
    return n.round_clamp(levels * scale_rel.float()[..., None], -127, 127) + 0.0


@implements("quantize_w4a8", backend="eager")
def quantize_w4a8(x, codebook=None, *, hadamard):
    values = _layouts.rotate(x.float(), hadamard)
    rows, k = values.shape
    levels = _levels(codebook, x)
    groups = values.reshape(rows, k // 16, 16)
    scale, peak = _fit(groups, levels)
    peak = n.amax(peak, (1,)).squeeze(1).int() if k else peak.new_zeros(rows).int()
    channel = n.max_keep_nan(n.divide(n.float_of(peak), 127.0), _MIN_SCALE)
    relative = n.fp8_codes(n.divide(scale, channel[:, None]), torch.float8_e4m3fn)
    codes = _index(n.divide(groups, channel[:, None, None]), _grid(levels, relative))
    q = _layouts.pack(codes.reshape(rows, k).to(torch.uint8), False)
    return q, relative, channel


def decode(q: Tensor, scale_rel: Tensor, scale_channel: Tensor, codebook: Tensor | None) -> Tensor:
    """The f32 values of packed indices, not rotated back."""
    codes = _layouts.unpack(q, False)
    rows, k = codes.shape
    grid = _grid(_levels(codebook, q), scale_rel)
    values = grid.gather(2, codes.reshape(rows, k // 16, 16).long()).reshape(rows, k)
    return values * scale_channel[:, None]


@implements("dequantize_w4a8", backend="eager")
def dequantize_w4a8(q, scale_rel, scale_channel, codebook=None, *, hadamard, out_dtype):
    return _layouts.rotate(decode(q, scale_rel, scale_channel, codebook), hadamard).to(out_dtype)
