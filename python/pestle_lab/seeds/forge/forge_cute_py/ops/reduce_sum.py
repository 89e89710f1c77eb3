from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import reduce_sum as kernels
from ._common import axis, check, check_out, define


def _checked(x: Tensor, dim: int) -> int:
    check(x, "reduce_sum")
    return axis(dim, "reduce_sum")


def _fill(x: Tensor, out: Tensor, dim: int = -1) -> None:
    along = _checked(x, dim)
    check_out(out, x, (x.shape[1 - along],), "reduce_sum")
    kernels.reduce_sum(x, out, along)


define("_reduce_sum(Tensor x, Tensor(a!) out, int dim=-1) -> ()", _fill)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, along: int) -> Tensor:
        ctx.along, ctx.size = along, x.shape[along]
        out = x.new_empty(x.shape[1 - along])
        torch.ops.forge_cute_py._reduce_sum(x, out, along)
        return out

    @staticmethod
    def backward(ctx, d_out: Tensor):
        return spread(d_out, ctx.along, ctx.size), None


def spread(d_out: Tensor, along: int, size: int) -> Tensor:
    """The gradient of a sum: each term gets that of the sum it went into."""
    sizes = [-1, -1]
    sizes[along] = size
    return d_out.unsqueeze(along).expand(sizes)


def reduce_sum(x: Tensor, dim: int = -1) -> Tensor:
    """The sum along a dimension, in f32 and rounded once, with its gradient."""
    return _Sum.apply(x, _checked(x, dim))
