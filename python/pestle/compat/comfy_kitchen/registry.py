"""The backends that serve the functions of this package, and the choice among them.

A backend is any object that has functions by the public names, with the rules of each
(`register`). A call goes to the first backend, in the order of priority, whose rules it keeps;
`use_backend` puts one before all others for the thread (or task) that it was called in. What
falls to `eager` by that order runs on backend `cpu`, Pestle's kernels, where these take it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from pestle._dispatch import guard_result

from .constraints import FunctionConstraints, ValidationResult, validate_function_call
from .exceptions import (
    BackendNotFoundError,
    BackendNotImplementedError,
    FunctionNotServedError,
    NoCapableBackendError,
)

logger = logging.getLogger("comfy_kitchen.dispatch")

UNKNOWN = "comfy-kitchen 0.2.40 has no function of this name"


def _log(*message: object) -> None:
    # Costs nothing when off; and torch.compile can't trace a logger.
    if not torch.compiler.is_compiling() and logger.isEnabledFor(logging.DEBUG):
        logger.debug(*message)


def _capability_of(kwargs: Mapping[str, object]) -> tuple[int, int] | None:
    """Of the device of the first CUDA tensor, so that mixed GPUs are each judged by themselves."""
    for value in kwargs.values():
        if isinstance(value, torch.Tensor) and value.is_cuda:
            return torch.cuda.get_device_capability(value.device)
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None


_forced: ContextVar[str | None] = ContextVar("comfy_kitchen_backend", default=None)


def forced_backend() -> str | None:
    """What use_backend says, here and now."""
    return _forced.get()


def _forced_in_graph() -> str | None:
    """The same for torch.compile, which compiles again when it changes."""
    guard_result(__name__, "forced_backend")
    return _forced.get()


# What torch.compiler.assume_constant_result does, without importing dynamo.
_forced_in_graph._dynamo_marked_constant = True


class BackendRegistry:
    def __init__(self):
        self._backends: dict[str, object] = {}
        self._constraints: dict[str, dict[str, FunctionConstraints]] = {}
        self._priority: tuple[str, ...] = ("cuda", "triton", "eager")
        self._helpers: dict[str, str] = {}
        self._disabled: frozenset[str] = frozenset()
        self._unavailable: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._lock = threading.Lock()

    # ---- what there is

    def register(
        self, name: str, module: object, capabilities: dict[str, FunctionConstraints]
    ) -> None:
        """Adds a backend, or replaces it: `module` has the functions that `capabilities` names."""
        with self._lock:
            self._backends[name] = module
            self._constraints[name] = dict(capabilities)
            self._unavailable.pop(name, None)

    def help_out(self, name: str, helper: str) -> None:
        """What falls to `name` by priority, and was not asked of it by name, goes to `helper` where
        that takes the call."""
        with self._lock:
            self._helpers[name] = helper

    def mark_unavailable(self, name: str, reason: str) -> None:
        """Keeps why a backend could not be registered, for list_backends and errors."""
        with self._lock:
            self._unavailable[name] = reason

    def explain(self, func_names: Iterable[str], reason: str) -> None:
        """Keeps why functions have no backend, for the error that a call of them raises."""
        with self._lock:
            self._reasons |= dict.fromkeys(func_names, reason)

    def reason(self, func_name: str) -> str:
        return self._reasons.get(func_name, UNKNOWN)

    def disable(self, backend_name: str) -> None:
        with self._lock:
            self._disabled |= {backend_name}

    def enable(self, backend_name: str) -> None:
        with self._lock:
            self._disabled -= {backend_name}

    def set_priority(self, priority_list: list[str]) -> None:
        """The order in which backends are asked; one that it leaves out is not asked at all."""
        with self._lock:
            self._priority = tuple(priority_list)

    def is_available(self, backend_name: str) -> bool:
        return backend_name in self._backends and backend_name not in self._disabled

    def get_constraints(self, backend_name: str, func_name: str) -> FunctionConstraints | None:
        return self._constraints.get(backend_name, {}).get(func_name)

    def list_backends(self) -> dict[str, dict]:
        """Of every backend: available, disabled, unavailable_reason, capabilities."""
        names = dict.fromkeys([*self._priority, *self._backends, *self._unavailable])
        return {
            name: {
                "available": name in self._backends,
                "disabled": name in self._disabled,
                "unavailable_reason": self._unavailable.get(name),
                "capabilities": sorted(self._constraints.get(name, ())),
            }
            for name in names
        }

    def fell_through(self, func_name: str, backend_name: str, reason: str) -> None:
        _log("%s falls through: backend %s refuses: %s", func_name, backend_name, reason)

    # ---- which one takes a call

    def validate_backend_for_call(
        self, backend_name: str, func_name: str, kwargs: Mapping[str, object]
    ) -> ValidationResult:
        if not self.is_available(backend_name):
            return ValidationResult.fail("__backend__", self._why_not(backend_name))
        if func_name not in self._constraints[backend_name]:
            return ValidationResult.fail("__function__", "not implemented")
        rules = self._constraints[backend_name][func_name]
        if rules is None:
            return ValidationResult.ok()
        capability = _capability_of(kwargs) if rules.min_compute_capability else None
        return validate_function_call(rules, kwargs, capability)

    def get_capable_backend(
        self,
        func_name: str,
        kwargs: Mapping[str, object] | None = None,
        failures: dict[str, str] | None = None,
    ) -> str:
        """The backend that will run the call. Without arguments their rules are not looked at.
        Backends that `failures` names are passed over; the reasons of others are added there."""
        forced = _forced_in_graph() if torch.compiler.is_compiling() else forced_backend()
        failures = {} if failures is None else failures
        candidates = self._priority if forced is None else (forced, *self._priority)
        for name in candidates:
            if name in failures:
                continue
            refusal = self._refusal(name, func_name, kwargs)
            if refusal is None:
                _log("%s runs on backend %s", func_name, name)
                return name
            failures[name] = refusal
            if name == forced:
                self.fell_through(func_name, name, refusal)
        if not self._anybody_has(func_name):
            raise FunctionNotServedError(func_name, None, self.reason(func_name))
        raise NoCapableBackendError(func_name, failures)

    def get_implementation(
        self,
        func_name: str,
        backend: str | None = None,
        kwargs: Mapping[str, object] | None = None,
    ) -> Callable:
        """The function that will run the call: of `backend`, or of the first that takes it."""
        if backend is None:
            backend = self.get_capable_backend(func_name, kwargs)
            return self.function(self.helper(backend, func_name, kwargs) or backend, func_name)
        if not self.is_available(backend):
            raise BackendNotFoundError(backend, self._why_not(backend))
        if func_name not in self._constraints[backend]:
            if not self._anybody_has(func_name):
                raise FunctionNotServedError(func_name, backend, self.reason(func_name))
            raise BackendNotImplementedError(backend, func_name)
        refusal = self._refusal(backend, func_name, kwargs)
        if refusal is not None:
            raise NoCapableBackendError(func_name, {backend: refusal})
        _log("%s runs on backend %s, as asked", func_name, backend)
        return self.function(backend, func_name)

    def helper(
        self, backend: str, func_name: str, kwargs: Mapping[str, object] | None
    ) -> str | None:
        """The backend that does this call for the one that was chosen, if any does."""
        other = self._helpers.get(backend)
        asked = _forced_in_graph() if torch.compiler.is_compiling() else forced_backend()
        if other is None or not kwargs or asked == backend:
            return None
        return None if self._refusal(other, func_name, kwargs) else other

    def function(self, backend: str, func_name: str) -> Callable:
        return getattr(self._backends[backend], func_name)

    @contextmanager
    def use_backend(self, backend_name: str) -> Iterator[None]:
        """Inside the block, calls of this thread or task go to this backend if it takes them, and
        to the others, in their order, if not."""
        if not self.is_available(backend_name):
            raise BackendNotFoundError(backend_name, self._why_not(backend_name))
        token = _forced.set(backend_name)
        try:
            yield
        finally:
            _forced.reset(token)

    def _refusal(
        self, name: str, func_name: str, kwargs: Mapping[str, object] | None
    ) -> str | None:
        if not kwargs:
            if not self.is_available(name):
                return self._why_not(name)
            return None if func_name in self._constraints[name] else "not implemented"
        result = self.validate_backend_for_call(name, func_name, kwargs)
        return None if result.success else str(result)

    def _anybody_has(self, func_name: str) -> bool:
        return any(func_name in rules for rules in self._constraints.values())

    def _why_not(self, name: str) -> str:
        if name in self._disabled:
            return "disabled"
        return self._unavailable.get(name, "not registered")


registry = BackendRegistry()
