"""Contracts as Python objects: names, alternatives, conditions. Shapes are in _shapes.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property

import torch

from ._expr import to_python
from ._library import contracts

DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f64": torch.float64,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e8m0": getattr(torch, "float8_e8m0fnu", torch.uint8),  # bytes before torch 2.7
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "u16": torch.uint16,
    "i32": torch.int32,
    "u32": torch.uint32,
    "i64": torch.int64,
    "u64": torch.uint64,
    "bool": torch.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_BYTE_FORMATS = {"e4m3", "e5m2", "e8m0"}


def split_dims(text: str) -> list[str]:
    """The dimensions of a shape; parentheses may be nested."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _alternatives(text: str) -> dict[str, str]:
    """{label: text}; one text for every label stands under ""."""
    if ":" not in text:
        return {"": text.strip()}
    result = {}
    for part in text.split(";"):
        labels, _, rule = part.partition(":")
        for label in labels.split("|"):
            result[label.strip()] = rule.strip()
    return result


@dataclass
class Arg:
    name: str
    kind: str
    role: str
    doc: str
    optional: bool
    by: str = ""
    present_if: str = ""
    in_place_of: str = ""
    default: object = None
    choices: list[str] = field(default_factory=list)
    shapes: dict[str, str] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, json: dict) -> Arg:
        known = {key: json[key] for key in cls.__dataclass_fields__ if key in json}
        known["shapes"] = _alternatives(json.get("shape", ""))
        known["dtypes"] = _alternatives(json.get("dtypes", ""))
        return cls(**known)

    def shape_text(self, attributes: dict) -> str:
        return self.shapes.get("") if "" in self.shapes else self.shapes[attributes[self.by]]

    def dtype_text(self, attributes: dict) -> str:
        return self.dtypes.get("") if "" in self.dtypes else self.dtypes[attributes[self.by]]

    @property
    def is_list(self) -> bool:
        return self.kind == "tensor_list"

    @cached_property
    def lifts_scalar(self) -> bool:
        """A tensor without dimensions is taken as one of shape [1]."""
        return "1" in self.shapes.values()

    @cached_property
    def bytes_stand_for(self) -> torch.dtype | None:
        """The one 8-bit float that uint8 is taken for."""
        names = {name for text in self.dtypes.values() for name in text.split("|")}
        formats = names & _BYTE_FORMATS
        return DTYPES[formats.pop()] if len(formats) == 1 and "u8" not in names else None


@dataclass
class Op:
    name: str
    doc: str
    source: str
    args: list[Arg]
    constraints: list[tuple[str, str]]  # condition, sentence
    backward: dict
    implementations: list[dict]
    cases: list[dict]

    @classmethod
    def read(cls, json: dict) -> Op:
        return cls(
            name=json["name"],
            doc=json["doc"],
            source=json["source"],
            args=[Arg.read(arg) for arg in json["args"]],
            constraints=[(c["condition"], c["sentence"]) for c in json["constraints"]],
            backward=json["backward"],
            implementations=json["implementations"],
            cases=json["cases"],
        )

    @cached_property
    def by_name(self) -> dict[str, Arg]:
        return {arg.name: arg for arg in self.args}

    @cached_property
    def has_lists(self) -> bool:
        return any(arg.is_list for arg in self.args)

    def of_role(self, role: str) -> list[Arg]:
        return [arg for arg in self.args if arg.role == role]

    @cached_property
    def _labels(self) -> set[str]:
        return {label for arg in self.args for label in arg.choices}

    def python_name(self, name: str) -> str:
        """How an expression's name is written over a dict `v` of symbols and attributes."""
        is_label = name in self._labels and name not in self.by_name
        return repr(name) if is_label else f"v[{name!r}]"

    @cache  # noqa: B019 (ops live as long as the module)
    def expression(self, text: str) -> Callable:
        """f(v, present, tensors): `present` holds names; `tensors` what bytes() and others ask."""
        body = to_python(text, self.python_name, lambda name: f"({name!r} in present)")
        for function in ("bytes", "numel", "rank", "size", "broadcasts"):
            body = body.replace(f"_{function}(", f"tensors.{function}(")
        scope = {"_min": torch.sym_min, "_max": torch.sym_max}
        return eval(f"lambda v, present, tensors=None: {body}", scope)

    def __hash__(self) -> int:
        return hash(self.name)


@cache
def op(name: str) -> Op:
    return Op.read(contracts()[name])
