"""Pestle as one backend, `pestle`, of another comfy-kitchen's registry.

There a call is judged by rules alone, so the rule of each function asks our own registry. When an
op refuses after all, before it wrote anything, the call goes on to the other backends there. Our
`eager` stays out: a kernel of theirs is to be preferred to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pestle

from ._serve import ADAPTERS
from .registry import registry as ours

NAME = "pestle"
_BACKENDS = ("cuda", "triton", "cpu")


def _verdicts(name: str, kwargs) -> dict:
    return {b: ours.validate_backend_for_call(b, name, kwargs) for b in _BACKENDS}


def _rule(name: str, result) -> Callable:
    """The call rule that holds when one of our backends takes the call."""

    def check(kwargs):
        verdicts = _verdicts(name, kwargs)
        if any(verdict.success for verdict in verdicts.values()):
            return result.ok()
        reasons = "; ".join(f"{backend}: {verdict}" for backend, verdict in verdicts.items())
        return result.fail(NAME, reasons)

    return check


def _run(theirs, name: str, *args, **kwargs):
    code = ADAPTERS[name].function.__code__
    values = dict(zip(code.co_varnames[1 : code.co_argcount], args, strict=False)) | kwargs
    for backend, verdict in _verdicts(name, values).items():
        if not verdict.success:
            continue
        try:
            return ours.function(backend, name)(**values)
        except pestle.NoCapableBackendError as error:
            ours.fell_through(name, backend, str(error))
    for backend in getattr(theirs, "_priority", theirs.list_backends()):
        if backend == NAME:
            continue
        if theirs.validate_backend_for_call(backend, name, values).success:
            return theirs.get_implementation(name, backend, values)(**values)
    raise pestle.NoCapableBackendError(f"{name}: neither Pestle nor another backend takes the call")


def backend(theirs, constraints) -> tuple[SimpleNamespace, dict]:
    """The module to register there, and its rules as objects of that library's classes."""
    status = ours.list_backends()
    served = {n for b in _BACKENDS if b in status for n in status[b]["capabilities"]}
    names = [name for name in ADAPTERS if name in served]
    module = SimpleNamespace(**{name: partial(_run, theirs, name) for name in names})
    rules = {
        name: constraints.FunctionConstraints(
            default_devices=frozenset({"*"}),
            call_rules=(_rule(name, constraints.ValidationResult),),
        )
        for name in names
    }
    return module, rules
