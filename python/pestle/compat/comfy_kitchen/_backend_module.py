"""What a module of comfy_kitchen.backends has: functions with that backend chosen."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

from . import _functions, _refused, _rope_utils, constraints, float_utils, scaled_mm_v2
from ._dispatch import dispatch
from ._linears import activated, added
from ._quantizers import BY_CODE, DTYPE_TO_CODE
from ._serve import ADAPTERS
from .registry import registry

# What comfy-kitchen's modules of a backend import, and their callers from there.
_SHARED = {
    "DTYPE_CODE_TO_DTYPE": BY_CODE,
    "DTYPE_TO_CODE": DTYPE_TO_CODE,
    "apply_input_act": activated,
    "apply_residual": added,
    "registry": registry,
}
for _module in (constraints, float_utils, _rope_utils, scaled_mm_v2):
    _SHARED |= {
        name: value
        for name, value in vars(_module).items()
        if getattr(value, "__module__", None) == _module.__name__ or isinstance(value, int | float)
    }


def _public(name: str) -> Callable | None:
    for module in (_functions, _refused):
        if name in module.__all__:
            return getattr(module, name)
    return None


def unlisted(name: str, backend: str | None) -> Callable:
    """A function that a backend has and comfy_kitchen itself does not list."""
    declared = inspect.signature(ADAPTERS[name].function)
    own = declared.replace(parameters=list(declared.parameters.values())[1:])

    def call(*args, **kwargs):
        bound = own.bind(*args, **kwargs)
        bound.apply_defaults()
        return dispatch(name, bound.arguments, backend)

    call.__name__ = name
    call.__signature__ = own
    return call


def attributes(backend: str, module: str) -> tuple[Callable, Callable]:
    """__getattr__ and __dir__ of such a module."""

    def get(name: str):
        found = _public(name)
        if callable(found):
            return partial(found, backend=backend)
        if name in ADAPTERS:
            return unlisted(name, backend)
        if name in _SHARED and not name.startswith("_"):
            return _SHARED[name]
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*_functions.__all__, *ADAPTERS})

    return get, names
