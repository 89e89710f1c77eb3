"""Where Pestle is a backend of another comfy-kitchen: its quantised weights are multiplied as they
are, and ComfyUI is told so.

There a floating-point x decodes a weight of FP8, NVFP4 or MXFP8 in each call, and ComfyUI does not
even try on GPUs without matrix units for FP4 and MX. Both are replaced here, and put back.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from types import ModuleType

import torch

import pestle
from pestle.quantized import layouts

_LAYOUTS = ("TensorCoreFP8Layout", "TensorCoreNVFP4Layout", "TensorCoreMXFP8Layout")
_FORMATS = {"nvfp4": "supports_nvfp4_compute", "mxfp8": "supports_mxfp8_compute"}
_aten = torch.ops.aten
_undo: list[Callable[[], object]] = []
# Told of each product made here: its layout, x, the weight's codes and parameters.
told: Callable[[type, torch.Tensor, torch.Tensor, object], None] | None = None


def start(theirs: ModuleType) -> None:
    """Once, until stop()."""
    if _undo:
        return
    for name in _LAYOUTS:
        layout = getattr(theirs.tensor, name, None)
        if layout is not None:
            _take_products(theirs.tensor.base, layout, getattr(layouts, name))
    _tell_comfyui()


def stop() -> None:
    while _undo:
        _undo.pop()()


# ---- products


def _operands(op, args, kwargs):
    """x, the weight [N, K] or [K, N], bias, and whether the weight stands turned; None for what is
    no plain product."""
    if op is _aten.linear.default:
        x, weight, bias = (*args, kwargs.get("bias"), None)[:3]
        return x, weight, bias, False
    if op is _aten.mm.default:
        return (*args[:2], None, True)
    bias, x, weight = args[:3]
    plain = kwargs.get("beta", 1) == kwargs.get("alpha", 1) == 1 and bias.ndim == 1
    return (x, weight, bias, True) if plain else None


def _codes(weight, turned: bool) -> torch.Tensor | None:
    """The weight's codes by rows; None where they lie the other way."""
    if hasattr(weight._params, "transposed"):
        return weight._qdata if weight._params.transposed == turned else None
    return weight._qdata.t() if turned else weight._qdata  # FP8, one scale for all


def _multiplied(quantised: type, layout: type, op, args, kwargs):
    """The product by our kernel; NotImplemented unless x is floats and the weight quantised."""
    found = _operands(op, args, kwargs)
    if found is None:
        return NotImplemented
    x, weight, bias, turned = found
    if isinstance(x, quantised) or not isinstance(weight, quantised):
        return NotImplemented
    codes = _codes(weight, turned)
    if codes is None or codes.ndim != 2 or not x.is_floating_point() or not x.ndim:
        return NotImplemented
    params = weight._params
    shape = tuple(params.orig_shape)
    values = {f.name: getattr(params, f.name) for f in dataclasses.fields(params)}
    values |= {"orig_shape": shape[::-1] if turned else shape}
    if "transposed" in values:
        values["transposed"] = False
    try:
        made = layout.Params(**values)
        out = layout.linear(x, codes, made, bias, kwargs.get("out_dtype", x.dtype))
    except (pestle.NoCapableBackendError, pestle.UnsupportedError):
        return NotImplemented
    # A compiler that traces passes by with tensors that stand for others.
    if told is not None and out is not NotImplemented and type(codes) is torch.Tensor:
        told(layout, x, codes, made)
    return out


def _take_products(base: ModuleType, layout: type, ours: type) -> None:
    table = base._LAYOUT_DISPATCH_TABLE
    for op in (_aten.linear.default, _aten.mm.default, _aten.addmm.default):
        handlers = table.setdefault(op, {})
        before = handlers.get(layout)
        handlers[layout] = _handler(base, before, ours, op)
        _undo.append(_putting_back(handlers, layout, before))


def _handler(base: ModuleType, before: Callable | None, ours: type, op) -> Callable:
    def handler(qt, args, kwargs):
        made = _multiplied(base.QuantizedTensor, ours, op, args, kwargs)
        if made is not NotImplemented:
            return made
        if before is not None:
            return before(qt, args, kwargs)
        return op(*base.dequantize_args(args), **base.dequantize_args(kwargs))

    return handler


def _putting_back(table: dict, key, before) -> Callable[[], object]:
    def put_back():
        if before is None:
            table.pop(key, None)
        else:
            table[key] = before

    return put_back


# ---- ComfyUI


def _multiplies(device) -> bool:
    """Whether Pestle has kernels for the device: a GPU that its CUDA backend runs on."""
    kind = "cuda" if device is None else torch.device(device).type
    return kind == "cuda" and any(b.name == "cuda" and b.available for b in pestle.list_backends())


def _tell_comfyui() -> None:
    """ComfyUI's questions about the GPU, where it is there; x stays in floats where the GPU has no
    units for a format, since the weight alone is what makes such a product quick."""
    management = sys.modules.get("comfy.model_management")
    algorithms = getattr(sys.modules.get("comfy.quant_ops"), "QUANT_ALGOS", {})
    if management is None or not _multiplies(None):
        return
    for name, question in _FORMATS.items():
        asked = getattr(management, question, None)
        native = asked is not None and asked()
        if asked is not None:
            _replace(management, question, _or_ours(asked))
        entry = algorithms.get(name)
        if entry is not None and not native:
            before = entry.get("quantize_input")
            entry["quantize_input"] = False
            _undo.append(_putting_back(entry, "quantize_input", before))
    asked = getattr(management, "get_disabled_quant_formats", None)
    if asked is not None:
        _replace(management, "get_disabled_quant_formats", _without_ours(asked))


def _replace(module: ModuleType, name: str, function: Callable) -> None:
    before = getattr(module, name)
    setattr(module, name, function)
    _undo.append(lambda: setattr(module, name, before))


def _or_ours(asked: Callable) -> Callable:
    return lambda device=None: asked(device) or _multiplies(device)


def _without_ours(asked: Callable) -> Callable:
    def disabled(device=None, *args, **kwargs):
        formats = asked(device, *args, **kwargs)
        return formats - set(_FORMATS) if _multiplies(device) else formats

    return disabled
