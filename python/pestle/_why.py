"""What exists, and which implementation would run a call, with each one's verdict."""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import dataclass

import torch

from . import _backends, _contract, _library
from ._forms import TENSORS, Form, forms_of
from ._shapes import Call
from .errors import InvalidArgumentError, NotCompiledError

_TENSOR, _LIST, _INT, _FLOAT, _BOOL, _CHOICE = 1, 2, 3, 4, 5, 6
_DEVICES = {"cpu": 1, "cuda": 2}
_DTYPE_NUMBERS = {dtype: number for number, dtype in enumerate(_contract.DTYPES.values(), 1)}


class _Tensor(ctypes.Structure):
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


class _Arg(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("count", ctypes.c_int32), ("value", _Value))


@dataclass(frozen=True)
class Verdict:
    """What one implementation says to a call."""

    implementation: str
    refusal: str  # "" if it takes the call
    plan: str = ""  # how it would run the call, its tile, say; "" if there is nothing to say


@dataclass(frozen=True)
class Why:
    """Every implementation's verdict on a call, best first; the first that takes it would run."""

    op: str
    verdicts: tuple[Verdict, ...]

    @property
    def chosen(self) -> str | None:
        return next((v.implementation for v in self.verdicts if not v.refusal), None)

    def __str__(self) -> str:
        lines = [f"{self.op}: {self.chosen or 'no implementation takes this call'}"]
        return "\n".join(lines + [
            f"  {v.implementation}: {v.refusal or 'takes it'}{v.plan and f': {v.plan}'}"
            for v in self.verdicts
        ])  # fmt: skip


def _view(sizes: tuple, strides: tuple, dtype: torch.dtype, tensor: torch.Tensor) -> _Tensor:
    dims = ctypes.c_int64 * max(len(sizes), 1)
    on_cuda = tensor.device.type == "cuda"
    return _Tensor(
        data=None,  # not read, and the choice of an implementation does not depend on it
        dtype=_DTYPE_NUMBERS[dtype],
        device_type=_DEVICES.get(tensor.device.type, 1),
        device_index=tensor.device.index or 0 if on_cuda else 0,
        rank=len(sizes),
        shape=dims(*sizes),
        strides=dims(*strides),
    )


def _contiguous(sizes: tuple) -> tuple:
    strides, step = [], 1
    for size in reversed(sizes):
        strides.insert(0, step)
        step *= max(size, 1)
    return tuple(strides)


def _c_arguments(whole: Call, asked: dict, keep: list) -> ctypes.Array:
    calls = whole.positions()
    for call in calls:
        call.bind()
    values = []
    for arg in whole.op.args:
        value = _Arg()
        if arg.role == "attribute":
            _set_attribute(value, arg, whole.attributes[arg.name])
        elif arg.name in whole.tensors or calls[0].wants(arg):
            views = [_c_tensor(call, arg, asked) for call in (calls if arg.is_list else calls[:1])]
            keep.append((_Tensor * len(views))(*views))
            keep.append(views)  # shapes and strides live in these
            value.kind = _LIST if arg.is_list else _TENSOR
            value.count = len(views)
            value.value.tensor = ctypes.cast(keep[-2], ctypes.POINTER(_Tensor))
        values.append(value)
    return (_Arg * len(values))(*values)


def _c_tensor(call: Call, arg: _contract.Arg, asked: dict) -> _Tensor:
    if arg.name in call.tensors:
        tensor = call.tensors[arg.name]
        sizes = call.sizes(arg)
        strides = tuple(tensor.stride()) if tensor.ndim else _contiguous(sizes)
        return _view(sizes, strides, call.dtype_of(arg), tensor)
    if arg.role == "input":
        raise call.error(arg, f"is missing: {arg.doc}")
    sizes = call.shape(arg)
    dtype = call.dtype(arg, asked.get(arg.name))
    return _view(sizes, _contiguous(sizes), dtype, next(iter(call.tensors.values())))


def _set_attribute(value: _Arg, arg: _contract.Arg, given) -> None:
    if arg.kind == "choice":
        value.kind, value.value.choice = _CHOICE, str(given).encode()
    elif arg.kind == "float":
        value.kind, value.value.f = _FLOAT, float(given)
    else:
        value.kind = _BOOL if arg.kind == "bool" else _INT
        value.value.i = int(given)


