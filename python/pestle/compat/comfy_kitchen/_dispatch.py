"""Makes a public function from its signature, and takes its calls to a backend."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps

import torch

import pestle

from .exceptions import NoCapableBackendError
from .registry import registry


def public(stub: Callable) -> Callable:
    """The function that `stub` declares, with `backend` by keyword beside its own arguments."""
    own = inspect.signature(stub)
    kinds = own.parameters.values()
    name = stub.__name__
    positional = tuple(p.name for p in kinds if p.kind is not p.KEYWORD_ONLY)
    defaults = {p.name: p.default for p in kinds if p.default is not p.empty}
    count = len(own.parameters)

    @wraps(stub)
    def call(*args, backend: str | None = None, **kwargs):
        given = dict(zip(positional, args, strict=False)) | kwargs
        values = defaults | given
        if len(values) != count or len(given) != len(args) + len(kwargs):
            own.bind(*args, **kwargs)  # raises TypeError, in Python's own words
        return dispatch(name, values, backend)

    extra = inspect.Parameter("backend", inspect.Parameter.KEYWORD_ONLY, default=None)
    call.__signature__ = own.replace(parameters=[*own.parameters.values(), extra])
    return call


def dispatch(name: str, values: dict, backend: str | None):
    """Runs the call on the first backend whose rules it keeps.

    Rules are data, and an op may still refuse, before it writes anything: then the next is asked.
    """
    if torch.compiler.is_compiling():
        return registry.get_implementation(name, backend, values)(**values)
    if backend is not None:
        implementation = registry.get_implementation(name, backend, values)
        try:
            return implementation(**values)
        except pestle.NoCapableBackendError as error:
            raise NoCapableBackendError(name, {backend: str(error)}) from None
    failures: dict[str, str] = {}
    while True:
        chosen = registry.get_capable_backend(name, values, failures)
        for runs in (registry.helper(chosen, name, values), chosen):
            if runs is None:
                continue
            try:
                return registry.function(runs, name)(**values)
            except pestle.NoCapableBackendError as error:
                failures[runs] = str(error)
                registry.fell_through(name, runs, str(error))
