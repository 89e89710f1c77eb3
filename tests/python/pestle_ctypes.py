"""Calls any op of build/lib/libpestle.so with numpy arrays, through the generic C call.

    q = np.empty((8, 32), np.uint8)
    call("quantize_int4", x=x, q=q, scale_out=scale, group_size=32, mode="symmetric")

Arrays become tensors (any strides; ml_dtypes for bf16 and the 8-bit floats), str a choice, bool,
int and float attributes; None or leaving it out means absent. Outputs are arrays like inputs.
"""

import ctypes
import os
from functools import cache
from pathlib import Path

import numpy as np

DTYPES = {
    "float32": 1,
    "float16": 2,
    "bfloat16": 3,
    "float64": 4,
    "float8_e4m3fn": 5,
    "float8_e5m2": 6,
    "float8_e8m0fnu": 7,
    "uint8": 8,
    "int8": 9,
    "int16": 10,
    "uint16": 11,
    "int32": 12,
    "uint32": 13,
    "int64": 14,
    "uint64": 15,
    "bool": 16,
}
ABSENT, TENSOR, TENSOR_LIST, INT, FLOAT, BOOL, CHOICE = range(7)


class PestleError(RuntimeError):
    """A call that failed; `name` is the status, such as "invalid_argument"."""

    def __init__(self, name: str, message: str):
        super().__init__(message)
        self.name = name


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("device_type", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class ArgValue(ctypes.Union):
    _fields_ = (
        ("tensor", ctypes.POINTER(Tensor)),
        ("i", ctypes.c_int64),
        ("f", ctypes.c_double),
        ("choice", ctypes.c_char_p),
    )


class Arg(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("count", ctypes.c_int32), ("value", ArgValue))


class Options(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_int64),
        ("impl", ctypes.c_char_p),
    )


class ArgInfo(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("kind", ctypes.c_int32),
        ("is_output", ctypes.c_int32),
        ("is_optional", ctypes.c_int32),
        ("dtypes", ctypes.c_char_p),
        ("shape", ctypes.c_char_p),
        ("by", ctypes.c_char_p),
        ("present_if", ctypes.c_char_p),
        ("alias", ctypes.c_char_p),
        ("choices", ctypes.c_char_p),
        ("default_value", ctypes.c_double),
        ("doc", ctypes.c_char_p),
    )


class ImplInfo(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("id", ctypes.c_char_p),
        ("device_type", ctypes.c_int32),
        ("min_compute_capability", ctypes.c_int32),
    )


@cache
def library() -> ctypes.CDLL:
    root = Path(__file__).resolve().parent.parent.parent
    build = Path(os.environ.get("PESTLE_BUILD_DIR", root / "build"))
    lib = ctypes.CDLL(str(build / "lib" / "libpestle.so"))
    lib.pestle_find_op.restype = ctypes.c_void_p
    lib.pestle_find_op.argtypes = (ctypes.c_char_p,)
    lib.pestle_op_arg_count.restype = ctypes.c_size_t
    lib.pestle_op_arg_count.argtypes = (ctypes.c_void_p,)
    lib.pestle_op_arg.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ArgInfo))
    lib.pestle_op_impl_count.restype = ctypes.c_size_t
    lib.pestle_op_impl_count.argtypes = (ctypes.c_void_p,)
    lib.pestle_op_impl.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ImplInfo))
    lib.pestle_call.argtypes = (
        ctypes.c_void_p,
        ctypes.POINTER(Arg),
        ctypes.c_size_t,
        ctypes.POINTER(Options),
    )
    lib.pestle_choose.argtypes = (
        *lib.pestle_call.argtypes,
        ctypes.POINTER(ctypes.c_char_p),
        ctypes.POINTER(ctypes.c_int64),
    )
    lib.pestle_reference.argtypes = (*lib.pestle_call.argtypes[:3], ctypes.c_int32)
    lib.pestle_last_error.restype = ctypes.c_char_p
    lib.pestle_status_name.restype = ctypes.c_char_p
    lib.pestle_set_cpu_isa.argtypes = (ctypes.c_char_p,)
    lib.pestle_set_threads.argtypes = (ctypes.c_int32,)
    return lib


def _check(status: int) -> None:
    if status != 0:
        name = library().pestle_status_name(status).decode()
        raise PestleError(name, library().pestle_last_error().decode())


@cache
def _op(name: str) -> ctypes.c_void_p:
    handle = library().pestle_find_op(name.encode())
    if not handle:
        raise KeyError(f"no op {name}")
    return ctypes.c_void_p(handle)


