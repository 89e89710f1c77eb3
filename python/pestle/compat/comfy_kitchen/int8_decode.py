"""A growing INT8 cache for decoding: names that Pestle has no op for yet."""

from __future__ import annotations

import torch

from ._not_yet import refused


def is_available(device: torch.device | None = None) -> bool:
    return False


class Int8DecodeCache:
    def __init__(self, batch: int, heads: int, capacity: int, device: torch.device):
        raise refused("Int8DecodeCache")


__all__ = ["Int8DecodeCache", "is_available"]
