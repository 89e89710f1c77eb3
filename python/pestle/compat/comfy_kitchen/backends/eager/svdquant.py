"""Functions of the eager backend, under the name of comfy-kitchen's module, and its codes of 4
bits, two a byte, the even column in the low half."""

import torch

from ..._backend_module import attributes

_INT4_MAX = 7
_UINT4_MAX = 15


def _halves(packed: torch.Tensor) -> torch.Tensor:
    codes = packed.view(torch.uint8)
    return torch.stack((codes & 15, codes >> 4), -1).flatten(-2).view(torch.int8)


def _unpack_uint4_row_major(packed: torch.Tensor) -> torch.Tensor:
    """Codes from 0 to 15."""
    return _halves(packed)


def _unpack_int4_row_major(packed: torch.Tensor) -> torch.Tensor:
    """Codes from -8 to 7."""
    codes = _halves(packed)
    return torch.where(codes > 7, codes - 16, codes)


def _pack_int4_row_major(values: torch.Tensor) -> torch.Tensor:
    """Their inverse, of signed codes and unsigned ones."""
    if values.shape[-1] % 2:
        raise ValueError(f"the last dimension is {values.shape[-1]}: two codes lie in a byte")
    codes = values.to(torch.int8).view(torch.uint8) & 15
    return (codes[..., ::2] | (codes[..., 1::2] << 4)).view(torch.int8)


__getattr__, __dir__ = attributes("eager", __name__)
