"""Which dimensions of a call's tensors change with the resolution."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def _tensors(value) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)


def open_dimensions(tensors: list[torch.Tensor]) -> list[tuple[torch.Tensor, int]]:
    """Tokens of [B, tokens, C]; what has as many entries elsewhere (or as many as two of them
    joined: RoPE's tables of text and image); height, width and length of images and videos."""
    tokens = {t.shape[1] for t in tensors if t.ndim == 3 and t.shape[1] > 1}
    joined = tokens | {a + b for a in tokens for b in tokens}
    found = []
    for tensor in tensors:
        if tensor.ndim == 3:
            dimensions = [1]
        elif any(size in joined for size in tensor.shape[1:-1]):
            dimensions = [d for d in range(1, tensor.ndim - 1) if tensor.shape[d] in joined]
        else:
            dimensions = list(range(2, tensor.ndim)) if tensor.ndim in (4, 5) else []
        found += [(tensor, d) for d in dimensions if tensor.shape[d] > 1]
    return found


def mark_open(args: tuple, kwargs: dict) -> None:
    """Tells dynamo; a dimension that the code fixes all the same is fixed without complaint."""
    tensors = [*_tensors(args), *_tensors(list(kwargs.values()))]
    for tensor, dimension in open_dimensions(tensors):
        torch._dynamo.maybe_mark_dynamic(tensor, dimension)
