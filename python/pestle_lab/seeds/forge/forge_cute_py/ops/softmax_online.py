"""Softmax by one of several backends; the registry and the ops that fill `out` are Pestle's."""

from __future__ import annotations

from pestle.compat.forge_cute import (
    get_softmax_online_backend,
    list_softmax_online_backends,
    register_softmax_online_backend,
    set_softmax_online_backend,
    softmax_online,
)
from torch import Tensor, empty_like, ops

from ..kernels import softmax_online as kernels

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


def softmax_fwd(x: Tensor, dim: int = -1) -> Tensor:
    """Without a gradient, by the backend that is set."""
    y = empty_like(x)
    ops.forge_cute_py._softmax_fwd(x, y, dim)
    return y


def softmax_bwd(dy: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    dx = empty_like(y)
    ops.forge_cute_py._softmax_backward(dy, y, dx, dim)
    return dx
