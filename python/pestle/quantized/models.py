"""quantize_: a model's weights become quantised tensors, by the recipe of `pestle quantize`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import torch
from torch import nn

from ..errors import InvalidArgumentError
from . import _plan, _stored
from .report import Layer, Report, remember
from .tensor import QuantizedTensor

_CHUNK = 1 << 24  # weights that are decoded at once to measure the error


def file_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """What a file of the model would hold: quantised weights as their stored tensors."""
    made = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, QuantizedTensor):
            made |= value.state_dict(name)
        elif isinstance(value, torch.Tensor):
            made[name] = value
    return made


def relative_error(made: QuantizedTensor, weight: torch.Tensor) -> float:
    """The norm of the difference over the norm of the weight, as reports of files have it."""
    rows = max(128, _CHUNK // max(weight.shape[-1], 1) // 128 * 128)
    noise = power = torch.zeros((), dtype=torch.float64, device=weight.device)
    whole = made.to(torch.float32)
    for start in range(0, weight.shape[0], rows):
        part = weight[start : start + rows].double()
        decoded = whole[start : start + rows].dequantize().double()
        noise = noise + (decoded - part).square().sum()
        power = power + part.square().sum()
    return float((noise / power).sqrt()) if power else 0.0


def _owners(model: nn.Module, wanted: set[str]) -> Iterator[tuple[str, nn.Module, str]]:
    """Name in the state dict, module and attribute of parameters."""
    for path, module in model.named_modules(remove_duplicate=False):
        for attribute in module._parameters:
            name = f"{path}.{attribute}" if path else attribute
            if name in wanted:
                yield name, module, attribute


def _check_finite(name: str, weight: torch.Tensor) -> None:
    if weight.is_meta:
        raise InvalidArgumentError(f"{name} is on the meta device: load the model first")
    if not bool(torch.isfinite(weight).all()):
        where = (~torch.isfinite(weight)).nonzero()[0].tolist()
        value = float(weight[tuple(where)])
        raise InvalidArgumentError(f"{name}{where} is {value}: weights must be finite")


def quantize_(
    model: nn.Module,
    recipe: str | os.PathLike | dict | None = None,
    *,
    format: str | None = None,
    layers: dict[str, str] | list[str] | None = None,
    keep: list[str] | None = None,
    default_keep: bool | None = None,
    target_error: float | None = None,
    scale_search: str | None = None,
    layout: str | None = None,
    activations: str = "float",
    progress: bool | Callable[[str, int, int], object] | None = None,
) -> Report:
    """Quantises the weights of a model in place, and returns the report.

    `recipe` is a format such as "nvfp4", the path of a recipe of `pestle quantize`, or a dict with
    its keys; the options are those of pestle.quantize_file, stand above it, and give the same
    bytes. `activations`: "row" multiplies FP8 and INT8 weights by activations that are quantised by
    rows on the way. `progress` as in quantize_file.
    """
    options = {
        "format": format, "layers": layers, "keep": keep, "default_keep": default_keep,
        "target_error": target_error, "scale_search": scale_search, "layout": layout,
    }  # fmt: skip
    if activations not in ("float", "row"):
        raise InvalidArgumentError(f'activations is "{activations}": use float or row')
    asked = _plan.choices(recipe, options)
    plan = _plan.make_plan(file_tensors(model), asked)
    todo = {name for name, one in plan.tensors.items() if one.format or one.by_error}
    owners = list(_owners(model, todo))
    found = {name: getattr(module, attribute) for name, module, attribute in owners}
    for name in todo - found.keys():
        raise InvalidArgumentError(f"{name} is a buffer, not a parameter: keep it")
    for name, weight in found.items():
        _check_finite(name, weight)
    ids = {name: id(weight) for name, weight in found.items()}
    total, done = sum(weight.nbytes for weight in found.values()), 0
    bar = _Progress(progress)
    made: dict[tuple, tuple[nn.Parameter, Layer]] = {}  # tied weights stay tied
    report = {}
    for name, module, attribute in owners:
        weight = found[name]
        key = (ids[name], plan.tensors[name].format)
        if key not in made:
            tensor, layer = _quantised(weight.detach(), plan.tensors[name], plan.layout, asked)
            tensor = _with_activations(tensor, activations)
            made[key] = (nn.Parameter(tensor, requires_grad=False), layer)
            done += weight.nbytes
        parameter, layer = made[key]
        setattr(module, attribute, parameter)
        report[name] = layer.named(name.removesuffix(".weight"))
        remember(module, attribute, report[name])
        found[name] = None
        bar(done, total)
    bar.close()
    kept = {n: Layer.kept(n, p.kept_because) for n, p in plan.tensors.items() if n not in report}
    return Report([*report.values(), *kept.values()], plan.layout, plan.notes)


class _Progress:
    def __init__(self, progress):
        from .._files import _Bar

        self.bar = _Bar() if progress is True else None
        self.report = self.bar or (progress if callable(progress) else None)

    def __call__(self, done: int, total: int) -> None:
        if self.report:
            self.report("quantising", done, total)

    def close(self) -> None:
        if self.bar:
            self.bar.close()


def _with_activations(tensor: QuantizedTensor, activations: str) -> QuantizedTensor:
    if activations != "float" and hasattr(tensor._params, "activations"):
        return tensor._rebuilt({}, activations=activations)
    return tensor


def _quantised(
    weight: torch.Tensor, planned: _plan.Planned, layout: str, asked: _plan.Choices
) -> tuple[QuantizedTensor, Layer]:
    shape, before = tuple(weight.shape), weight.nbytes
    search = asked.value("scale_search")
    if planned.by_error or search not in (None, "amax"):
        parts, line = _plan.encode_by_engine(
            weight, planned, layout, asked.value("target_error"), search
        )
        name = line["format"]
        tensor = _stored.from_stored(planned.name, parts, name, layout, shape, weight.dtype)
        tensor = tensor.to(weight.device)
        error = line["relative_error"]
    else:
        name = planned.format
        options = _stored.options_of(name, layout)
        tensor = QuantizedTensor.from_float(weight, name, **options)
        error = relative_error(tensor, weight)
    layer = Layer(
        name="", format=name, shape=shape, dtype=weight.dtype, relative_error=error,
        bytes_before=before, bytes_after=tensor.stored_bytes,
    )  # fmt: skip
    return tensor, layer


def state_dict(model: nn.Module, layout: str = "comfy") -> dict[str, torch.Tensor]:
    """What `pestle quantize` would have written: every tensor of the model, quantised weights as
    the tensors of a file."""
    made = {}
    for name, value in model.state_dict().items():
        if isinstance(value, QuantizedTensor):
            made |= _stored.stored(value, name.removesuffix(".weight"), layout)
        elif isinstance(value, torch.Tensor):
            made[name] = value
    return made


def save_model(
    model: nn.Module,
    path: str | os.PathLike,
    layout: str = "comfy",
    metadata: dict[str, str] | None = None,
    **options,
) -> None:
    """Writes a safetensors file that ComfyUI, `pestle` and load_model_ read; `options` are those of
    pestle.save_file."""
    from .._files import save_file

    quantised = {
        name.removesuffix(".weight"): value
        for name, value in model.state_dict().items()
        if isinstance(value, QuantizedTensor)
    }
    entries = {**(metadata or {}), **_stored.file_metadata(quantised, layout)}
    save_file(state_dict(model, layout), path, entries, **options)
