"""Backends: which exist, what they implement, and which of them the caller wants.

`cuda` and `cpu` are the library's compiled implementations. `triton` and `eager` are written in
Python, one file per family of ops in `pestle/backends/NAME`, and imported when first needed:

    @implements("hadamard", backend="eager", refuses=lambda x, **options: None)
    def hadamard(x, *, hadamard, out_dtype): ...
"""

from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from . import _library
from .errors import InvalidArgumentError

logger = logging.getLogger("pestle.dispatch")

LIBRARY = ("cuda", "cpu")
PYTHON = {"triton": "pestle.backends.triton", "eager": "pestle.backends.eager"}
PRIORITY = ("cuda", "triton", "cpu", "eager")


@dataclass(frozen=True)
class Implementation:
    """One op of one Python backend."""

    op: str
    backend: str
    function: Callable
    refuses: Callable | None  # the function's arguments -> None, or a sentence: why not this call
    takes_out: bool  # has a parameter `out`, and writes there instead of returning

    @property
    def id(self) -> str:
        return f"{self.backend}/{self.op}"


def implements(op: str, *, backend: str, refuses: Callable | None = None) -> Callable:
    """Registers a function as an op's implementation.

    It is called as the op's Python function, after the contract was checked: inputs by position
    (absent ones None; of the contract's exact dtypes and ranks), attributes and the dtypes of
    outputs that have a choice by keyword, all of them given. It returns fresh tensors, or, if it
    has a parameter `out` that is not None, fills those (a tuple if the op has several outputs; an
    op with an input of this name can't have it).
    `refuses` sees the same arguments but `out`; it may look at shapes, strides, dtypes and devices,
    never at data, since its answer is remembered for calls that are equal in these.

    From outside of the package it takes the place of what the backend had, from then on.
    """
    if backend not in PYTHON:
        raise InvalidArgumentError(f"no backend {backend!r} takes implementations in Python")

    def register(function: Callable) -> Callable:
        is_own = function.__module__.startswith(f"{PYTHON[backend]}.")
        if not is_own:
            load(backend)
        contract = _library.contracts().get(op, {"args": []})
        inputs = [arg["name"] for arg in contract["args"] if arg["role"] == "input"]
        takes_out = "out" in inspect.signature(function).parameters and "out" not in inputs
        made = Implementation(op, backend, function, refuses, takes_out)
        _implementations.setdefault(backend, {})[op] = made
        if not is_own and not _loaded[backend]:
            for update in _after_load:
                update(backend)
        return function

    return register


class _Settings:
    """What is set for the whole process. `special`: not everything is as at the start."""

    priority = PRIORITY
    disabled: frozenset[str] = frozenset()
    special = False
    changes = 0

    def change(self, priority: tuple[str, ...], disabled: frozenset[str]) -> None:
        with _lock:
            self.priority, self.disabled = priority, disabled
            self.special = priority != PRIORITY or bool(disabled)
            self.changes += 1


_lock = threading.RLock()
_implementations: dict[str, dict[str, Implementation]] = {}
_loaded: dict[str, str] = {}  # backend -> why it is not available, or ""
_after_load: list[Callable[[str], None]] = []
_selected: ContextVar[tuple[str, ...] | None] = ContextVar("pestle_backend", default=None)
settings = _Settings()
selected = _selected.get


def known(names: str | tuple[str, ...]) -> tuple[str, ...]:
    """Names of backends as a tuple; InvalidArgumentError if there is another one."""
    result = (names,) if isinstance(names, str) else tuple(names)
    for name in result:
        if name not in PRIORITY:
            raise InvalidArgumentError(f"no backend {name!r}; there are {', '.join(PRIORITY)}")
    return result


def state() -> tuple:
    """Everything of the caller's wishes that the choice of a backend depends on."""
    return _selected.get(), settings.changes


