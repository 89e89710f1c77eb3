"""Reductions over any set of dimensions, places of extremes, transposed copies."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..._backends import implements

_LARGEST = torch.finfo(torch.float32).max


def _split(x: Tensor, dims: int, keepdim: bool) -> tuple[Tensor, list[int]]:
    """x with its reduced dimensions, a bit each, joined as the last; and the result's shape."""
    reduced = [d for d in range(x.ndim) if dims >> d & 1]
    kept = [d for d in range(x.ndim) if d not in reduced]
    shape = [1 if d in reduced else n for d, n in enumerate(x.shape) if keepdim or d in kept]
    joined = math.prod(x.shape[d] for d in reduced)
    return x.permute([*kept, *reduced]).reshape([*(x.shape[d] for d in kept), joined]), shape


def _logsumexp(rows: Tensor) -> Tensor:
    base = rows.amax(-1)
    base = torch.where(base.isnan(), 0.0, base.clamp(-_LARGEST, _LARGEST))
    return base + (rows - base.unsqueeze(-1)).exp().sum(-1).log()


_EMPTY = {"amax": -math.inf, "max": -math.inf, "logsumexp": -math.inf, "amin": math.inf,
          "min": math.inf}  # fmt: skip
_REDUCERS = {
    "sum": lambda rows: rows.sum(-1),
    "mean": lambda rows: rows.sum(-1) / rows.shape[-1],
    "amax": lambda rows: rows.amax(-1),
    "max": lambda rows: rows.amax(-1),
    "amin": lambda rows: rows.amin(-1),
    "min": lambda rows: rows.amin(-1),
    "prod": lambda rows: rows.prod(-1),
    "norm": lambda rows: rows.square().sum(-1).sqrt(),
    "logsumexp": _logsumexp,
}


@implements("reduce", backend="eager")
def reduce(x, *, op, dims, keepdim, out_type):
    rows, shape = _split(x.float(), dims, keepdim)
    if rows.shape[-1] == 0 and op in _EMPTY:
        result = rows.new_full(rows.shape[:-1], _EMPTY[op])
    else:
        result = _REDUCERS[op](rows)
    return result.to(torch.float32 if out_type == "f32" else x.dtype).reshape(shape)


def _place(x: Tensor, dims: int, keepdim: bool, largest: bool) -> Tensor:
    """The first place of the extreme; NaN comes before everything; -1 of nothing."""
    rows, shape = _split(x.float(), dims, keepdim)
    count = rows.shape[-1]
    if count == 0:
        return torch.full(shape, -1, dtype=torch.int64, device=x.device)
    extreme = rows.amax(-1, keepdim=True) if largest else rows.amin(-1, keepdim=True)
    found = (rows == extreme) | rows.isnan()
    places = torch.arange(count, device=x.device)
    return torch.where(found, places, count).amin(-1).reshape(shape)


@implements("argmax", backend="eager")
def argmax(x, *, dims, keepdim):
    return _place(x, dims, keepdim, True)


@implements("argmin", backend="eager")
def argmin(x, *, dims, keepdim):
    return _place(x, dims, keepdim, False)


@implements("copy_transpose", backend="eager")
def copy_transpose(x, *, tile_size):
    return x.transpose(-1, -2).clone(memory_format=torch.contiguous_format)


def _prod_gradient(rows: Tensor) -> Tensor:
    """The product of all the others of a row, for each of its elements."""
    zero = rows == 0
    zeros = zero.sum(-1, keepdim=True)
    product = torch.where(zero, 1.0, rows).prod(-1, keepdim=True)
    slope = product / torch.where(zero, 1.0, rows)
    return torch.where((zeros > 1) | ((zeros == 1) & ~zero), 0.0, slope)


def _extreme_gradient(g: Tensor, rows: Tensor, op: str) -> Tensor:
    """g at the extreme, shared evenly by equal ones; elsewhere 0, also for an infinite g."""
    if rows.shape[-1] == 0:
        return rows
    largest = op in ("amax", "max")
    extreme = rows.amax(-1, keepdim=True) if largest else rows.amin(-1, keepdim=True)
    is_extreme = (rows == extreme) | (rows.isnan() & extreme.isnan())
    return torch.where(is_extreme, g / is_extreme.sum(-1, keepdim=True), 0.0)


@implements("reduce_backward", backend="eager")
def reduce_backward(d_out, x, y, *, op, dims, keepdim):
    rows, _ = _split(x.float(), dims, keepdim)
    g = d_out.float().reshape([*rows.shape[:-1], 1])
    y = y.float().reshape(g.shape)
    gradient = {
        "sum": lambda: g * torch.ones_like(rows),
        "mean": lambda: g * (torch.ones_like(rows) / rows.shape[-1]),
        "prod": lambda: g * _prod_gradient(rows),
        "norm": lambda: g * torch.where(y == 0, 0.0, rows / y),
        "logsumexp": lambda: g * (rows - y).exp(),
    }.get(op, lambda: _extreme_gradient(g, rows, op))()
    reduced = [d for d in range(x.ndim) if dims >> d & 1]
    order = [d for d in range(x.ndim) if d not in reduced] + reduced
    joined = gradient.reshape([x.shape[d] for d in order])
    back = sorted(range(x.ndim), key=order.__getitem__)
    return joined.permute(back).to(x.dtype)
