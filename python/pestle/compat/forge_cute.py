"""forge-cute-py's four ops over Pestle's: copy_transpose, reduce, reduce_sum, softmax_online, with
switchable backends of the last, and its names under torch.ops.forge_cute_py.

    from pestle.compat import forge_cute
    y = forge_cute.softmax_online(x)

Importing this module defines torch.ops.forge_cute_py._copy_transpose and its kin, where
forge-cute-py itself has not done so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import pestle

__all__ = [
    "copy_transpose",
    "get_softmax_online_backend",
    "list_softmax_online_backends",
    "reduce",
    "reduce_sum",
    "register_softmax_online_backend",
    "set_softmax_online_backend",
    "softmax_online",
]

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_REDUCTIONS = {
    "sum": "sum",
    "max": "amax",
    "amax": "amax",
    "min": "amin",
    "amin": "amin",
    "prod": "prod",
}


def _check(x: Tensor, op: str) -> None:
    if x.ndim != 2:
        raise ValueError(f"{op}: x has shape {tuple(x.shape)}, it must have two dimensions")
    if x.dtype not in _DTYPES:
        raise ValueError(f"{op}: x is {x.dtype}, it must be float16, bfloat16 or float32")


def _axis(x: Tensor, dim: int, op: str) -> int:
    if dim not in (-2, -1, 0, 1):
        raise ValueError(f"{op}: dim is {dim}, x has the dimensions 0 and 1 (or -2 and -1)")
    return dim % 2


# ---- copy_transpose, reduce, reduce_sum


def copy_transpose(x: Tensor, tile_size: int = 16) -> Tensor:
    """x.T in memory of its own. `tile_size`, 16 or 32, changes neither result nor speed."""
    _check(x, "copy_transpose")
    return pestle.copy_transpose(x, tile_size=tile_size)


class _Sum(torch.autograd.Function):
    """Pestle's reduce has no gradient yet; that of a sum needs no kernel."""

    @staticmethod
    def forward(ctx, x: Tensor, axis: int) -> Tensor:
        ctx.axis, ctx.size = axis, x.shape[axis]
        return pestle.reduce(x, dims=1 << axis, op="sum")

    @staticmethod
    def backward(ctx, d_out: Tensor):
        sizes = [-1, -1]
        sizes[ctx.axis] = ctx.size
        return d_out.unsqueeze(ctx.axis).expand(sizes), None


def reduce(x: Tensor, dim: int = -1, op: str = "sum") -> Tensor:
    """Sum, product, largest (max, amax) or smallest (min, amin) element along a dimension, summed
    in f32 and rounded once to x's dtype. A sum has a gradient, the others have none yet."""
    _check(x, "reduce")
    axis = _axis(x, dim, "reduce")
    if _operation(op) == "sum":
        return _Sum.apply(x, axis)
    return pestle.reduce(x, dims=1 << axis, op=_operation(op))


def _operation(op: str) -> str:
    if op not in _REDUCTIONS:
        raise ValueError(f'reduce: op is "{op}": use one of {", ".join(_REDUCTIONS)}')
    return _REDUCTIONS[op]


def reduce_sum(x: Tensor, dim: int = -1) -> Tensor:
    return reduce(x, dim, "sum")


# ---- softmax_online and its backends


@dataclass(frozen=True)
class _Backend:
    forward: Callable[[Tensor, int], Tensor]
    backward: Callable[[Tensor, Tensor, int], Tensor]
    fills_out: bool  # forward and backward take `out`, and fill it


def _formula(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    return y * (dy - (dy * y).sum(dim, keepdim=True))


def _takes_out(*functions: Callable) -> bool:
    try:
        return all("out" in inspect.signature(f).parameters for f in functions)
    except ValueError:  # written in C, without a signature
        return False


_backends: dict[str, _Backend] = {}
_current = "kernel"


def register_softmax_online_backend(
    name: str,
    forward_impl: Callable[[Tensor, int], Tensor],
    backward_impl: Callable[[Tensor, Tensor, int], Tensor] | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Adds a backend: forward_impl(x, dim) -> y and backward_impl(dy, y, dim) -> dx.

    `dim` is what the caller gave: -2, -1, 0 or 1. Without backward_impl the gradient is
    y * (dy - sum of dy * y). Implementations with a parameter `out` fill that when it is given,
    which saves torch.ops.forge_cute_py a copy.
    """
    if not name:
        raise ValueError("a backend needs a name")
    if not callable(forward_impl) or not (backward_impl is None or callable(backward_impl)):
        raise TypeError(f"backend '{name}': forward_impl and backward_impl must be callable")
    if name in _backends and not overwrite:
        raise ValueError(f"backend '{name}' is there already: overwrite=True replaces it")
    backward = backward_impl or _formula
    _backends[name] = _Backend(forward_impl, backward, _takes_out(forward_impl, backward))


def list_softmax_online_backends() -> tuple[str, ...]:
    return tuple(_backends)


def get_softmax_online_backend() -> str:
    return _current


def set_softmax_online_backend(name: str) -> None:
    """Sends all calls of this process to a backend: `kernel`, Pestle's op and the default; `ref`,
    PyTorch's; or one that was registered."""
    global _current
    if name not in _backends:
        known = ", ".join(_backends)
        raise ValueError(f"Unknown softmax_online backend '{name}': {known} are registered")
    _current = name


def _checked(result: object, like: Tensor, what: str) -> Tensor:
    """A backend's result, which is given on as it is: looked at, never copied."""
    if not isinstance(result, Tensor):
        raise TypeError(f"{what} gave {type(result).__name__}, not a tensor")
    for name in ("shape", "dtype", "device"):
        got, wanted = getattr(result, name), getattr(like, name)
        if got != wanted:
            raise ValueError(f"{what} gave a tensor of {name} {got}, wanted was {wanted}")
    return result


def _share_memory(x: Tensor, y: Tensor) -> bool:
    return x.numel() > 0 and y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, dim: int, name: str) -> Tensor:
        y = _checked(_backends[name].forward(x, dim), x, f"the forward of backend '{name}'")
        # In a graph there are no addresses, and a result that is x itself is seen by autograd.
        if not torch.compiler.is_compiling() and _share_memory(x, y):
            raise ValueError(f"the forward of backend '{name}' gave x's own memory")
        ctx.save_for_backward(y)
        ctx.dim, ctx.name = dim, name
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy: Tensor):
        (y,) = ctx.saved_tensors
        dx = _backends[ctx.name].backward(dy, y, ctx.dim)
        return _checked(dx, y, f"the backward of backend '{ctx.name}'"), None, None


