"""What a file or folder holds: names of its tensors, and what is said of its layers."""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import torch

from .. import _library
from .._contract import DTYPES
from .._files import _with_progress, load_file
from ..errors import CorruptFileError

_DTYPES = {name.upper(): dtype for name, dtype in DTYPES.items()}


@dataclass
class Source:
    """A model in files: tensors are read when they are asked for."""

    path: str
    tensors: dict[str, dict]  # name: {"dtype", "shape"}
    metadata: dict[str, str]
    config: dict = field(default_factory=dict)  # a folder's config.json

    def read(self, names: list[str], device=None) -> dict[str, torch.Tensor]:
        return load_file(self.path, device, names=names)


def open_source(path: str | os.PathLike) -> Source:
    text = ctypes.c_void_p()
    where = os.fspath(path)
    _with_progress(
        lambda hook: _library.LIBRARY.pestle_list_tensors(where.encode(), ctypes.byref(text)), None
    )
    listed = json.loads(_library.take_text(text.value))
    config = Path(path) / "config.json"
    return Source(
        where,
        {tensor["name"]: tensor for tensor in listed["tensors"]},
        listed["metadata"],
        _json(config.read_text(), str(config)) if config.is_file() else {},
    )


def _json(text: str, where: str) -> dict:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise CorruptFileError(f"{where}: {error}") from None
    if not isinstance(found, dict):
        raise CorruptFileError(f"{where}: its JSON is no object")
    return found


@dataclass
class Described:
    """A quantised layer of a file."""

    layer: str
    kind: str  # a format of ComfyUI's, or of `formats.def` where `ours`
    config: dict = field(default_factory=dict)
    ours: bool = False
    layout: str = "comfy"
    shape: tuple[int, ...] | None = None
    dtype: torch.dtype | None = None
    names: dict[str, str] = field(default_factory=dict)  # suffix: name of the tensor


# Suffixes of a layer's tensors, and the names that older files have for them.
SUFFIXES = ("weight", "weight_scale", "weight_scale_2", "weight_s_rel", "weight_s_channel",
            "weight_codebook", "weight_correction", "weight_zeros", "input_scale",
            "pre_quant_scale")  # fmt: skip
_OLDER = {"weight_scale": "scale_weight", "input_scale": "scale_input"}


def described(source: Source) -> dict[str, Described]:
    """The quantised layers: by comfy_quant, by the metadata, or as ComfyUI's older FP8 files."""
    found = _of_metadata(source)
    for name in source.tensors:
        if name.endswith(".comfy_quant"):
            layer = name.removesuffix(".comfy_quant")
            text = bytes(source.read([name])[name].tolist()).decode(errors="replace")
            _say(found, layer, _json(text, name))
    _older(source, found)
    for one in found.values():
        one.names = _names(source, one.layer)
    return found


def _say(found: dict[str, Described], layer: str, config: dict) -> None:
    if not isinstance(config.get("format"), str):
        raise CorruptFileError(f"{layer}.comfy_quant names no format: {config}")
    known = found.get(layer)
    if known is not None and known.ours:
        known.config = config
    else:
        found[layer] = Described(layer, config["format"], config)


def _of_metadata(source: Source) -> dict[str, Described]:
    found: dict[str, Described] = {}
    if "_quantization_metadata" in source.metadata:
        entry = _json(source.metadata["_quantization_metadata"], "_quantization_metadata")
        for layer, config in entry.get("layers", {}).items():
            _say(found, layer, config)
    if "pestle" in source.metadata:
        entry = _json(source.metadata["pestle"], "the metadata entry pestle")
        for layer, own in entry.get("layers", {}).items():
            config = found[layer].config if layer in found else {}
            found[layer] = Described(
                layer, own["format"], config, True, own.get("layout", entry.get("layout", "comfy")),
                tuple(own["shape"]), _DTYPES.get(own["dtype"]),
            )  # fmt: skip
    return found


def _older(source: Source, found: dict[str, Described]) -> None:
    """scaled_fp8 files: a marker of two elements asks for products in full precision."""
    marks = [name for name in source.tensors if name.split(".")[-1] == "scaled_fp8"]
    full = any(source.tensors[name]["shape"] == [2] for name in marks)
    for name, tensor in source.tensors.items():
        layer = name.removesuffix(".weight")
        if not name.endswith(".weight") or f"{layer}.scale_weight" not in source.tensors:
            continue
        kind = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}.get(tensor["dtype"])
        if kind and layer not in found:
            config = {"format": kind, "older": True}
            found[layer] = Described(layer, kind, config | {"full_precision_matrix_mult": full})


def _names(source: Source, layer: str) -> dict[str, str]:
    made = {}
    for suffix in SUFFIXES:
        for spelled in (suffix, _OLDER.get(suffix)):
            if spelled and f"{layer}.{spelled}" in source.tensors:
                made[suffix] = f"{layer}.{spelled}"
                break
    return made
