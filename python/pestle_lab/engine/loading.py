"""A kernel's file as f(outputs, inputs, attributes, stream), in the process that runs it.

Compiled kernels are built by the parent (engine/building.py) and come as a shared library."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

_SCALARS = {
    "int": ctypes.c_int64,
    "bool": ctypes.c_int32,
    "float": ctypes.c_double,
    "choice": ctypes.c_int32,
}


def provide(modules: dict[str, dict[str, object]]) -> None:
    """Modules that a kernel of another harness imports, where there is no file of that name."""
    for name, names in modules.items():
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            sys.modules[name] = ModuleType(name)
            vars(sys.modules[name]).update(names)


def python_entry(
    path: str, entry: str, adapter: Callable | None, modules: dict[str, dict[str, object]]
) -> Callable:
    """entry(...) with every tensor and attribute by its name in the contract; it writes into the
    outputs and returns nothing. Files beside it can be imported, as by a script."""
    sys.path.append(str(Path(path).resolve().parent))
    if adapter is not None:
        provide(modules)
    spec = importlib.util.spec_from_file_location("pestle_lab_kernel", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, entry, None)
    if function is None:
        raise AttributeError(f"{path} has no {entry}(...)")
    if adapter is not None:
        return lambda outputs, inputs, attributes, stream: adapter(
            function, outputs, inputs, attributes
        )

    def call(outputs, inputs, attributes, stream):
        made = function(**outputs, **inputs, **attributes)
        if made is not None:
            raise TypeError(
                f"{entry} returned a {type(made).__name__}: it writes into its outputs and "
                "returns None"
            )

    return call


def _value(name: str, tensors: dict, attributes: dict, symbols: dict, stream: int, kinds: dict):
    if name == "stream":
        return ctypes.c_void_p(stream)
    if name in tensors:
        return ctypes.c_void_p(tensors[name].data_ptr())
    if name in attributes:
        kind, value = kinds[name]
        return _SCALARS[kind](value)
    if name in symbols:
        return ctypes.c_int64(symbols[name])
    tensor, _, what = name.partition(".")
    if tensor in tensors and (found := re.fullmatch(r"(stride|size)(\d+)|numel", what)):
        of = tensors[tensor]
        kind, dim = found[1], int(found[2] or 0)
        if kind and dim >= of.dim():
            raise IndexError(f"argument {name!r} of the entry: {tensor} has {of.dim()} dimensions")
        value = of.numel() if kind is None else of.stride(dim) if kind == "stride" else of.size(dim)
        return ctypes.c_int64(value)
    raise KeyError(
        f"argument {name!r} of the entry is no tensor, attribute, symbol, TENSOR.strideN, "
        "TENSOR.sizeN, TENSOR.numel or stream"
    )


def compiled_entry(
    library: str, entry: str, arguments: list[str], symbols: dict, kinds: dict
) -> Callable:
    """int entry(ARGUMENTS): pointers, 64-bit symbols and integers, double floats; 0 is success,
    anything else the number of an error (of CUDA, in a CUDA kernel)."""
    function = getattr(ctypes.CDLL(library), entry)
    function.restype = ctypes.c_int

    def call(outputs, inputs, attributes, stream):
        tensors = outputs | inputs
        status = function(
            *(_value(name, tensors, attributes, symbols, stream, kinds) for name in arguments)
        )
        if status != 0:
            raise RuntimeError(f"{entry} returned {status}{_cuda_name(status)}")

    return call


def _cuda_name(status: int) -> str:
    try:
        return f" ({torch.cuda.cudart().cudaGetErrorString(status)})"
    except Exception:
        return ""
