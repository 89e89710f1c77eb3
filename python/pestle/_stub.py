"""Prints __init__.pyi, the type stub of the package: `python -m pestle._stub`."""

from __future__ import annotations

import inspect
import re

from . import _attention, _contract, _files, _source, errors
from ._forms import forms_of
from ._functions import names
from .quantized import loading, lora, models

_HEAD = """# Made from the table by tools/python_stub.sh: do not edit.
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__version__: str
Progress = Callable[[str, int, int], object]

@dataclass(frozen=True)
class Verdict:
    implementation: str
    refusal: str
    plan: str = ...

@dataclass(frozen=True)
class Why:
    op: str
    verdicts: tuple[Verdict, ...]
    @property
    def chosen(self) -> str | None: ...

@dataclass(frozen=True)
class Backend:
    name: str
    available: bool
    disabled: bool
    reason: str
    ops: tuple[str, ...]

def why(op: str, /, *args, backend: str | tuple[str, ...] | None = None, **kwargs) -> Why: ...
def use_backend(*names: str) -> AbstractContextManager[None]: ...
def set_backend_priority(*names: str) -> None: ...
def enable_backend(name: str) -> None: ...
def disable_backend(name: str) -> None: ...
def list_backends() -> list[Backend]: ...
def implements(op: str, *, backend: str, refuses: Callable | None = None) -> Callable: ...
def load_tuned(path: str) -> None: ...
def list_ops() -> list[str]: ...
def overloads(op: str) -> list: ...

class DecodeWarning(UserWarning): ...

class QuantizedLayout:
    Params: type
    @classmethod
    def quantize(cls, tensor: Tensor, **options) -> tuple[Tensor, object]: ...
    @classmethod
    def dequantize(cls, qdata: Tensor, params) -> Tensor: ...

class QuantizedTensor(Tensor):
    def __init__(self, qdata: Tensor, layout_cls: str, params) -> None: ...
    @property
    def params(self): ...
    @property
    def layout_cls(self) -> type[QuantizedLayout]: ...
    @property
    def storage_shape(self) -> tuple[int, ...]: ...
    @property
    def storage_dtype(self) -> torch.dtype: ...
    @property
    def stored_bytes(self) -> int: ...
    @property
    def padded_shape(self) -> tuple[int, ...]: ...
    @property
    def is_padded(self) -> bool: ...
    @classmethod
    def from_float(
        cls, tensor: Tensor, layout_cls: str | type[QuantizedLayout], **options
    ) -> QuantizedTensor: ...
    def dequantize(self) -> Tensor: ...
    def requantize_from_float(self, tensor: Tensor, **options) -> QuantizedTensor: ...
    def state_dict(self, prefix: str = "") -> dict[str, Tensor]: ...

def get_layout_class(name: str) -> type[QuantizedLayout]: ...
def register_layout_class(name: str, cls: type[QuantizedLayout]) -> None: ...
def register_layout_op(
    torch_op: object, layout_cls: type[QuantizedLayout]
) -> Callable[[Callable], Callable]: ...
def strict() -> AbstractContextManager[None]: ...

@dataclass(frozen=True)
class Layer:
    name: str
    format: str | None
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    relative_error: float | None
    bytes_before: int
    bytes_after: int
    kept_because: str
    op: str
    kernel: str
    why: str

@dataclass(frozen=True)
class Report:
    layers: list[Layer]
    layout: str
    notes: tuple[str, ...]
    @property
    def quantised(self) -> list[Layer]: ...
    @property
    def bytes_before(self) -> int: ...
    @property
    def bytes_after(self) -> int: ...
    def to_dict(self) -> dict: ...

def report(model: torch.nn.Module, rows: int = 1) -> Report: ...
"""


def _errors() -> list[str]:
    return [
        f"class {name}({', '.join(base.__name__ for base in kind.__bases__)}): ..."
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.PestleError)
    ]


def _file_function(function) -> str:
    doc = inspect.getdoc(function).replace("\n", "\n    ")
    parameters = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(function)))
    parameters = parameters.replace("nn.Module", "torch.nn.Module").replace("'", '"')
    return f'def {function.__name__}{parameters}:\n    """{doc}"""'


def _function(name: str) -> str:
    in_place = name.endswith("_")
    op = _contract.op(name[:-1] if in_place else name)
    forms = forms_of(op.name, "in_place" if in_place else "functional")
    kinds = " | ".join(dict.fromkeys(_source.returns(form, in_place) for form in forms))
    doc = _source.docstring(op, in_place).replace("\n", "\n    ")
    parameters = _source.signature(op, typed=True, in_place=in_place)
    return f'def {name}(\n    {parameters}\n) -> {kinds}:\n    """{doc}\n    """'


def text() -> str:
    parts = [_HEAD, "\n".join(_errors())]
    files = (_files.quantize_file, _files.dequantize_file, _files.inspect, _files.diff)
    files += (_files.save_file, _files.load_file, models.quantize_, models.save_model)
    files += (loading.load_quantized, loading.load_model_)
    files += (lora.add_lora_, lora.remove_lora_, lora.merge_lora_, lora.unmerge_lora_)
    files += (_attention.scaled_dot_product_attention,)
    parts += [
        "class DecodedError(UnsupportedError): ...",
        *(_file_function(function) for function in files),
    ]
    parts += [_function(name) for name in names()]
    lines = "\n\n".join(parts).split("\n")
    return "\n".join(line.rstrip() for line in lines) + "\n"


if __name__ == "__main__":
    print(text(), end="")
