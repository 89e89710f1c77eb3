"""Codes of 4 bits, two a byte, the even column in the low half."""

from __future__ import annotations

import torch
from torch import Tensor

INT4_MAX = 7  # signed codes are symmetric
UINT4_MAX = 15


def unpack_uint4(packed: Tensor) -> Tensor:
    """Codes from 0 to 15, as int8."""
    codes = packed.view(torch.uint8)
    return torch.stack((codes & 15, codes >> 4), -1).flatten(-2).view(torch.int8)


def unpack_int4(packed: Tensor) -> Tensor:
    """Codes from -8 to 7."""
    codes = unpack_uint4(packed)
    return torch.where(codes > 7, codes - 16, codes)


def pack_int4(values: Tensor) -> Tensor:
    """Their inverse, of signed codes and unsigned ones."""
    if values.shape[-1] % 2:
        raise ValueError(f"the last dimension is {values.shape[-1]}: two codes lie in a byte")
    codes = values.to(torch.int8).view(torch.uint8) & 15
    return (codes[..., ::2] | (codes[..., 1::2] << 4)).view(torch.int8)