def softmax_online(x: Tensor, dim: int = -1) -> Tensor:
    """Softmax along a dimension, with its gradient, by the backend that is set."""
    _check(x, "softmax_online")
    axis = _axis(x, dim, "softmax_online")
    if (
        _current == "kernel" and _backends["kernel"].forward is _kernel_forward
    ):  # has a gradient of its own, and is one node for torch.compile
        return pestle.softmax(x, dim=axis)
    return _Softmax.apply(x, dim, _current)


def _kernel_forward(x: Tensor, dim: int, out: Tensor | None = None) -> Tensor:
    if out is None:
        return pestle.softmax(x, dim=dim)
    torch.ops.pestle.softmax.out(x, dim=dim, out=out)
    return out


def _kernel_backward(dy: Tensor, y: Tensor, dim: int, out: Tensor | None = None) -> Tensor:
    if out is None:
        return pestle.softmax_backward(dy, y, dim=dim)
    torch.ops.pestle.softmax_backward.out(dy, y, dim=dim, d_x=out)
    return out


def _ref_forward(x: Tensor, dim: int) -> Tensor:
    y = torch.softmax(x, dim, dtype=torch.float32)
    # No conversion that changes nothing: in a graph, torch then loses the gradient.
    return y if x.dtype == torch.float32 else y.to(x.dtype)


def _ref_backward(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    return _formula(dy.float(), y.float(), dim).to(y.dtype)


register_softmax_online_backend("ref", _ref_forward, _ref_backward)
register_softmax_online_backend("kernel", _kernel_forward, _kernel_backward)


# ---- torch.ops.forge_cute_py: forms that fill `out` and return nothing


def _copy_transpose_out(x: Tensor, out: Tensor, tile_size: int = 16) -> None:
    _check(x, "copy_transpose")
    torch.ops.pestle.copy_transpose.out(x, tile_size=tile_size, out=out)


def _reduce_out(x: Tensor, out: Tensor, dim: int = -1, op: str = "sum") -> None:
    _check(x, "reduce")
    dims, op = 1 << _axis(x, dim, "reduce"), _operation(op)
    torch.ops.pestle.reduce.out(x, dims=dims, op=op, out=out)


def _reduce_sum_out(x: Tensor, out: Tensor, dim: int = -1) -> None:
    _reduce_out(x, out, dim)


def _into(run: Callable, arguments: tuple, out: Tensor, fills_out: bool) -> None:
    if fills_out:
        run(*arguments, out=out)
    else:
        out.copy_(_checked(run(*arguments), out, f"backend '{_current}'"))


def _softmax_fwd_out(x: Tensor, out: Tensor, dim: int = -1) -> None:
    _check(x, "softmax_online")
    _axis(x, dim, "softmax_online")
    backend = _backends[_current]
    _into(backend.forward, (x, dim), out, backend.fills_out)


def _softmax_bwd_out(dy: Tensor, y: Tensor, dx: Tensor, dim: int = -1) -> None:
    _check(y, "softmax_online")
    _axis(y, dim, "softmax_online")
    backend = _backends[_current]
    _into(backend.backward, (dy, y, dim), dx, backend.fills_out)


_OPS = {
    "_copy_transpose(Tensor x, Tensor(a!) out, int tile_size=16) -> ()": _copy_transpose_out,
    "_reduce(Tensor x, Tensor(a!) out, int dim=-1, str op='sum') -> ()": _reduce_out,
    "_reduce_sum(Tensor x, Tensor(a!) out, int dim=-1) -> ()": _reduce_sum_out,
    "_softmax_fwd(Tensor x, Tensor(a!) out, int dim=-1) -> ()": _softmax_fwd_out,
    "_softmax_backward(Tensor dy, Tensor y, Tensor(a!) dx, int dim=-1) -> ()": _softmax_bwd_out,
}


def _define_ops() -> torch.library.Library:
    """Kept for the life of the process. What forge-cute-py has defined itself stays as it is."""
    library = torch.library.Library("forge_cute_py", "FRAGMENT")
    for schema, function in _OPS.items():
        name = schema.partition("(")[0]
        if hasattr(torch.ops.forge_cute_py, name):
            continue
        library.define(schema)
        library.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"forge_cute_py::{name}", lambda *a, **k: None, lib=library)
    return library


_library = _define_ops()
