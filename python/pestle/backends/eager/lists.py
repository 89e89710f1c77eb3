"""Lists of tensors: each as the op that does one."""

from __future__ import annotations

import torch

from ..._backends import implements
from .fp8 import quantize_fp8
from .int8 import quantize_int8


def _refuses(x, scale=None, *, q_dtype, **_):
    return "" if q_dtype is not None else "it gives codes of one dtype only"


@implements("quantize_list", backend="eager", refuses=_refuses)
def quantize_list(x, scale=None, *, granularity, rounding, seed, q_dtype):
    how = {"granularity": granularity, "rounding": rounding, "seed": seed, "transposed": False}
    made = []
    for tensor, own in zip(x, scale or [None] * len(x), strict=True):
        if q_dtype == torch.int8:
            one = quantize_int8(tensor, own, group_size=128, hadamard=0, **how)
        else:
            one = quantize_fp8(tensor, own, q_dtype=q_dtype, **how)
        made.append(one)
    return tuple(list(each) for each in zip(*made, strict=True))
