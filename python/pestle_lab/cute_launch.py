"""What every CuTe DSL kernel here needs: compiled once for its dtypes and options, launched on
PyTorch's current stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack, make_ptr

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


def elements_at_once(tensors: Sequence[torch.Tensor], *extents: int) -> int:
    """How many elements one load takes: 16 bytes of them, or as many as divide the extents and the
    addresses."""
    size = tensors[0].element_size()
    return math.gcd(16 // size, *extents, *(t.data_ptr() // size for t in tensors))


_TYPES = {
    torch.float16: cutlass.Float16,
    torch.bfloat16: cutlass.BFloat16,
    torch.float32: cutlass.Float32,
}


def launch_at(
    jit: Callable,
    tensors: Sequence[torch.Tensor],
    *values: int | float,
    each: int,
    options: tuple[int, ...] = (),
) -> None:
    """jit(*pointers, *values, each, *options, stream) of contiguous tensors, whose addresses are
    multiples of `each` elements. Where `launch` has a tensor of CuTe's made of each one in every
    call, with its shape and strides, this hands over an address."""
    given = [
        make_ptr(_TYPES[t.dtype], t.data_ptr(), cute.AddressSpace.gmem, each * t.element_size())
        for t in tensors
    ]
    stream = driver.CUstream(torch.cuda.current_stream(tensors[0].device).cuda_stream)
    key = (jit, each, options, *(t.dtype for t in tensors))
    if key not in _compiled:
        _compiled[key] = cute.compile(jit, *given, *values, each, *options, stream)
    _compiled[key](*given, *values, stream)
