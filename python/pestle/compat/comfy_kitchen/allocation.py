"""A context that callers want around what this package allocates for longer than a call.

Nothing here does so: Pestle allocates outputs only. The context is kept and handed out, for
backends that others register.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

_kept: AbstractContextManager = nullcontext()


def set_allocation_context(context: AbstractContextManager | None) -> None:
    global _kept
    _kept = context if context is not None else nullcontext()


def allocation_context() -> AbstractContextManager:
    return _kept
