"""llama.cpp's blocks, read only: docs/formats/gguf.md."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._backends import implements

_BYTES = {"q8_0": 34, "q4_0": 18, "q4_k": 144, "q6_k": 210}


def _half(block: Tensor, at: int) -> Tensor:
    """The little-endian f16 at a byte of each block, as f32 [B, 1]."""
    return block[:, at : at + 2].contiguous().view(torch.float16).float()


def _signed(block: Tensor) -> Tensor:
    return block.contiguous().view(torch.int8).float()


def _q8_0(block: Tensor) -> Tensor:
    return _signed(block[:, 2:]) * _half(block, 0)


def _q4_0(block: Tensor) -> Tensor:
    codes = torch.cat((block[:, 2:] & 0xF, block[:, 2:] >> 4), 1)
    return _half(block, 0) * (codes.int() - 8).float()


def _q4_k(block: Tensor) -> Tensor:
    first, second, third = block[:, 4:8], block[:, 8:12], block[:, 12:16]
    scale = torch.cat((first & 63, third & 0xF | first >> 6 << 4), 1).float()
    least = torch.cat((second & 63, third >> 4 | second >> 6 << 4), 1).float()
    bytes_of_pairs = block[:, 16:].reshape(-1, 4, 1, 32)
    codes = torch.cat((bytes_of_pairs & 0xF, bytes_of_pairs >> 4), 2).reshape(-1, 8, 32)
    product = (_half(block, 0) * scale)[..., None] * codes.float()
    return (product - (_half(block, 2) * least)[..., None]).reshape(-1, 256)


def _q6_k(block: Tensor) -> Tensor:
    low = block[:, :128].reshape(-1, 2, 1, 64)
    low = torch.cat((low & 0xF, low >> 4), 2).reshape(-1, 256)
    high = block[:, 128:192].reshape(-1, 2, 1, 32)
    high = torch.cat([high >> shift & 3 for shift in (0, 2, 4, 6)], 2).reshape(-1, 256)
    scale = _half(block, 208) * _signed(block[:, 192:208])
    codes = (low | high << 4).int() - 32
    return scale.repeat_interleave(16, 1) * codes.float()


_DECODERS = {"q8_0": _q8_0, "q4_0": _q4_0, "q4_k": _q4_k, "q6_k": _q6_k}


@implements("dequantize_gguf", backend="eager")
def dequantize_gguf(q, *, type, out_dtype):
    rows, width = q.shape
    count = width // _BYTES[type]
    values = _DECODERS[type](q.reshape(rows * count, _BYTES[type]))
    return values.to(out_dtype).reshape(rows, count * (32 if type in ("q8_0", "q4_0") else 256))
