"""The rotation of ConvRot as a matrix: what Pestle's ops do without one."""

from __future__ import annotations

from functools import cache

import torch


@cache
def _signs(size: int) -> torch.Tensor:
    step = torch.ones(4, 4, dtype=torch.float64)
    step -= 2 * torch.eye(4, dtype=torch.float64).flip(0)
    return step if size == 4 else torch.kron(_signs(size // 4), step)


def _build_hadamard(
    size: int, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The regular Hadamard matrix of a size that is a power of 4, times 1 / sqrt(size)."""
    if size < 4 or size & (size - 1) or size.bit_length() % 2 == 0:
        raise ValueError(f"Regular Hadamard size must be a power of 4, got {size}")
    return (_signs(size) / size**0.5).to(device, dtype)


def _rotated(x: torch.Tensor, matrix: torch.Tensor, group_size: int, what: str) -> torch.Tensor:
    columns = x.shape[-1]
    if columns % group_size:
        raise ValueError(f"{what} {columns} not divisible by group_size {group_size}")
    groups = x.reshape(-1, columns // group_size, group_size)
    return (groups @ matrix.to(x.device, x.dtype)).reshape(x.shape)


def _rotate_weight(weight: torch.Tensor, h: torch.Tensor, group_size: int) -> torch.Tensor:
    """Rotates each group of columns of a weight [N, K]."""
    return _rotated(weight, h.T, group_size, "in_features")


def _rotate_activation(x: torch.Tensor, h: torch.Tensor, group_size: int) -> torch.Tensor:
    """Rotates each group of columns of x [..., K]."""
    return _rotated(x, h, group_size, "features")
