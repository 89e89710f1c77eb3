"""The Python function of each op, made from its contract when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from . import _contract, _generated, _library, _source
from ._forms import forms_of
from .errors import UnsupportedError, typed


def names() -> list[str]:
    """Functions that exist: one per op, and name_ where it has an in-place form."""
    ops = [op for op in _library.contracts() if forms_of(op)]
    return ops + [f"{op}_" for op in ops if forms_of(op, "in_place")]


@cache
def function(name: str) -> Callable:
    in_place = name.endswith("_")
    op_name = name[:-1] if in_place else name
    if op_name in (unbound := _library.forms()["unbound"]):
        raise UnsupportedError(f"{op_name} is not bound to torch: {unbound[op_name]}")
    op = _contract.op(op_name)
    _source.check_names(op)
    source, targets = _source.source(op, in_place)
    # A module of its own, with names of their own: torch.compile looks globals up by module name.
    scope = vars(_generated)
    scope |= {target: form.overload for target, form in targets.items()}
    scope |= {"_typed": typed, "_dtypes": _contract.DTYPES}
    exec(compile(source, f"<pestle.{name}>", "exec"), scope)
    made = scope[name]
    made.__doc__ = _source.docstring(op, in_place)
    made.__module__ = "pestle"
    return made