def _bind_python(op: _contract.Op, args: tuple, kwargs: dict) -> tuple[Call, dict]:
    inputs = sorted(op.of_role("input"), key=lambda arg: arg.optional)
    values = dict(zip((arg.name for arg in inputs), args, strict=False)) | kwargs
    names = {arg.name for arg in op.args} | {f"{a.name}_dtype" for a in op.of_role("output")}
    if unknown := set(values) - names:
        raise InvalidArgumentError(f"{op.name} has no argument {', '.join(sorted(unknown))}")
    attributes = {a.name: values.get(a.name, a.default) for a in op.of_role("attribute")}
    asked = {a.name: values.get(f"{a.name}_dtype") for a in op.of_role("output")}
    call = Call(op, {a.name: values.get(a.name) for a in inputs}, attributes)
    call.asked = asked
    return call, asked


def _ask_library(call: Call, asked: dict) -> list[dict]:
    """The library's verdicts on a call that is not run, best first; raises what it says to one that
    breaks the contract."""
    keep: list = []
    c_args = _c_arguments(call, asked, keep)
    library = _library.LIBRARY
    library.pestle_find_op.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(library.pestle_find_op(call.op.name.encode()))
    text = ctypes.c_void_p()
    _library.check(library.pestle_why(handle, c_args, len(c_args), ctypes.byref(text)))
    return json.loads(_library.take_text(text.value))


def check_contract(call: Call, asked: dict) -> None:
    """InvalidArgumentError, in the library's words, if the call breaks the op's contract."""
    if _library.LIBRARY is None:
        for one in call.positions():
            one.bind()
            one.check()
        return None
    _ask_library(call, asked)


def _library_verdicts(name: str, call: Call, asked: dict) -> list[Verdict]:
    if _library.LIBRARY is None:
        return []
    devices = {one["id"]: one["device"] for one in call.op.implementations}
    return [
        Verdict(one["id"], one["reason"], one["plan"])
        for one in _ask_library(call, asked)
        if devices.get(one["id"]) == name
    ]


def _python_verdict(name: str, call: Call, asked: dict) -> Verdict:
    from . import _python_ops  # which asks check_contract above

    op = call.op
    one = call.positions()[0]
    wanted = tuple(arg.name for arg in op.of_role("output") if one.wants(arg))
    form = next(form for form in forms_of(op.name) if form.outputs == wanted)
    args, kwargs = [], {}
    for kind, argument, keyword in form.arguments:
        if kind in TENSORS:
            args.append(call.tensors.get(argument))
        else:
            value = asked.get(argument) if kind == "dtype" else call.attributes[argument]
            kwargs[keyword] = value
    implementation = _backends.implementation(name, op.name)
    refusal = _python_ops.refusal(form, implementation, tuple(args), kwargs)
    return Verdict(implementation.id, refusal)


def why(op: str, /, *args, backend: str | tuple[str, ...] | None = None, **kwargs) -> Why:
    """Asks every implementation of `op` whether it takes this call, which is not run.

    The arguments are those of the Python function; tensors may be on the meta device. Backends come
    in the order in which they would be tried. InvalidArgumentError if the call breaks the op's
    contract.
    """
    name = getattr(op, "__name__", op)
    if name not in _library.contracts():
        raise InvalidArgumentError(f"no op {name!r}; pestle.list_ops() names them")
    call, asked = _bind_python(_contract.op(name), args, kwargs)
    check_contract(call, asked)
    device = next(iter(call.positions()[0].tensors.values())).device
    verdicts: list[Verdict] = []
    for candidate in _backends.order(backend):
        refusal = _backends.refusal(candidate, name, device)
        if candidate in _backends.LIBRARY and candidate not in _backends.settings.disabled:
            found = _library_verdicts(candidate, call, asked)
            verdicts += found or [Verdict(candidate, refusal)]
        elif refusal:
            verdicts.append(Verdict(candidate, refusal))
        else:
            verdicts.append(_python_verdict(candidate, call, asked))
    return Why(name, tuple(verdicts))


def load_tuned(path: str) -> None:
    """Choices that `pestle tune` measured on a GPU, in place of earlier ones.

    The file is read once, here; what PESTLE_TUNED names, when the package is imported.
    """
    if _library.LIBRARY is None:
        raise NotCompiledError("load_tuned: this installation has no compiled ops")
    _library.check(_library.LIBRARY.pestle_load_tuned(os.fspath(path).encode()))


def list_ops() -> list[str]:
    """Names of all ops of the table that torch can call, in the table's order."""
    return [name for name in _library.contracts() if forms_of(name)]


def overloads(op: str) -> list[Form]:
    """Every form of an op under torch.ops.pestle, with its schema."""
    return [form for kind in ("functional", "out", "in_place") for form in forms_of(op, kind)]
