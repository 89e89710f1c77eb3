"""copy: casts by the rules of ops/copy/copy/copy.md."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._backends import implements
from . import _numbers


def _whole_of_float(v: Tensor, dtype: torch.dtype) -> Tensor:
    """Toward zero, then to the nearest that fits; NaN gives 0."""
    limits = torch.iinfo(dtype)
    t = torch.where(v.isnan(), 0.0, v).trunc()
    # Limits as f32 are themselves or lie just beyond the range.
    low, high = t <= float(limits.min), t >= float(limits.max)
    whole = torch.where(low | high, 0.0, t).to(torch.int64)
    return torch.where(high, limits.max, torch.where(low, limits.min, whole)).to(dtype)


def _bf16_of_whole(x: Tensor) -> Tensor:
    """One rounding: bits that f32 has no room for are gathered in the last one."""
    smallest = torch.iinfo(torch.int64).min
    x = x.long()
    size, scale = x.abs(), torch.ones(x.shape, device=x.device)
    for _ in range(4):
        large = size >= 1 << 24
        size = torch.where(large, size >> 12 | (size & 0xFFF != 0).long(), size)
        scale = torch.where(large, scale * 4096.0, scale)
    value = torch.where(x < 0, -1.0, 1.0) * size.float() * scale
    return torch.where(x == smallest, float(smallest), value).to(torch.bfloat16)


@implements("copy", backend="eager")
def copy(x, *, out_dtype):
    if out_dtype == x.dtype:
        return x.clone(memory_format=torch.contiguous_format)
    v = x.float() if x.is_floating_point() else x
    if out_dtype == torch.bool:
        return v != 0
    if out_dtype in _numbers.FP8:
        return _numbers.fp8_codes(v.float(), out_dtype)
    if v.is_floating_point() and not out_dtype.is_floating_point:
        return _whole_of_float(v, out_dtype)
    if not v.is_floating_point() and out_dtype == torch.bfloat16:
        return _bf16_of_whole(v)
    return v.to(out_dtype)
