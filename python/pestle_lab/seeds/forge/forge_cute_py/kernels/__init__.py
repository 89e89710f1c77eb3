"""A module for each op. A kernel fills the memory that it is given on the current stream; what it
does not take, it refuses with an exception. As delivered they are Pestle's; use("cute"), or
FORGE_KERNELS=cute in the environment, takes the best CuTe DSL rungs of `pestle-lab list` instead,
for contiguous tensors on a GPU."""

import importlib
import os

from torch import Tensor

KINDS = ("pestle", "cute")
_kind = ""


def use(kind: str) -> None:
    """Of every op from now on, the backend `kernel` of softmax included."""
    global _kind
    if kind not in KINDS:
        raise ValueError(f"kernels {kind!r}: there are {', '.join(KINDS)}")
    _kind = kind


use(os.environ.get("FORGE_KERNELS", "pestle"))


def rung(name: str, *tensors: Tensor):
    """The CuTe DSL kernel of that name, where it was asked for; else None."""
    if _kind != "cute":
        return None
    for t in tensors:
        if not t.is_cuda or not t.is_contiguous():
            raise ValueError(f"{name}: a CuTe DSL kernel needs contiguous tensors on a GPU")
    return importlib.import_module(f"pestle_lab.kernels_shipped.cute.{name}").run
