"""Lists of tensors: each as the op that does one."""

from __future__ import annotations

from ..._backends import implements
from .._lists import quantize_each, refuses
from .fp8 import quantize_fp8
from .int8 import quantize_int8


@implements("quantize_list", backend="eager", refuses=refuses)
def quantize_list(x, scale=None, **how):
    return quantize_each(quantize_fp8, quantize_int8, x, scale, **how)
