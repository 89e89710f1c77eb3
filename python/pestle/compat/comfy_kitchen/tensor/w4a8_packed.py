"""Codes of W4A8 in bytes and in records, and its fixed codebook."""

import torch

from pestle.backends._codebook import W4A8

from .._w4a8 import pack as _pack_codes
from .._w4a8 import record_bits as _mma_bits  # noqa: F401
from .._w4a8 import record_bytes as w4a8_mma_record_bytes
from .._w4a8 import unpack as _unpack_codes
from .._w4a8 import unpack_records as unpack_w4a8_mma_weight

_FIXED_LUT = tuple(W4A8)


def default_w4a8_codebook() -> torch.Tensor:
    """The 16 levels that a weight gets where no others are given."""
    return torch.tensor(W4A8, dtype=torch.float32)


__all__ = [
    "_pack_codes",
    "_unpack_codes",
    "default_w4a8_codebook",
    "unpack_w4a8_mma_weight",
    "w4a8_mma_record_bytes",
]
