"""What every CuTe DSL kernel here needs: compiled once for its dtypes and options, launched on
PyTorch's current stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack

_compiled: dict[tuple, Callable] = {}


def launch(
    jit: Callable, tensors: list[torch.Tensor], *options: int, numbers: Sequence[float] = ()
) -> None:
    """jit(*tensors, *options, *numbers, stream); options are constants of the kernel, numbers and
    extents are not."""
    given = [from_dlpack(t.detach()).mark_layout_dynamic(leading_dim=t.dim() - 1) for t in tensors]
    stream = driver.CUstream(torch.cuda.current_stream(tensors[0].device).cuda_stream)
    values = [cutlass.Float32(number) for number in numbers]
    key = (jit, options, *((t.dtype, t.dim()) for t in tensors))
    if key not in _compiled:
        _compiled[key] = cute.compile(jit, *given, *options, *values, stream)
    _compiled[key](*given, *values, stream)
