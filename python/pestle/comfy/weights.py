"""What a model's weights are, whoever quantised them."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

from ..quantized import Layer, QuantizedTensor, Report, report


def weight_report(model: nn.Module) -> Report:
    """As pestle.report, and the weights that comfy-kitchen's QuantizedTensor holds too."""
    own = {layer.name: layer for layer in report(model).layers}
    layers = []
    for name, value in model.named_parameters():
        if value.ndim < 2:
            continue
        layer = name.removesuffix(".weight")
        inner = value.data if type(value.data) is not torch.Tensor else value
        foreign = hasattr(inner, "_qdata") and not isinstance(inner, QuantizedTensor)
        layers.append(_foreign(layer, inner) if foreign else own[layer])
    return Report(layers)


def _foreign(name: str, value) -> Layer:
    parts = [value._qdata, *vars(value._params).values()]
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    return Layer(
        name=name, format=value._layout_cls, shape=tuple(value.shape), dtype=value.dtype,
        bytes_before=value.numel() * value.dtype.itemsize,
        bytes_after=sum(part.nbytes for part in tensors),
        why="comfy-kitchen's: see the report of kernels",
    )  # fmt: skip


def summary(found: Report) -> str:
    """Formats, how many weights are in each and how large they are."""
    counts, sizes = Counter(), Counter()
    for layer in found.layers:
        kind = layer.format or str(layer.dtype).removeprefix("torch.")
        counts[kind] += 1
        sizes[kind] += layer.bytes_after
    return "\n".join(
        f"{kind}: {count} weights, {sizes[kind] / 2**20:,.1f} MiB"
        for kind, count in counts.most_common()
    )
