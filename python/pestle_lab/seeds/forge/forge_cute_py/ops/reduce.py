from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import reduce as kernels
from ._common import axis, check, check_out, define
from .reduce_sum import spread

_NAMES = {
    "sum": "sum",
    "max": "amax",
    "amax": "amax",
    "min": "amin",
    "amin": "amin",
    "prod": "prod",
}


def _checked(x: Tensor, dim: int, op: str) -> tuple[int, str]:
    check(x, "reduce")
    if op not in _NAMES:
        raise ValueError(f'reduce: op is "{op}": use one of {", ".join(_NAMES)}')
    return axis(dim, "reduce"), _NAMES[op]


def _fill(x: Tensor, out: Tensor, dim: int = -1, op: str = "sum") -> None:
    along, op = _checked(x, dim, op)
    check_out(out, x, (x.shape[1 - along],), "reduce")
    kernels.reduce(x, out, along, op)


define("_reduce(Tensor x, Tensor(a!) out, int dim=-1, str op='sum') -> ()", _fill)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, along: int) -> Tensor:
        ctx.along, ctx.size = along, x.shape[along]
        out = x.new_empty(x.shape[1 - along])
        torch.ops.forge_cute_py._reduce(x, out, along, "sum")
        return out

    @staticmethod
    def backward(ctx, d_out: Tensor):
        return spread(d_out, ctx.along, ctx.size), None


def reduce(x: Tensor, dim: int = -1, op: str = "sum") -> Tensor:
    """Sum, product, largest or smallest along a dimension, in f32 and rounded once. A sum has a
    gradient; asking for another one's is an error."""
    along, op = _checked(x, dim, op)
    if op == "sum":
        return _Sum.apply(x, along)
    if x.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(f"reduce: {op} has no gradient here; detach x, or use sum")
    out = x.new_empty(x.shape[1 - along])
    torch.ops.forge_cute_py._reduce(x, out, along, op)
    return out
