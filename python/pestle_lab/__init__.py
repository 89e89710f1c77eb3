"""The workbench: write a kernel, prove it, measure it (docs/site/lab.md). By `pestle-lab`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .problems import Bound, Problem, attribute, choice, input, output

__all__ = ["Bound", "Problem", "attribute", "choice", "input", "output"]


def __getattr__(name: str):
    """What a problem's file uses, when it is used: it imports PyTorch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import problems

    return getattr(problems, name)
