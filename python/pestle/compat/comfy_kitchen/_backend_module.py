"""What a module of comfy_kitchen.backends has: functions with that backend chosen."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

from . import _functions, _not_yet
from ._dispatch import dispatch
from ._serve import ADAPTERS


def _public(name: str) -> Callable | None:
    for module in (_functions, _not_yet):
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
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*_functions.__all__, *ADAPTERS})

    return get, names
