"""Pestle's backends as backends of a registry of comfy-kitchen's kind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

import pestle

from . import (  # noqa: F401
    _attention,
    _kernels,
    _linears,
    _norms,
    _quantizers,
    _ropes,
    _svdquant,
    _wider,
)
from ._serve import ADAPTERS, DEVICES, WIDER, Adapter

ELSEWHERE = {"hip": "AMD GPUs", "ascend": "Ascend NPUs"}  # comfy-kitchen's other backends


class OnBackend:
    """Pestle's functions with `backend` filled in."""

    def __init__(self, backend: str):
        self._backend = backend

    def __getattr__(self, name: str) -> Callable:
        made = partial(getattr(pestle, name), backend=self._backend)
        setattr(self, name, made)
        return made


class Backend:
    """What the registry is given as a backend's module."""

    def __init__(self, name: str, served: dict[str, Adapter]):
        functions = OnBackend(name)
        for function, found in served.items():
            setattr(self, function, partial(found.function, functions))


def register_all(registry) -> None:
    """Registers Pestle's backends, each with what it has implementations for."""
    for backend in pestle.list_backends():
        if DEVICES[backend.name] == {"cuda"} and not torch.cuda.is_available():
            registry.mark_unavailable(backend.name, backend.reason or "torch finds no CUDA device")
        elif backend.available:
            ops = set(backend.ops)
            wider = {name: found for (name, of), found in WIDER.items() if of == backend.name}
            known = (ADAPTERS | wider).items()
            served = {name: found for name, found in known if found.serves(backend.name, ops)}
            rules = {name: found.constraints(backend.name) for name, found in served.items()}
            registry.register(backend.name, Backend(backend.name, served), rules)
        else:
            registry.mark_unavailable(backend.name, backend.reason)
    for name, device in ELSEWHERE.items():
        registry.mark_unavailable(name, f"Pestle has no kernels for {device}")
    registry.help_out("eager", "cpu")
