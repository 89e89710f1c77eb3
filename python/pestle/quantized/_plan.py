"""Which weight of a model becomes what: the plan of `pestle quantize` itself, asked without a
weight being written. The file that it reads is a header and a hole as large as the model."""

from __future__ import annotations

import json
import os
import struct
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch

from .._files import _SPELLING, quantize_file
from ..errors import InvalidArgumentError, UnsupportedError
from ._formats import FORMATS

_KEYS = ("format", "layers", "keep", "default_keep", "target_error", "scale_search", "layout")


@dataclass
class Choices:
    """What the caller asked for, in the words of quantize_file."""

    format: str | None = None
    layers: dict[str, str] | list[str] | None = None
    keep: list[str] | None = None
    default_keep: bool | None = None
    target_error: float | None = None
    scale_search: str | None = None
    layout: str | None = None
    recipe: str | None = None
    read: dict = field(default_factory=dict)  # the recipe's own words

    def options(self) -> dict:
        """For quantize_file."""
        return {key: getattr(self, key) for key in (*_KEYS, "recipe")}

    def value(self, key: str):
        """The caller's word, or the recipe's."""
        own = getattr(self, key)
        if own is None and key == "target_error" and self.format is not None:
            return None
        if own is None and key == "format" and self.target_error is not None:
            return None
        return self.read.get(key) if own is None else own


def choices(recipe: str | os.PathLike | dict | None, options: dict) -> Choices:
    """A recipe is a format's name, the path of a TOML file, or what such a file would hold."""
    given = {key: value for key, value in options.items() if value is not None}
    if recipe is None:
        return Choices(**given)
    if isinstance(recipe, dict):
        return Choices(**{**_from_dict(recipe), **given})
    if str(recipe) in FORMATS:
        return Choices(**{"format": str(recipe), **given})
    if not Path(recipe).is_file():
        raise InvalidArgumentError(
            f"recipe {os.fspath(recipe)!r} is neither a file nor a format: {', '.join(FORMATS)}"
        )
    return Choices(**given, recipe=os.fspath(recipe), read=_read(recipe))


def _from_dict(recipe: dict) -> dict:
    known = {*_KEYS, "layer"} - {"layers"}
    unknown = sorted(set(recipe) - known - {"layers"})
    if unknown:
        raise InvalidArgumentError(f"recipe has no key {unknown[0]!r}: {', '.join(sorted(known))}")
    made = {key: value for key, value in recipe.items() if key != "layer"}
    if "layer" in recipe:
        made["layers"] = [f"{rule['pattern']}={rule['format']}" for rule in recipe["layer"]]
    return made


def _read(path: str | os.PathLike) -> dict:
    """The recipe's keys; it is checked by the library, which reads it too."""
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        try:
            import tomli as tomllib
        except ModuleNotFoundError:
            raise UnsupportedError(
                "recipe files need Python 3.11 or the package tomli; give a dict"
            ) from None
    try:
        return tomllib.loads(Path(path).read_text())
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgumentError(f"{os.fspath(path)}: {error}") from None


@dataclass(frozen=True)
class Planned:
    """One tensor of the model."""

    name: str
    format: str | None  # None: kept, or chosen by target_error
    kept_because: str = ""
    by_error: bool = False


@dataclass(frozen=True)
class Plan:
    layout: str
    tensors: dict[str, Planned]
    notes: tuple[str, ...] = ()


def _write_header(tensors: dict[str, torch.Tensor], path: Path) -> None:
    header, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _SPELLING[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def make_plan(tensors: dict[str, torch.Tensor], asked: Choices) -> Plan:
    """`tensors`: everything that a file of the model would hold, by name; none is read."""
    known = {name: tensor for name, tensor in tensors.items() if tensor.dtype in _SPELLING}
    with tempfile.TemporaryDirectory(prefix="pestle-plan-") as folder:
        source = Path(folder) / "model.safetensors"
        _write_header(known, source)
        options = asked.options() | {"target_error": None, "scale_search": None}

        def planned(name: str | None) -> dict:
            options["format"] = name
            target = Path(folder) / "planned.safetensors"
            return quantize_file(source, target, dry_run=True, **options)

        error = asked.value("target_error")
        if error is None:
            report = planned(asked.value("format"))
            chosen = {}
        else:
            if not 0 < error < 1:
                raise InvalidArgumentError("target_error must be above 0 and below 1, such as 0.02")
            # What follows the format asked for is what no pattern names.
            report, other = planned("fp8"), planned("int8")
            pairs = zip(report["layers"], other["layers"], strict=True)
            chosen = {a["name"] for a, b in pairs if a["format"] != b["format"]}
    made = {}
    for layer in report["layers"]:
        quantised = layer["format"] is not None
        name = f"{layer['name']}.weight" if quantised else layer["name"]
        by_error = layer["name"] in chosen
        made[name] = Planned(
            name, None if by_error else layer["format"], layer.get("kept_because", ""), by_error
        )
    for name, tensor in tensors.items():
        if name not in known:
            made[name] = Planned(name, None, f"dtype {tensor.dtype}, which files don't have")
    return Plan(report["layout"], made, tuple(report["notes"]))


def encode_by_engine(
    weight: torch.Tensor, planned: Planned, layout: str, error: float | None, search: str | None
) -> tuple[dict[str, torch.Tensor], dict]:
    """A weight through `pestle quantize`: its stored tensors, and the report's line."""
    from .._files import load_file, save_file

    with tempfile.TemporaryDirectory(prefix="pestle-layer-") as folder:
        source, target = Path(folder) / "layer.safetensors", Path(folder) / "made.safetensors"
        save_file({"layer.weight": weight}, source)
        how = {"layout": layout, "scale_search": search, "default_keep": False}
        if planned.by_error:
            report = quantize_file(source, target, target_error=error, **how)
        else:
            report = quantize_file(source, target, planned.format, **how)
        found = load_file(target)
    return {name.removeprefix("layer."): t for name, t in found.items()}, report["layers"][0]
