"""A growing INT8 cache for decoding, which Pestle refuses: its attention reads floats."""

from __future__ import annotations

import torch

from ._refused import refused


def is_available(device: torch.device | None = None) -> bool:
    return False


class Int8DecodeCache:
    def __init__(self, batch: int, heads: int, capacity: int, device: torch.device):
        raise refused("Int8DecodeCache")


__all__ = ["Int8DecodeCache", "is_available"]