def order(backend: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Candidates, best first: those that the call names, else the context, else all."""
    if backend is not None:
        return known(backend)
    return _selected.get() or settings.priority


@contextmanager
def use_backend(*names: str) -> Iterator[None]:
    """Inside, calls go to these backends only, tried in this order.

    Holds for this thread and this asyncio task. NoCapableBackendError if none takes a call.
    """
    if not names:
        raise InvalidArgumentError("use_backend needs the name of a backend")
    token = _selected.set(known(names))
    try:
        yield
    finally:
        _selected.reset(token)


def set_backend_priority(*names: str) -> None:
    """The order in which backends are tried, for the whole process.

    Backends that are not named follow in the usual order; without names it is the usual one.
    """
    first = known(names)
    settings.change(first + tuple(n for n in PRIORITY if n not in first), settings.disabled)


def enable_backend(name: str) -> None:
    """Undoes disable_backend."""
    settings.change(settings.priority, settings.disabled - set(known(name)))


def disable_backend(name: str) -> None:
    """No call goes to this backend any more, in the whole process."""
    settings.change(settings.priority, settings.disabled | set(known(name)))


def load(name: str) -> str:
    """Imports a Python backend once; returns why it is not available, or ""."""
    if name in _loaded:
        return _loaded[name]
    with _lock:
        if name not in _loaded:
            _loaded[name] = _import(name)
    return _loaded[name]


def _import(name: str) -> str:
    try:
        package = importlib.import_module(PYTHON[name])
        if reason := package.unavailable():
            return reason
        for module in pkgutil.iter_modules(package.__path__):
            if module.name.startswith("_"):
                continue
            importlib.import_module(f"{package.__name__}.{module.name}")
    except ImportError as error:
        return f"can't be imported: {error}"
    for function in _after_load:
        function(name)
    return ""


def implementation(name: str, op: str) -> Implementation | None:
    return _implementations.get(name, {}).get(op)


def implementations(name: str) -> dict[str, Implementation]:
    return _implementations.get(name, {})


def has_compiled(op: str, device_type: str) -> bool:
    """Whether the library has an implementation of the op for this kind of device."""
    return any(
        implementation["device"] == device_type
        for implementation in _library.contracts()[op]["implementations"]
    )


def refusal(name: str, op: str, device: torch.device | None) -> str:
    """Why a backend takes no call of this op on this device, whatever its arguments; or ""."""
    if name in settings.disabled:
        return f"is disabled: pestle.enable_backend({name!r}) undoes that"
    kind = "cpu" if device is None else device.type
    if name in LIBRARY:
        if kind not in (name, "meta"):
            return f"the tensors lie on {device}"
        return "" if has_compiled(op, name) else f"no implementation of {op} in this build"
    if reason := load(name):
        return reason
    if op not in _implementations.get(name, {}):
        return f"has no {op}"
    if not hasattr(torch, "float8_e8m0fnu") and any(
        arg["role"] == "input" and "e8m0" in arg.get("dtypes", "")
        for arg in _library.contracts()[op]["args"]
    ):
        return f"{op} reads E8M0 scales, and torch {torch.__version__} has no float8_e8m0fnu"
    return importlib.import_module(PYTHON[name]).refuses_device(device) or ""


@dataclass(frozen=True)
class Backend:
    """A backend as list_backends() reports it."""

    name: str
    available: bool
    disabled: bool
    reason: str  # why it is not available
    ops: tuple[str, ...]


def list_backends() -> list[Backend]:
    """Every backend, in the order in which they are tried; imports those in Python."""
    return [_describe(name) for name in settings.priority]


def _describe(name: str) -> Backend:
    if name in PYTHON:
        reason = load(name)
        ops = tuple(op for op in _library.contracts() if op in _implementations.get(name, {}))
    else:
        ops = tuple(op for op in _library.contracts() if has_compiled(op, name))
        reason = "" if ops else f"this build has no {name} implementations"
        if name == "cuda" and not torch.cuda.is_available():
            reason = "torch finds no CUDA device"
    return Backend(name, not reason, name in settings.disabled, reason, () if reason else ops)
