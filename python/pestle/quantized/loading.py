"""Checkpoints straight to QuantizedTensors, layer by layer: ComfyUI's, Pestle's, GPTQ's, AWQ's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from ..errors import CorruptFileError, InvalidArgumentError, UnsupportedError
from . import _int4_files, _stored, layouts
from ._listing import Described, Source, described, open_source
from .models import _owners, _Progress
from .tensor import QuantizedTensor

_KINDS = {
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8-e5m2",
    "nvfp4": "nvfp4",
    "mxfp8": "mxfp8",
    "asym_w4a8_int8": "w4a8",
    "convrot_w4a4": "w4a4-convrot",
}


@dataclass(frozen=True)
class Extras:
    """What a ComfyUI file says of a layer beside its weight."""

    input_scale: torch.Tensor | None = None
    pre_quant_scale: torch.Tensor | None = None
    full_precision: bool = False


def load_quantized(
    path: str | os.PathLike,
    device: str | torch.device | None = None,
    *,
    dtype: torch.dtype | None = None,
    progress: bool | Callable[[str, int, int], object] | None = None,
) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint by name, quantised weights as QuantizedTensors.

    A safetensors file, an index or a folder: ComfyUI's layout (older scaled_fp8 files too), the
    plain layout, GPTQ and AWQ of 4 bits with their config.json. `dtype` is what weights stand for
    where the file does not say; bfloat16 unless given. `progress` as in quantize_file.
    """
    made = dict(_stream(open_source(path), device, dtype, progress))
    return {name: tensor for name, (tensor, _) in made.items()}


def _stream(source: Source, device, dtype, progress) -> Iterator[tuple[str, tuple]]:
    """Name, tensor and Extras, one layer after the other."""
    layers = described(source)
    packed = set(_int4_files.layers_of(source))
    taken = {name for one in layers.values() for name in one.names.values()}
    taken |= {f"{layer}.comfy_quant" for layer in layers}
    taken |= {f"{layer}.{part}" for layer in packed for part in _int4_files.PARTS}
    taken |= {name for name in source.tensors if name.split(".")[-1] == "scaled_fp8"}
    rest = [name for name in source.tensors if name not in taken]
    total, done, bar = len(layers) + len(packed) + len(rest), 0, _Progress(progress)
    try:
        for layer in layers.values():
            yield f"{layer.layer}.weight", _weight(source, layer, device, dtype)
            bar(done := done + 1, total)
        for layer in packed:
            yield f"{layer}.weight", (_int4_files.load(source, layer, device), Extras())
            bar(done := done + 1, total)
        for name in rest:
            yield name, (source.read([name], device)[name], None)
            bar(done := done + 1, total)
    finally:
        bar.close()


def _weight(source: Source, layer: Described, device, dtype) -> tuple[QuantizedTensor, Extras]:
    names = list(layer.names.values())
    found = source.read(names, device)
    parts = {suffix: found[name] for suffix, name in layer.names.items()}
    if "weight" not in parts:
        raise CorruptFileError(f"{layer.layer}: described as {layer.kind}, but it has no weight")
    dtype = layer.dtype or dtype or torch.bfloat16
    count = layer.config.get("num_experts")
    if count:
        count = int(count)
        experts = [_expert(parts, i, count, layer.layer) for i in range(count)]
        weight = torch.stack([_one(layer, expert, dtype) for expert in experts])
    else:
        weight = _one(layer, parts, dtype)
    return weight, _extras(layer, parts)


def _extras(layer: Described, parts: dict[str, torch.Tensor]) -> Extras:
    scale = parts.get("input_scale")
    if layer.config.get("older") and scale is not None and float(scale) == 1:
        scale = None  # older files write 1 where there is none
    return Extras(
        scale, parts.get("pre_quant_scale"), bool(layer.config.get("full_precision_matrix_mult"))
    )


def _expert(parts: dict[str, torch.Tensor], i: int, count: int, layer: str) -> dict:
    """The parts of one weight of a bank."""
    made = {}
    for suffix, tensor in parts.items():
        if suffix == "weight" and (tensor.ndim != 3 or tensor.shape[0] != count):
            raise CorruptFileError(
                f"{layer}: {count} experts, but its weight has shape {list(tensor.shape)}"
            )
        shared = tensor.ndim == 0 or tensor.shape[0] != count or suffix == "weight_codebook"
        made[suffix] = tensor if shared else tensor[i]
    return made


def _one(layer: Described, parts: dict, dtype: torch.dtype) -> QuantizedTensor:
    kind, config = layer.kind, layer.config
    if layer.ours:
        name = kind
    elif kind == "int8_tensorwise":
        name = _int8_kind(config, parts)
    elif kind == "awq_w4a16":
        return _awq(layer, parts, dtype)
    else:
        name = _KINDS.get(kind)
    if name is None or name not in _stored.FORMATS:
        known = ", ".join([*_KINDS, "int8_tensorwise", "awq_w4a16"])
        raise UnsupportedError(f"{layer.layer}: format {kind!r} is not one of {known}")
    shape = layer.shape if layer.shape and len(layer.shape) == 2 else None
    return _stored.from_stored(layer.layer, parts, name, layer.layout, shape, dtype, config)


def _int8_kind(config: dict, parts: dict) -> str:
    inner = config.get("params")
    inner = inner if isinstance(inner, dict) else {}
    if config.get("convrot", inner.get("convrot", False)):
        return "int8-convrot"
    scale = parts.get("weight_scale")
    return "int8" if scale is None or scale.numel() == 1 else "int8-row"


