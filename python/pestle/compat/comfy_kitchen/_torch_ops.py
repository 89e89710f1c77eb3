"""torch.ops.comfy_kitchen: the operators that its users call by this name, where Pestle stands in
its place. Its functions themselves are no such operators here."""

from __future__ import annotations

import torch

from ._backend_module import unlisted

_SCHEMAS = (
    "quantize_int8_convrot_weight(Tensor weight, int group_size) -> (Tensor, Tensor)",
    "dequantize_int8_convrot_weight(Tensor q, Tensor scale, int group_size) -> Tensor",
    "dequantize_int8_convrot_weight_dtype(Tensor q, Tensor scale, int group_size, "
    "int output_dtype_code) -> Tensor",
    "dequantize_int8_simple(Tensor q, Tensor scale) -> Tensor",
    "dequantize_int8_simple_dtype(Tensor q, Tensor scale, int output_dtype_code) -> Tensor",
    "dequantize_int8_embedding(Tensor q, Tensor scale, Tensor indices, int group_size, "
    "int output_dtype_code) -> Tensor",
)

_library: torch.library.Library | None = None


def define() -> None:
    """Once for the process; torch takes them apart into Pestle's own ops."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("comfy_kitchen", "FRAGMENT")
    for schema in _SCHEMAS:
        name = schema.partition("(")[0]
        _library.define(schema)
        _library.impl(name, unlisted(name, None), "CompositeImplicitAutograd")


def remove() -> None:
    """For a comfy_kitchen that is imported after all: it defines the same names."""
    global _library
    if _library is not None:
        _library._destroy()
        _library = None
