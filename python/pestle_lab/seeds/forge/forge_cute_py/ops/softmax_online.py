"""Softmax of rows by one of several backends; their registry is Pestle's."""

from __future__ import annotations

import pestle.compat.forge_cute as registry
from pestle.compat.forge_cute import (
    get_softmax_online_backend,
    list_softmax_online_backends,
    register_softmax_online_backend,
    set_softmax_online_backend,
)
from torch import Tensor, empty_like, ops

from ..kernels import softmax_online as kernels
from ..ref.softmax_online import of_rows

__all__ = [
    "get_softmax_online_backend",
    "list_softmax_online_backends",
    "register_softmax_online_backend",
    "set_softmax_online_backend",
    "softmax_bwd",
    "softmax_fwd",
    "softmax_online",
]

register_softmax_online_backend("kernel", kernels.softmax, kernels.softmax_backward, overwrite=True)
# PyTorch's is what callers of this package get unless they ask for the kernel.
set_softmax_online_backend("ref")


def softmax_online(x: Tensor, dim: int = -1) -> Tensor:
    """With its gradient, by the backend that is set."""
    return registry.softmax_online(x, of_rows(dim))


def softmax_fwd(x: Tensor, dim: int = -1) -> Tensor:
    """Without a gradient, by the backend that is set."""
    y = empty_like(x)
    ops.forge_cute_py._softmax_fwd(x, y, of_rows(dim))
    return y


def softmax_bwd(dy: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    dx = empty_like(y)
    ops.forge_cute_py._softmax_backward(dy, y, dx, of_rows(dim))
    return dx
