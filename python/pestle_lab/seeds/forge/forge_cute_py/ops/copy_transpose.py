from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import copy_transpose as kernels
from ._common import check, check_out, define


def _check(x: Tensor, tile_size: int) -> None:
    check(x, "copy_transpose")
    if tile_size not in (16, 32):
        raise ValueError(f"copy_transpose: tile_size is {tile_size}, it must be 16 or 32")


def _fill(x: Tensor, out: Tensor, tile_size: int = 16) -> None:
    _check(x, tile_size)
    check_out(out, x, (x.shape[1], x.shape[0]), "copy_transpose")
    kernels.copy_transpose(x, out, tile_size)


define("_copy_transpose(Tensor x, Tensor(a!) out, int tile_size=16) -> ()", _fill)


class _Transpose(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, tile_size: int) -> Tensor:
        out = x.new_empty(x.shape[1], x.shape[0])
        torch.ops.forge_cute_py._copy_transpose(x, out, tile_size)
        return out

    @staticmethod
    def backward(ctx, d_out: Tensor):
        return d_out.mT, None


def copy_transpose(x: Tensor, tile_size: int = 16) -> Tensor:
    """x transposed, in memory of its own."""
    _check(x, tile_size)
    return _Transpose.apply(x, tile_size)
