"""The kernels that are known, by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

LANGUAGES = ("pytorch", "triton", "cuda", "cutlass", "other")


class Unsupported(Exception):
    """Raised by a kernel for what it does not take: reported as that, and never as right."""


@dataclass(frozen=True)
class Backend:
    name: str
    kernel_fn: Callable
    description: str
    language: str
    source: str  # the file that registered it
    deterministic: bool


class Registry:
    def __init__(self):
        self._known: dict[str, Backend] = {}

    def register(
        self,
        name: str,
        kernel_fn: Callable,
        description: str = "",
        language: str = "other",
        *,
        deterministic: bool = True,
        source: str | None = None,
    ) -> None:
        """kernel_fn(data) gets the seven tensors and returns c. deterministic=False: two calls may
        differ in their bits. `source` is the file that a process of its own finds it in: the one
        that calls this."""
        if not isinstance(name, str) or not name:
            raise ValueError("a backend needs a name")
        if not callable(kernel_fn):
            raise TypeError(f"backend {name!r}: kernel_fn is a {type(kernel_fn).__name__}")
        if language not in LANGUAGES:
            raise ValueError(
                f"backend {name!r}: language {language!r}, expected one of {', '.join(LANGUAGES)}"
            )
        if name in self._known:
            raise ValueError(f"two backends are named {name!r}: one of {self._known[name].source}")
        source = source or sys._getframe(1).f_globals.get("__file__", "")
        self._known[name] = Backend(name, kernel_fn, description, language, source, deterministic)

    def get(self, name: str) -> Backend:
        if name not in self._known:
            raise KeyError(f"no backend {name!r}: there are {', '.join(self._known) or 'none'}")
        return self._known[name]

    __getitem__ = get

    def list(self) -> list[str]:
        return [*self._known]

    def items(self):
        return self._known.items()

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)


BACKENDS = Registry()