def _awq(layer: Described, parts: dict, dtype: torch.dtype) -> QuantizedTensor:
    for suffix in ("weight_scale", "weight_zeros"):
        if suffix not in parts:
            raise CorruptFileError(f"{layer.layer}: awq_w4a16 needs {layer.layer}.{suffix}")
    codes = parts["weight"]
    params = layouts.TensorCoreAWQW4A16Layout.Params(
        parts["weight_scale"], dtype, (codes.shape[0], codes.shape[1] * 2), parts["weight_zeros"],
        int(layer.config.get("group_size", 64)),
    )  # fmt: skip
    made = QuantizedTensor(codes.view(torch.int8), "TensorCoreAWQW4A16Layout", params)
    _stored.check(made, layer.layer)
    return made


# ---- into a model


def load_model_(
    model: nn.Module,
    path: str | os.PathLike,
    *,
    prefix: str = "",
    strict: bool = True,
    device: str | torch.device | None = None,
    progress: bool | Callable[[str, int, int], object] | None = None,
) -> list[str]:
    """Loads a checkpoint into a model, quantised weights as they are, layer by layer; returns the
    names that only one of both has. `prefix` stands before the model's names in the file, such as
    "model.diffusion_model."; with `strict` such names are an error, raised before anything is done.

    ComfyUI's input_scale quantises a layer's input with that scale unless the file asks for
    full_precision_matrix_mult; pre_quant_scale multiplies it.
    """
    source = open_source(path)
    state = model.state_dict(keep_vars=True)
    odd = _odd_names(source, state, prefix)
    if strict and odd:
        raise InvalidArgumentError(f"{path}: names that only one side has: {', '.join(odd[:8])}")
    owners = {name: (module, key) for name, module, key in _owners(model, set(state))}
    with torch.no_grad():
        for stored, (tensor, extras) in _stream(source, device, None, progress):
            name = stored.removeprefix(prefix)
            if not stored.startswith(prefix) or name not in state:
                continue
            if isinstance(tensor, QuantizedTensor):
                _place(stored, tensor, state[name], *owners[name], extras)
            elif name in owners and device is not None:
                module, key = owners[name]
                given = tensor.to(state[name].dtype)
                setattr(module, key, nn.Parameter(given, state[name].requires_grad))
            else:
                state[name].copy_(tensor)
    return odd


def _odd_names(source: Source, state: dict, prefix: str) -> list[str]:
    layers = described(source)
    own = {name for one in layers.values() for name in one.names.values()}
    own |= {f"{layer}.comfy_quant" for layer in layers}
    weights = {f"{layer}.weight" for layer in [*layers, *_int4_files.layers_of(source)]}
    packed = _int4_files.layers_of(source)
    own |= {f"{layer}.{part}" for layer in packed for part in _int4_files.PARTS}
    marks = {name for name in source.tensors if name.split(".")[-1] == "scaled_fp8"}
    plain = set(source.tensors) - own - marks
    has = {name.removeprefix(prefix) for name in plain | weights if name.startswith(prefix)}
    return sorted(has ^ set(state))


def _place(name: str, tensor: QuantizedTensor, old, module: nn.Module, key: str, extras) -> None:
    shape = tuple(old.shape)
    if tuple(tensor._params.orig_shape) != shape:  # padding that the file does not tell
        tensor = _unpadded(name, tensor, shape)
    if old.dtype.is_floating_point and old.dtype.itemsize > 1:
        tensor = tensor._rebuilt({}, orig_dtype=old.dtype)
    setattr(module, key, nn.Parameter(tensor, requires_grad=False))
    if extras.pre_quant_scale is not None or extras.input_scale is not None:
        _prepare_input(module, extras, name)


def _unpadded(name: str, tensor: QuantizedTensor, shape: tuple) -> QuantizedTensor:
    padded = tuple(tensor._layout.get_padded_shape(shape))
    if padded != tuple(tensor.padded_shape):
        raise InvalidArgumentError(
            f"{name} has shape {list(tensor.shape)} in the file and {list(shape)} in the model"
        )
    return tensor._rebuilt({}, orig_shape=shape)


def _prepare_input(module: nn.Module, extras: Extras, name: str) -> None:
    """Makes the layer one that prepares its input as the file says."""
    if type(module) is not nn.Linear:
        raise UnsupportedError(
            f"{name}: input_scale and pre_quant_scale need nn.Linear, not {type(module).__name__}"
        )
    module.__class__ = PreparedLinear
    device = module.weight._qdata.device
    for own in ("input_scale", "pre_quant_scale"):
        value = getattr(extras, own)
        module.register_buffer(own, None if value is None else value.to(device))
    module.quantises_input = (
        extras.input_scale is not None
        and not extras.full_precision
        and module.weight._layout.QUANTIZES_INPUT
    )


class PreparedLinear(nn.Linear):
    """A linear whose input is multiplied by pre_quant_scale and quantised by input_scale, where a
    file has these."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.pre_quant_scale is not None:
            x = x * self.pre_quant_scale.to(x.dtype)
        if not self.quantises_input or not isinstance(self.weight, QuantizedTensor):
            return nn.functional.linear(x, self.weight, self.bias)
        rows = x.reshape(-1, x.shape[-1])
        codes = QuantizedTensor.from_float(rows, self.weight._layout_cls, scale=self.input_scale)
        out = nn.functional.linear(codes, self.weight, self.bias)
        return out.view(*x.shape[:-1], out.shape[-1])
