"""The forms in which an op is registered with torch (python/csrc/forms.h), as Python objects."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from . import _contract, _library
from ._shapes import Call

# Kinds of arguments of schemas that are tensors, or lists of them.
TENSORS = ("tensor", "optional_tensor", "tensor_list", "optional_tensor_list")


@dataclass(frozen=True)
class Form:
    op: str
    name: str  # "quantize.variant", without the namespace
    variant: str
    kind: str  # functional, out, in_place
    schema: str
    # (type, name in the contract, name in the schema), in the schema's order
    arguments: tuple[tuple[str, str, str], ...]
    outputs: tuple[str, ...]
    aliases: tuple[str, ...]  # in_place: per output, the input whose memory it is

    @property
    def contract(self) -> _contract.Op:
        return _contract.op(self.op)

    @property
    def qualified_name(self) -> str:
        return f"pestle::{self.name}"

    @property
    def overload(self) -> torch._ops.OpOverload:
        name, _, overload = self.name.partition(".")
        return getattr(getattr(torch.ops.pestle, name), overload or "default")

    @property
    def written(self) -> tuple[str, ...]:
        """Arguments whose memory the form writes."""
        return {"functional": (), "out": self.outputs, "in_place": self.aliases}[self.kind]

    def keywords(self) -> list[str]:
        """Names of the schema's arguments, in order."""
        return [keyword for _, _, keyword in self.arguments]

    def call(self, args: tuple, kwargs: dict) -> tuple[Call, dict[str, torch.dtype]]:
        """The contract's view of a call of this form, and the output dtypes that it asks for."""
        values = dict(zip(self.keywords(), args, strict=False)) | kwargs
        op = self.contract
        attributes = {arg.name: arg.default for arg in op.of_role("attribute")}
        attributes |= self.fixed_defaults()
        tensors, asked = {}, {}
        for kind, name, keyword in self.arguments:
            if kind == "dtype":
                asked[name] = values.get(keyword)
            elif kind in TENSORS:
                tensors[name] = values.get(keyword)
            elif keyword in values:
                attributes[name] = values[keyword]
        call = Call(op, tensors, attributes)
        call.asked = asked
        return call, asked

    @cache  # noqa: B019 (forms live as long as the module)
    def fixed_defaults(self) -> dict[str, object]:
        """Attributes whose default in this variant is not the contract's."""
        schema = self.overload._schema.arguments
        return {
            name: argument.default_value
            for (_, name, _), argument in zip(self.arguments, schema, strict=True)
            if self.contract.by_name[name].role == "attribute"
        }


@cache
def all_forms() -> tuple[Form, ...]:
    result = []
    for form in _library.forms()["forms"]:
        form["arguments"] = tuple(tuple(argument) for argument in form["arguments"])
        for key in ("outputs", "aliases"):
            form[key] = tuple(form[key])
        result.append(Form(**form))
    return tuple(result)


@cache
def forms_of(op: str, kind: str = "functional") -> tuple[Form, ...]:
    return tuple(form for form in all_forms() if form.op == op and form.kind == kind)
