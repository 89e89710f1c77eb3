"""comfy_kitchen.backends: each backend's functions, as attributes of its name.

from comfy_kitchen.backends import eager
eager.quantize_nvfp4(x, scale)          # as quantize_nvfp4(x, scale, backend="eager")
"""

from __future__ import annotations

from functools import partial

from . import _functions


class _Backend:
    def __init__(self, name: str):
        self.__name__ = name

    def __getattr__(self, function: str):
        if function not in _functions.__all__:
            raise AttributeError(f"backend {self.__name__} has no function {function!r}")
        return partial(getattr(_functions, function), backend=self.__name__)

    def __dir__(self):
        return sorted(_functions.__all__)


cpu, cuda, eager, triton = (_Backend(name) for name in ("cpu", "cuda", "eager", "triton"))

__all__ = ["cpu", "cuda", "eager", "triton"]
