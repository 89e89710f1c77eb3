"""Checkpoints of any layout that Pestle reads, as the tensors that ComfyUI loads."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from .. import dequantize_file, inspect, load_file, load_quantized
from ..quantized import QuantizedTensor
from ..quantized._stored import COMFY, format_of, stored

Progress = Callable[[str, int, int], object]


def is_comfys(path: str | os.PathLike) -> bool:
    """Whether ComfyUI's own loader reads a file: all but GGUF and the plain layout."""
    if Path(path).suffix.lower() == ".gguf":
        return False
    entry = inspect(path)["metadata"].get("pestle")
    return entry is None or json.loads(entry).get("layout") != "plain"


def comfy_state_dict(
    path: str | os.PathLike, progress: Progress | None = None
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Tensors in ComfyUI's layout, and what had to be changed for it: formats that it does not
    know are decoded to bf16, GGUF wholly."""
    if Path(path).suffix.lower() == ".gguf":
        return _decoded(path, progress)
    made: dict[str, torch.Tensor] = {}
    decoded: dict[str, int] = {}
    for name, value in load_quantized(path, progress=progress).items():
        if not isinstance(value, QuantizedTensor):
            made[name] = value
            continue
        kind = format_of(value)
        if kind in COMFY:
            made |= stored(value, name.removesuffix(".weight"), "comfy")
            continue
        made[name] = value.dequantize().to(torch.bfloat16)
        known_as = kind or value._layout_cls
        decoded[known_as] = decoded.get(known_as, 0) + 1
    return made, [
        f"{count} weights in {kind}, which ComfyUI does not know, are decoded to bf16"
        for kind, count in decoded.items()
    ]


def _decoded(path: str | os.PathLike, progress: Progress | None) -> tuple[dict, list[str]]:
    with tempfile.TemporaryDirectory(prefix="pestle-gguf-") as folder:
        file = Path(folder) / "decoded.safetensors"
        dequantize_file(path, file, dtype="bf16", progress=progress)
        made = load_file(file)
    return made, [f"{Path(path).name} is GGUF: its weights are decoded to bf16"]
