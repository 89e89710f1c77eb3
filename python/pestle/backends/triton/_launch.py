"""Host side of the kernels: views that kernels take, kinds of elements, launches."""

from __future__ import annotations

import math

import torch
import triton

from ._device import INTERPRETED

KINDS = {
    torch.float32: 0, torch.bfloat16: 1, torch.float16: 2,
    torch.float8_e4m3fn: 3, torch.float8_e5m2: 4, torch.int8: 5,
}  # fmt: skip
_BYTES = {torch.uint8, torch.int8}
_U63 = (1 << 64) - 1


def kind(dtype: torch.dtype) -> int:
    """How _device.py knows the dtype."""
    return KINDS[dtype]


def raw(t: torch.Tensor) -> torch.Tensor:
    """The view that a kernel loads: 16-bit floats as integers, 8-bit floats as bytes."""
    if t.dtype in (torch.bfloat16, torch.float16):
        return t.view(torch.int16)
    if t.dtype.itemsize == 1 and t.dtype not in _BYTES:
        return t.view(torch.uint8)
    return t


def fresh(out: torch.Tensor | None, shape, dtype: torch.dtype, like: torch.Tensor) -> torch.Tensor:
    """Contiguous memory for an output: the given one where it is contiguous."""
    if out is not None and out.is_contiguous():
        return out
    return torch.empty(shape, dtype=dtype, device=like.device)


def finish(out, *made: torch.Tensor):
    """What an op returns: the tensors made, moved into the given ones where they are others."""
    if out is not None:
        targets = out if isinstance(out, tuple) else (out,)
        for target, tensor in zip(targets, made, strict=True):
            if target is not tensor:
                target.copy_(tensor)
    return made if len(made) > 1 else made[0]


def rows(t: torch.Tensor) -> torch.Tensor:
    """[*M, K] as [M, K]: a view wherever strides allow one, else a copy."""
    if t.ndim == 2:
        return t
    return t.reshape(math.prod(t.shape[:-1]), t.shape[-1])


def turned(codes: torch.Tensor) -> torch.Tensor:
    """[*M, K] bytes of any dtype as [K, M]."""
    return rows(codes).view(torch.uint8).t().contiguous().view(codes.dtype)


def flat(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Contiguous tensors as one row each; otherwise as rows."""
    if all(t.is_contiguous() for t in tensors):
        return tuple(t.view(1, -1) for t in tensors)
    return tuple(rows(t) for t in tensors)


def hardware(t: torch.Tensor) -> int:
    """HW of _device.py: what the GPU can do beyond Triton's own operations."""
    capability = capability_of(t)
    return int(capability >= (8, 0)) + int(capability >= (8, 9))


def capability_of(t: torch.Tensor) -> tuple[int, int]:
    if not t.is_cuda or INTERPRETED.value or torch.version.hip:
        return (0, 0)
    index = t.device.index
    if index not in _capabilities:
        _capabilities[index] = torch.cuda.get_device_capability(index)
    return _capabilities[index]


_capabilities: dict[int, tuple[int, int]] = {}


def processors(t: torch.Tensor) -> int:
    if not t.is_cuda:
        return 2
    return torch.cuda.get_device_properties(t.device).multi_processor_count


def seed_words(seed: int) -> tuple[int, int]:
    """The 64 bits of a seed as two signed 32-bit numbers."""
    words = seed & _U63
    halves = words & 0xFFFFFFFF, words >> 32
    return tuple(h - (1 << 32) if h >> 31 else h for h in halves)


def power_of_2(n: int) -> int:
    return triton.next_power_of_2(max(n, 1))


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    return cdiv(a, b) * b


def start(kernel, programs: int, arguments: tuple, options: dict) -> None:
    kernel[(programs,)](*arguments, **options)


def launch(kernel, programs: int, like: torch.Tensor, *args, warps: int = 4, **constants) -> None:
    """Starts `programs` programs on the tensor's device and its current stream; none for 0."""
    if programs == 0:
        return
    options = {"num_warps": warps, "enable_fp_fusion": False, **constants}
    if like.is_cuda and like.device.index != torch.cuda.current_device():
        with torch.cuda.device(like.device):
            start(kernel, programs, args, options)
    else:
        start(kernel, programs, args, options)
