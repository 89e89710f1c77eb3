"""The right answer to a case: of a problem's own float64 function, or of the table's reference."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from pestle._library import LIBRARY

from ..errors import INTERNAL, LabError
from ..problems import Truth
from .cases import Case, numpy_dtype

_DTYPES = {
    name: code
    for code, name in enumerate(
        (
            "float32",
            "float16",
            "bfloat16",
            "float64",
            "float8_e4m3fn",
            "float8_e5m2",
            "float8_e8m0fnu",
            "uint8",
            "int8",
            "int16",
            "uint16",
            "int32",
            "uint32",
            "int64",
            "uint64",
            "bool",
        ),
        start=1,
    )
}
_ABSENT, _TENSOR, _LIST, _INT, _FLOAT, _BOOL, _CHOICE = range(7)


class _Tensor(ctypes.Structure):  # pestle_tensor
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


class _Value(ctypes.Union):
    _fields_ = (
        ("tensor", ctypes.POINTER(_Tensor)),
        ("i", ctypes.c_int64),
        ("f", ctypes.c_double),
        ("choice", ctypes.c_char_p),
    )


class _Arg(ctypes.Structure):  # pestle_arg
    _fields_ = (("kind", ctypes.c_int32), ("count", ctypes.c_int32), ("value", _Value))


def _tensor(array: np.ndarray, keep: list) -> _Arg:
    dims = ctypes.c_int64 * max(array.ndim, 1)
    shape = dims(*array.shape)
    strides = dims(*(stride // array.itemsize for stride in array.strides))
    tensor = _Tensor(
        data=array.ctypes.data,
        dtype=_DTYPES[array.dtype.name],
        device_type=1,
        rank=array.ndim,
        shape=shape,
        strides=strides,
    )
    keep += [array, shape, strides, tensor]
    return _Arg(kind=_TENSOR, value=_Value(tensor=ctypes.pointer(tensor)))


def _attribute(kind: str, value) -> _Arg:
    if kind == "choice":
        return _Arg(kind=_CHOICE, value=_Value(choice=value.encode()))
    if kind == "float":
        return _Arg(kind=_FLOAT, value=_Value(f=float(value)))
    return _Arg(kind=_BOOL if kind == "bool" else _INT, value=_Value(i=int(value)))


def _ask(case: Case, arrays: dict[str, np.ndarray], magnitudes: bool) -> None:
    keep: list = []
    args = []
    for arg in case.problem.contract.args:
        if arg.role == "attribute":
            args.append(_attribute(arg.kind, case.attributes[arg.name]))
        elif arg.name in arrays:
            args.append(_tensor(arrays[arg.name], keep))
        else:
            args.append(_Arg(kind=_ABSENT))
    find = LIBRARY.pestle_find_op
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    run = LIBRARY.pestle_reference
    run.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Arg), ctypes.c_size_t, ctypes.c_int32]
    packed = (_Arg * len(args))(*args)
    if run(find(case.problem.name.encode()), packed, len(args), int(magnitudes)):
        sentence = LIBRARY.pestle_last_error().decode()
        raise LabError(f"the reference of {case.problem.name}: {sentence}", INTERNAL)


def _of_table(case: Case, inputs: dict[str, np.ndarray]) -> Truth:
    if LIBRARY is None:
        raise LabError("a pure-Python installation has no references of the table's ops")
    outputs = case.of_role("output")
    is_exact = {p.name: case.problem.bounds[p.name].exact for p in outputs}

    def empty() -> dict[str, np.ndarray]:
        return {
            p.name: np.zeros(p.shape, numpy_dtype(p.dtype) if is_exact[p.name] else np.float64)
            for p in outputs
        }

    values = empty()
    if all(is_exact.values()):
        _ask(case, inputs | values, False)
        return {name: (array, None) for name, array in values.items()}
    sizes = empty()
    with ThreadPoolExecutor(2) as pool:  # each on a core of its own
        asked = [pool.submit(_ask, case, inputs | values, False),
                 pool.submit(_ask, case, inputs | sizes, True)]  # fmt: skip
    for one in asked:
        one.result()
    return {n: (a, None if is_exact[n] else sizes[n]) for n, a in values.items()}


def truth(case: Case, inputs: dict[str, np.ndarray]) -> Truth:
    """Values (and magnitudes) of each output; `inputs` are master copies."""
    problem = case.problem
    if problem.is_op:
        return _of_table(case, inputs)
    with np.errstate(all="ignore"):
        given = problem.reference(dict(inputs), dict(case.attributes) | case.symbols())
    for plan in case.of_role("output"):
        values, _ = given[plan.name]
        if tuple(values.shape) != plan.shape:
            raise LabError(
                f"the reference of {problem.name}: {plan.name} has shape "
                f"{list(values.shape)}, the contract says {list(plan.shape)}"
            )
    return given
