"""What is decoded behind the caller's back: counted, warned of once, refused under strict()."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from ..errors import UnsupportedError

_STRICT: ContextVar[bool] = ContextVar("pestle_strict", default=False)
_WARNED: set[tuple[str, str]] = set()


class DecodedError(UnsupportedError):
    """Under strict() an operator met a quantised tensor that it has no kernel for."""


class DecodeWarning(UserWarning):
    """An operator without a kernel for a quantised tensor decoded it."""


@dataclass
class Decodes:
    """What was decoded since the process began."""

    fallbacks: int = 0  # tensors that an operator without a handler decoded
    elements: int = 0  # values decoded in all, by dequantize() too


decodes = Decodes()


@contextmanager
def strict() -> Iterator[None]:
    """Inside the block an operator that would decode a quantised tensor raises DecodedError."""
    token = _STRICT.set(True)
    try:
        yield
    finally:
        _STRICT.reset(token)


def note(op: str, layout: str, shape: tuple, reason: str = "") -> None:
    """A tensor is about to be decoded because `op` has nothing else for it."""
    why = reason or f"has no handler for {layout}"
    said = (
        f"{op} {why}: it decodes a tensor of shape {tuple(shape)}. To keep it quantised register a "
        f"handler (pestle.register_layout_op({op}, {layout})); to decode on purpose call "
        ".dequantize() first"
    )
    if _STRICT.get():
        raise DecodedError(said)
    decodes.fallbacks += 1
    if (op, layout) not in _WARNED:
        _WARNED.add((op, layout))
        warnings.warn(said + "; pestle.strict() makes this an error", DecodeWarning, stacklevel=2)