@cache
def arg_names(op: str) -> tuple[str, ...]:
    """Arguments in the contract's order."""
    names = []
    for i in range(library().pestle_op_arg_count(_op(op))):
        info = ArgInfo(size=ctypes.sizeof(ArgInfo))
        _check(library().pestle_op_arg(_op(op), i, ctypes.byref(info)))
        names.append(info.name.decode())
    return tuple(names)


def impls(op: str) -> list[str]:
    """Ids of the implementations, best first, the reference last."""
    ids = []
    for i in range(library().pestle_op_impl_count(_op(op))):
        info = ImplInfo(size=ctypes.sizeof(ImplInfo))
        _check(library().pestle_op_impl(_op(op), i, ctypes.byref(info)))
        ids.append(info.id.decode())
    return ids


def set_isa(name: str) -> None:
    _check(library().pestle_set_cpu_isa(name.encode()))


def _tensor(array: np.ndarray, keep: list) -> Tensor:
    if any(stride % array.itemsize for stride in array.strides):
        raise ValueError(f"strides {array.strides} are no multiple of the element size")
    dims = ctypes.c_int64 * max(array.ndim, 1)
    shape = dims(*array.shape)
    strides = dims(*(stride // array.itemsize for stride in array.strides))
    keep += [shape, strides, array]
    return Tensor(
        data=array.ctypes.data,
        dtype=DTYPES[array.dtype.name],
        device_type=1,
        rank=array.ndim,
        shape=shape,
        strides=strides,
    )


def _arg(value, keep: list) -> Arg:
    if value is None:
        return Arg(kind=ABSENT)
    if isinstance(value, np.ndarray):
        tensor = _tensor(value, keep)
        keep.append(tensor)
        return Arg(kind=TENSOR, value=ArgValue(tensor=ctypes.pointer(tensor)))
    if isinstance(value, list | tuple):
        tensors = (Tensor * max(len(value), 1))(*(_tensor(item, keep) for item in value))
        keep.append(tensors)
        first = ctypes.cast(tensors, ctypes.POINTER(Tensor))
        return Arg(kind=TENSOR_LIST, count=len(value), value=ArgValue(tensor=first))
    if isinstance(value, bool):
        return Arg(kind=BOOL, value=ArgValue(i=int(value)))
    if isinstance(value, int):
        return Arg(kind=INT, value=ArgValue(i=value))
    if isinstance(value, float):
        return Arg(kind=FLOAT, value=ArgValue(f=value))
    if isinstance(value, str):
        return Arg(kind=CHOICE, value=ArgValue(choice=value.encode()))
    raise TypeError(f"{type(value).__name__} is no value of an op's argument")


def _pack(op: str, values: dict, keep: list) -> ctypes.Array:
    names = arg_names(op)
    if unknown := set(values) - set(names):
        raise TypeError(f"{op} has no argument {', '.join(sorted(unknown))}; it has {names}")
    # Attributes that are left out keep their defaults: absent values are not read.
    return (Arg * len(names))(*(_arg(values.get(name), keep) for name in names))


def choose(op: str, impl: str | None = None, /, **values) -> tuple[str, int]:
    """Id of the implementation that would run, and the bytes of workspace it wants."""
    keep: list = []
    args = _pack(op, values, keep)
    options = Options(size=ctypes.sizeof(Options), impl=impl.encode() if impl else None)
    chosen = ctypes.c_char_p()
    workspace = ctypes.c_int64()
    _check(
        library().pestle_choose(
            _op(op),
            args,
            len(args),
            ctypes.byref(options),
            ctypes.byref(chosen),
            ctypes.byref(workspace),
        )
    )
    return chosen.value.decode(), workspace.value


def call(op: str, impl: str | None = None, /, **values) -> None:
    """Runs `op`, by implementation `impl` if named; PestleError with the library's sentence."""
    _, workspace_bytes = choose(op, impl, **values)
    keep: list = []
    args = _pack(op, values, keep)
    workspace = np.empty(workspace_bytes, np.uint8)
    options = Options(
        size=ctypes.sizeof(Options),
        workspace=workspace.ctypes.data,
        workspace_bytes=workspace_bytes,
        impl=impl.encode() if impl else None,
    )
    _check(library().pestle_call(_op(op), args, len(args), ctypes.byref(options)))


def reference(op: str, magnitudes: bool = False, /, **values) -> None:
    """The definition of right. Bounded outputs are float64 arrays, which get the exact value, or
    the sum of |terms| that their bound counts with."""
    keep: list = []
    args = _pack(op, values, keep)
    _check(library().pestle_reference(_op(op), args, len(args), int(magnitudes)))
