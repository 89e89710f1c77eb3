"""The Python function of each op, made from its contract when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from . import _autograd, _backends, _contract, _dispatch, _generated, _library, _python_ops, _source
from ._forms import all_forms, forms_of
from .errors import UnsupportedError

_SCOPE = {
    "_after": _dispatch.after,
    "_any_grad": _autograd.any_requires_grad,
    "_below": torch._C._AutoDispatchBelowAutograd,  # in force from when it is made
    "_choose": _dispatch.choose,
    "_compiling": torch.compiler.is_compiling,
    "_debug": _backends.logger.isEnabledFor,
    "_dtypes": _contract.DTYPES,
    "_first": _dispatch.first,
    "_grad_on": torch.is_grad_enabled,
    "_in_jit": torch._C._get_tracing_state,
    "_overridden": torch._C._has_torch_function_variadic,
    "_in_func": torch._C._are_functorch_transforms_active,
    "_in_inference": torch.is_inference_mode_enabled,
    "_selected": _backends.selected,
    "_settings": _backends.settings,
    "_traced": _dispatch.traced,
}


def names() -> list[str]:
    """Functions that exist: one per op, and name_ where it has an in-place form."""
    ops = list(dict.fromkeys(form.op for form in all_forms()))
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
    scope |= {target: _python_ops.overloads(form) for target, form in targets.items()}
    # What OpOverload.__call__ calls, without its frame; dynamo, which knows OpOverloads, never
    # comes here.
    scope |= {f"{target}_op": form.overload._op for target, form in targets.items()}
    scope |= {f"{target}_recorded": _autograd.recording(form) for target, form in targets.items()}
    scope |= _SCOPE
    exec(compile(source, f"<pestle.{name}>", "exec"), scope)
    made = scope[name]
    made.__doc__ = _source.docstring(op, in_place)
    made.__module__ = "pestle"
    return made
