"""The regular Hadamard rotation: docs/formats/hadamard.md."""

from __future__ import annotations

from ..._backends import implements
from . import _layouts, _numbers


@implements("hadamard", backend="eager")
def hadamard(x, *, hadamard, out_dtype):
    rotated = _layouts.rotate(_numbers.rows(x).float(), hadamard)
    return rotated.to(out_dtype).reshape(x.shape)
