"""Who serves comfy-kitchen's calls while a model runs, and what was asked of it."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..compat import _stop_decoding
from ..compat._install import NAME, _is_ours, install
from ..errors import InvalidArgumentError

MODES = ("on", "off", "strict")


@dataclass
class Served:
    """How often each function was asked for, and which backend took it."""

    mode: str
    calls: Counter = field(default_factory=Counter)  # (function, backend): times

    def __str__(self) -> str:
        if not self.calls:
            return f"Pestle's kernels {self.mode}: comfy-kitchen was asked for nothing yet"
        ours = sum(count for (_, backend), count in self.calls.items() if backend == "pestle")
        head = f"Pestle's kernels {self.mode}: {ours} of {self.calls.total()} calls"
        lines = [
            f"  {function}: {count} x {backend}"
            for (function, backend), count in sorted(self.calls.items())
        ]
        return "\n".join([head, *lines])


def check_mode(mode: str) -> str:
    if mode not in MODES:
        raise InvalidArgumentError(f'mode is "{mode}"; the modes are {", ".join(MODES)}')
    return mode


def _order(registry, mode: str) -> list[str]:
    others = [name for name in registry._priority if name != "pestle"]
    return {"on": ["pestle", *others], "off": others, "strict": ["pestle"]}[mode]


@contextmanager
def serving(served: Served) -> Iterator[None]:
    """Within the block comfy-kitchen's calls go to Pestle first (on), to Pestle alone, so that a
    call that it refuses is an error with its reasons (strict), or not to Pestle (off)."""
    theirs = importlib.import_module(NAME)
    if _is_ours(theirs):
        raise InvalidArgumentError(
            "comfy_kitchen is Pestle itself in this process: there is nobody to choose from"
        )
    registry = theirs.registry
    before, inner = list(registry._priority), registry.get_implementation
    if not registry.is_available("pestle"):
        install()

    def recorded(func_name, backend=None, kwargs=None):
        chosen = backend or registry.get_capable_backend(func_name, kwargs)
        served.calls[func_name, chosen] += 1
        return inner(func_name, chosen, kwargs)

    registry.set_priority(_order(registry, check_mode(served.mode)))
    registry.get_implementation = recorded
    if served.mode == "off":
        _stop_decoding.stop()
    try:
        yield
    finally:
        del registry.get_implementation
        registry.set_priority(before)
        _stop_decoding.start(theirs)
