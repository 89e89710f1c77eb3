"""What all ops check, and how they get a name under torch.ops.forge_cute_py."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_library = torch.library.Library("forge_cute_py", "FRAGMENT")


def check(x: Tensor, op: str) -> None:
    if x.ndim != 2:
        raise ValueError(f"{op}: x has shape {tuple(x.shape)}, it must have two dimensions")
    if x.dtype not in DTYPES:
        raise ValueError(f"{op}: x is {x.dtype}, it must be float16, bfloat16 or float32")


def axis(dim: int, op: str) -> int:
    if dim not in (-2, -1, 0, 1):
        raise ValueError(f"{op}: dim is {dim}, x has the dimensions 0 and 1 (or -2 and -1)")
    return dim % 2


def check_out(out: Tensor, x: Tensor, shape: tuple[int, ...], op: str) -> None:
    wanted = (shape, x.dtype, x.device)
    got = (tuple(out.shape), out.dtype, out.device)
    if got != wanted:
        raise ValueError(f"{op}: out is {got}, it must be {wanted}")


def define(schema: str, function: Callable[..., None]) -> None:
    """An op that fills `out` and returns nothing, so that torch.compile needs no more than a fake
    that does nothing. A process that has the name already (Pestle's own module of these ops was
    imported before) keeps what it has."""
    name = schema.partition("(")[0]
    if hasattr(torch.ops.forge_cute_py, name):
        return
    _library.define(schema)
    _library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"forge_cute_py::{name}", lambda *a, **k: None, lib=_library)
