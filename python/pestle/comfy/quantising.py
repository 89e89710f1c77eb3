"""A model quantised as `pestle quantize --layout comfy` does it, and itself untouched."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable

import torch
from torch import nn

from ..errors import InvalidArgumentError
from ..quantized import Report, quantize_, state_dict
from ..quantized._stored import COMFY

FORMATS = tuple(COMFY)


def quantised_state_dict(
    model: nn.Module,
    recipe: str | os.PathLike | dict | None = None,
    *,
    progress: Callable[[str, int, int], object] | None = None,
    **options,
) -> tuple[dict[str, torch.Tensor], Report]:
    """Tensors as of a file in ComfyUI's layout, and the report. `recipe` and options are those of
    pestle.quantize_; the model keeps its weights, and shares those that stay as they are."""
    for name, value in model.named_parameters():
        if type(value.data) is not torch.Tensor:
            raise InvalidArgumentError(
                f"{name} is quantised already ({type(value.data).__name__}): start from a model in "
                "bf16, f16 or f32"
            )
    other = shallow(model)
    report = quantize_(other, recipe, layout="comfy", progress=progress, **options)
    return state_dict(other, "comfy"), report


def shallow(module: nn.Module, _seen: dict | None = None) -> nn.Module:
    """A tree of modules of its own around the same tensors."""
    seen = {} if _seen is None else _seen
    if id(module) not in seen:
        made = seen[id(module)] = copy.copy(module)
        vars(made).pop("_pestle_layers", None)
        made._parameters, made._buffers = dict(module._parameters), dict(module._buffers)
        made._modules = {
            name: None if child is None else shallow(child, seen)
            for name, child in module._modules.items()
        }
    return seen[id(module)]


def patterns_of(text: str) -> list[str]:
    """Lines of PATTERN=FORMAT, as options of `pestle quantize --layer`; empty ones don't count."""
    lines = [line.strip() for line in text.splitlines()]
    for line in filter(None, lines):
        if "=" not in line:
            raise InvalidArgumentError(f"{line!r} is no PATTERN=FORMAT, such as *.attn.*=int8-row")
    return [line for line in lines if line]
