"""Who serves comfy-kitchen's calls while a model runs, and what was asked of it."""

from __future__ import annotations

import importlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn

from .._why import why
from ..compat import _stop_decoding
from ..compat._install import NAME, _is_ours, install
from ..compat.comfy_kitchen.registry import registry as ours
from ..errors import InvalidArgumentError

MODES = ("on", "off", "strict")
NO_LAYER = "without a layer's weight"


@dataclass
class Served:
    """How often each function was asked for, which backend took it, and for which layer."""

    mode: str
    calls: Counter = field(default_factory=Counter)  # (function, backend): times
    layers: dict[str, Counter] = field(default_factory=lambda: defaultdict(Counter))  # the same
    kernels: dict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))

    def __str__(self) -> str:
        if not self.calls:
            return f"Pestle's kernels {self.mode}: comfy-kitchen was asked for nothing yet"
        own = sum(count for (_, backend), count in self.calls.items() if backend == "pestle")
        head = f"Pestle's kernels {self.mode}: {own} of {self.calls.total()} calls"
        lines = [
            f"  {function}: {count} x {backend}"
            for (function, backend), count in sorted(self.calls.items())
        ]
        return "\n".join([head, *lines, "by layer:", *map(self._layer, self.layers)])

    def _layer(self, name: str) -> str:
        asked = [f"{count} x {function} by {backend}"
                 for (function, backend), count in self.layers[name].items()]  # fmt: skip
        kernels = f" ({', '.join(self.kernels[name])})" if self.kernels.get(name) else ""
        return f"  {name}: {', '.join(asked)}{kernels}"


class _Layers:
    """Finds a call's layer by the memory of its weight."""

    def __init__(self, model: nn.Module | None):
        self.names: dict[int, str] = {}
        for name, value in model.named_parameters() if model is not None else ():
            for part in _parts(value):
                self.names[part.data_ptr()] = name.rpartition(".")[0] or name

    def of(self, values) -> str:
        found = (self.names.get(value.data_ptr()) for value in values if _has_memory(value))
        return next(filter(None, found), NO_LAYER)


def _has_memory(value) -> bool:
    return type(value) in (torch.Tensor, nn.Parameter) and value.numel() > 0


def _parts(value: nn.Parameter) -> list[torch.Tensor]:
    """The tensors that a weight consists of: one, or a quantised one's codes and scales. Its own:
    comfy-kitchen's `.data` has copies of the scales, whose memory is soon somebody else's."""
    if not hasattr(value, "_qdata"):
        return [value] if _has_memory(value) else []
    return list(filter(_has_memory, [value._qdata, *vars(value._params).values()]))


class _Watched:
    """Pestle's functions on one backend. `note(op, kernel)` is told, behind each call, the op that
    ran and a function that says by which kernel."""

    def __init__(self, functions, note: Callable[[str, Callable[[], str | None]], None]):
        self._functions, self._note = functions, note

    def __getattr__(self, op: str) -> Callable:
        function, backend = getattr(self._functions, op), self._functions._backend

        def run(*args, **kwargs):
            out = function(*args, **kwargs)
            self._note(op, lambda: why(op, *args, backend=backend, **kwargs).chosen)
            return out

        return run


def check_mode(mode: str) -> str:
    if mode not in MODES:
        raise InvalidArgumentError(f'mode is "{mode}"; the modes are {", ".join(MODES)}')
    return mode


def _order(registry, mode: str) -> list[str]:
    others = [name for name in registry._priority if name != "pestle"]
    return {"on": ["pestle", *others], "off": others, "strict": ["pestle"]}[mode]


@contextmanager
def serving(served: Served, model: nn.Module | None = None) -> Iterator[None]:
    """Within the block comfy-kitchen's calls go to Pestle first (on), to Pestle alone, so that a
    call that it refuses is an error with its reasons (strict), or not to Pestle (off). `model`:
    whose layers the calls are told by."""
    theirs = importlib.import_module(NAME)
    if _is_ours(theirs):
        raise InvalidArgumentError(
            "comfy_kitchen is Pestle itself in this process: there is nobody to choose from"
        )
    registry = theirs.registry
    before, inner, of_ours = list(registry._priority), registry.get_implementation, ours.function
    if not registry.is_available("pestle"):
        install()
    layers, layer, asked = _Layers(model), NO_LAYER, set()

    def count(func_name, backend, tensors):
        nonlocal layer
        layer = layers.of(tensors)
        served.calls[func_name, backend] += 1
        served.layers[layer][func_name, backend] += 1

    def recorded(func_name, backend=None, kwargs=None):
        chosen = backend or registry.get_capable_backend(func_name, kwargs)
        count(func_name, chosen, (kwargs or {}).values())
        return inner(func_name, chosen, kwargs)

    def multiplied(layout, x, codes, params):
        """Of weights whose products comfy-kitchen has no function for: it would decode them."""
        op, tensors, options = layout.kernel_call(x, codes, params)
        count(op, "pestle", (codes,))
        note(op, lambda: why(op, *tensors, **options).chosen)

    def note(op, kernel):
        if (layer, op) not in asked:  # the same weight's calls differ in the tokens alone
            asked.add((layer, op))
            served.kernels[layer][kernel() or op] = None

    def watched(backend, func_name):
        found = of_ours(backend, func_name)
        return partial(found.func, _Watched(found.args[0], note))

    registry.set_priority(_order(registry, check_mode(served.mode)))
    registry.get_implementation, ours.function = recorded, watched
    told, _stop_decoding.told = _stop_decoding.told, multiplied
    if served.mode == "off":
        _stop_decoding.stop()
    try:
        yield
    finally:
        del registry.get_implementation, ours.function
        _stop_decoding.told = told
        registry.set_priority(before)
        _stop_decoding.start(theirs)
