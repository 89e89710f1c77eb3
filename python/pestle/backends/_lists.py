"""Lists of tensors by the op that does one: what the backends in Python share of quantize_list."""

from __future__ import annotations

from collections.abc import Callable

import torch


def refuses(x, scale=None, *, q_dtype, **_):
    return "" if q_dtype is not None else "it gives codes of one dtype only"


def quantize_each(fp8: Callable, int8: Callable, x, scale, *, q_dtype, **how) -> tuple[list, ...]:
    """Each tensor by a backend's quantize_fp8 or quantize_int8; a list for each of the outputs."""
    made = []
    for tensor, own in zip(x, scale or [None] * len(x), strict=True):
        if q_dtype == torch.int8:
            one = int8(tensor, own, group_size=128, hadamard=0, transposed=False, **how)
        else:
            one = fp8(tensor, own, q_dtype=q_dtype, transposed=False, **how)
        made.append(one if isinstance(one, tuple) else (one,))
    return tuple(list(each) for each in zip(*made, strict=True))
