"""Quantised tensors and the tensors that files store, in ComfyUI's layout and in the plain one
(docs/file-layouts.md)."""

from __future__ import annotations

import json

import torch
from torch.nn import functional

from .._contract import DTYPES
from ..errors import CorruptFileError, InvalidArgumentError, UnsupportedError
from . import _geometry as geometry
from . import layouts
from ._formats import FORMATS, name_of
from .tensor import QuantizedTensor

# What LAYER.comfy_quant says of each format that ComfyUI's layout has.
COMFY: dict[str, dict] = {
    "fp8": {"format": "float8_e4m3fn"},
    "fp8-e5m2": {"format": "float8_e5m2"},
    "nvfp4": {"format": "nvfp4"},
    "mxfp8": {"format": "mxfp8"},
    "int8": {"format": "int8_tensorwise"},
    "int8-row": {"format": "int8_tensorwise"},
    "int8-convrot": {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 256},
    "w4a8": {
        "format": "asym_w4a8_int8", "group_size": 16, "convrot": True, "convrot_groupsize": 256,
    },
    "w4a4-convrot": {"format": "convrot_w4a4", "convrot_groupsize": 256},
}  # fmt: skip

LAYOUTS = ("comfy", "plain")
_ORDERS = {"comfy": ("swizzled", "high_first"), "plain": ("plain", "low_first")}


def check_layout(layout: str) -> str:
    if layout not in LAYOUTS:
        raise InvalidArgumentError(f'layout is "{layout}": use comfy or plain')
    return layout


def format_of(qt: QuantizedTensor) -> str | None:
    """The format of files that a tensor is in; None where files have none for its options."""
    params = qt._params
    found = None
    for name, (layout, options) in FORMATS.items():
        if qt._layout is not layout and not issubclass(qt._layout, layout):
            continue
        wanted = dict(options)
        dtype = wanted.pop("dtype", torch.float8_e4m3fn)
        by_row = wanted.pop("per_channel", False)
        if qt._qdata.dtype.is_floating_point and qt._qdata.dtype != dtype:
            continue
        if layout is layouts.TensorWiseINT8Layout:
            if by_row != (params.scale.numel() > 1 or params.scale.ndim > 1):
                continue
            wanted.setdefault("convrot", False)
        if all(getattr(params, key) == value for key, value in wanted.items()):
            found = name
            break
    rotation = getattr(params, "convrot_groupsize", 256)
    if found and rotation != 256 and found in ("int8-convrot", "w4a8", "w4a4-convrot"):
        return None
    if getattr(params, "block_rows", 128) != 128 or getattr(params, "zero", None) is not None:
        return None
    return found


def options_of(name: str, layout: str) -> dict:
    """Options of quantize that make a format's tensors in the order of a file's layout."""
    scale_layout, nibbles = _ORDERS[check_layout(layout)]
    cls = FORMATS[name][0]
    if cls is layouts.TensorCoreMXFP8Layout:
        return {"scale_layout": scale_layout}
    if cls in (layouts.TensorCoreNVFP4Layout, layouts.MXFP4Layout):
        return {"scale_layout": scale_layout, "nibbles": nibbles}
    return {}


def reordered(qt: QuantizedTensor, layout: str) -> QuantizedTensor:
    """The same codes and scales in the order of a file's layout, rows padded as there."""
    import pestle

    qt = _padded(qt)
    scale_layout, nibbles = _ORDERS[layout]
    if getattr(qt._params, "nibbles", nibbles) != nibbles:
        qt = qt._rebuilt({"qdata": pestle.swap_nibbles(qt._qdata)}, nibbles=nibbles)
    if getattr(qt._params, "scale_layout", scale_layout) != scale_layout:
        name, field = _block_scales(qt)
        scales = getattr(qt._params, name)
        if scale_layout == "plain":
            rows, columns = qt.padded_shape
            scales = geometry._untiled(scales, rows, columns // field.columns)
        else:
            scales = geometry._tiled(scales)
        qt = qt._rebuilt({name: scales}, scale_layout=scale_layout)
    return qt


def _block_scales(qt: QuantizedTensor) -> tuple[str, geometry.Field]:
    fields = qt._layout.geometry(qt._params)
    return next((n, f) for n, f in fields.items() if n != "qdata" and f.rows and f.columns)


def _padded(qt: QuantizedTensor) -> QuantizedTensor:
    """With rows of zeros up to the layout's multiple, which a slice may lack."""
    rows = qt._qdata.shape[-2]
    missing = -rows % qt._layout.BLOCK[0]
    if not missing:
        return qt
    zeros = functional.pad(geometry.as_bytes(qt._qdata), (0, 0, 0, missing))
    made = {"qdata": geometry.like(zeros, qt._qdata)}
    name, field = _block_scales(qt)
    scales = getattr(qt._params, name)
    if not field.tiles:
        padded = functional.pad(geometry.as_bytes(scales), (0, 0, 0, missing))
        made[name] = geometry.like(padded, scales)
    return qt._rebuilt(made)


def stored(qt: QuantizedTensor, layer: str, layout: str = "comfy") -> dict[str, torch.Tensor]:
    """The tensors that a file stores for a quantised weight of a layer."""
    name = format_of(qt)
    if name is None or (layout == "comfy" and name not in COMFY):
        has = "files have" if layout == "plain" else "ComfyUI's layout has"
        raise UnsupportedError(f"{layer}: {has} no place for {name or qt}; the layout is {layout}")
    qt = reordered(qt, check_layout(layout))
    tensors = qt.state_dict(f"{layer}.weight")
    codes, scale = f"{layer}.weight", f"{layer}.weight_scale"
    if layout == "plain":
        if tensors[codes].dtype == torch.int8 and qt._layout.PACKED > 1:
            tensors[codes] = tensors[codes].view(torch.uint8)
        if scale in tensors and tensors[scale].ndim == 2 and name in ("fp8-row", "int8-row",
                                                                     "int8-convrot"):  # fmt: skip
            tensors[scale] = tensors[scale].reshape(-1)
        return tensors
    if name == "mxfp8":
        tensors[scale] = tensors[scale].view(torch.uint8)
    text = json.dumps(COMFY[name], separators=(",", ":")).encode()
    tensors[f"{layer}.comfy_quant"] = torch.tensor(list(text), dtype=torch.uint8)
    return tensors


def file_metadata(models: dict[str, QuantizedTensor], layout: str) -> dict[str, str]:
    """The entries of a file's metadata for its quantised layers."""
    ours, theirs = {}, {}
    spelled = {dtype: name.upper() for name, dtype in DTYPES.items()}
    for layer, qt in sorted(models.items()):
        name = format_of(qt)
        shape = [int(size) for size in qt._params.orig_shape]
        ours[layer] = {"format": name, "shape": shape, "dtype": spelled[qt.dtype]}
        theirs[layer] = COMFY.get(name)
    entry = {"version": 1, "layout": layout, "layers": ours}
    made = {"pestle": json.dumps(entry, separators=(",", ":"))}
    if layout == "comfy":
        entry = {"format_version": "1.0", "layers": theirs}
        made["_quantization_metadata"] = json.dumps(entry, separators=(",", ":"))
    return made


class _Parts:
    """The stored tensors of a layer by suffix, and what its description says."""

    def __init__(self, layer: str, name: str, tensors: dict[str, torch.Tensor], config: dict):
        inner = config.get("params")
        self.layer, self.name, self.tensors = layer, name, tensors
        self.config = {**inner, **config} if isinstance(inner, dict) else config

    def __getitem__(self, suffix: str) -> torch.Tensor:
        if suffix not in self.tensors:
            raise CorruptFileError(
                f"{self.layer}: {self.name} needs {self.layer}.{suffix}, which is missing"
            )
        return self.tensors[suffix]

    def codes(self) -> torch.Tensor:
        codes, wanted = self["weight"], _code_dtype(self.name)
        if codes.element_size() != 1:
            raise CorruptFileError(
                f"{self.layer}.weight has dtype {codes.dtype}: {self.name} has {wanted}"
            )
        return codes if codes.dtype == wanted else codes.view(wanted)

    def rotation(self) -> dict:
        return {"convrot_groupsize": int(self.config.get("convrot_groupsize", 256))}


def _fp8_values(parts: _Parts) -> dict:
    if "weight_scale" not in parts.tensors:
        return {"scale": torch.ones((), device=parts["weight"].device)}
    scale = parts["weight_scale"]
    return {"scale": scale.reshape(()) if scale.numel() == 1 else scale}


def _nvfp4_values(parts: _Parts) -> dict:
    return {"scale": parts["weight_scale_2"].reshape(()), "block_scale": parts["weight_scale"]}


def _int8_values(parts: _Parts) -> dict:
    scale = parts["weight_scale"]
    made = {"scale": scale.reshape(-1, 1) if scale.ndim or scale.numel() > 1 else scale}
    if parts.name == "int8":
        made["scale"] = scale.reshape(()) if scale.numel() == 1 else made["scale"]
    return made | ({"convrot": True} | parts.rotation() if parts.name == "int8-convrot" else {})


def _w4a8_values(parts: _Parts) -> dict:
    if "weight_codebook" not in parts.tensors:
        raise UnsupportedError(
            f"{parts.layer}: W4A8 without weight_codebook has codes of even steps, for which "
            "Pestle has no kernel: quantise it again with one"
        )
    return {
        "scale": parts["weight_s_rel"],
        "s_channel": parts["weight_s_channel"].reshape(-1),
        "codebook": parts["weight_codebook"],
        "correction": parts.tensors.get("weight_correction"),
        "group_size": int(parts.config.get("group_size", 16)),
    } | parts.rotation()


def _w4a4_values(parts: _Parts) -> dict:
    kind = parts.config.get("linear_dtype", "int4")
    return {"scale": parts["weight_scale"].reshape(-1), "linear_dtype": kind} | parts.rotation()


def _int4_values(parts: _Parts) -> dict:
    return {"scale": parts["weight_scale"], "group_size": FORMATS[parts.name][1]["group_size"]}


_VALUES = {
    layouts.TensorCoreFP8Layout: _fp8_values,
    layouts.TensorCoreNVFP4Layout: _nvfp4_values,
    layouts.TensorWiseINT8Layout: _int8_values,
    layouts.AsymW4A8Int8Layout: _w4a8_values,
    layouts.TensorCoreConvRotW4A4Layout: _w4a4_values,
    layouts.INT4Layout: _int4_values,
}


def from_stored(
    layer: str,
    tensors: dict[str, torch.Tensor],
    name: str,
    layout: str = "comfy",
    shape: tuple[int, int] | None = None,
    dtype: torch.dtype = torch.bfloat16,
    config: dict | None = None,
) -> QuantizedTensor:
    """The quantised weight that a file's tensors of a layer ("weight", "weight_scale", …) are.

    `shape`: before padding, which ComfyUI's layout does not tell. `config`: its comfy_quant.
    """
    cls, parts = FORMATS[name][0], _Parts(layer, name, tensors, config or {})
    codes = parts.codes()
    make = _VALUES.get(cls, lambda parts: {"scale": parts["weight_scale"]})
    order = dict(zip(("scale_layout", "nibbles"), _ORDERS[layout], strict=True))
    known = cls.Params.__dataclass_fields__
    values = make(parts) | {key: value for key, value in order.items() if key in known}
    logical = tuple(cls.get_logical_shape_from_storage(tuple(codes.shape)))
    params = cls.Params(orig_dtype=dtype, orig_shape=tuple(shape or logical), **values)
    made = QuantizedTensor(codes, name_of(cls), params)
    check(made, layer)
    return made


def _code_dtype(name: str) -> torch.dtype:
    if name == "fp8-e5m2":
        return torch.float8_e5m2
    if name.startswith("fp8") or name == "mxfp8":
        return torch.float8_e4m3fn
    return (
        torch.int8 if name.startswith("int8") or name in ("w4a8", "w4a4-convrot") else torch.uint8
    )


def check(qt: QuantizedTensor, layer: str) -> None:
    """A sentence where sizes don't fit each other or a scale is not a number."""
    fields = qt._layout.geometry(qt._params)
    padded = tuple(qt._layout.get_padded_shape(tuple(qt._params.orig_shape)))
    if padded != tuple(qt.padded_shape):
        raise CorruptFileError(
            f"{layer}: codes of shape {qt.storage_shape} stand for {list(qt.padded_shape)}, but a "
            f"weight of shape {list(qt._params.orig_shape)} has {list(padded)}"
        )
    for name, field in (fields or {}).items():
        if name == "qdata":
            continue
        tensor = getattr(qt._params, name)
        expected = _expected(field, *padded[-2:], tensor)
        if expected is not None and tuple(tensor.shape) != expected:
            raise CorruptFileError(
                f"{layer}: {name} has shape {list(tensor.shape)}: a weight of shape "
                f"{list(qt._params.orig_shape)} in {qt._layout_cls} has {list(expected)}"
            )
        values = tensor.float() if tensor.element_size() == 1 else tensor
        if tensor.dtype.is_floating_point and not bool(torch.isfinite(values).all()):
            raise CorruptFileError(f"{layer}: {name} has entries that are NaN or infinite")


def _expected(field: geometry.Field, rows: int, columns: int, tensor) -> tuple | None:
    if field.shared:
        return None
    if field.axes == 0:
        return tuple(tensor.shape) if tensor.numel() == 1 else ()
    down = geometry.cdiv(rows, field.rows) if field.rows else 1
    across = geometry.cdiv(columns, field.columns) if field.columns else 1
    if field.axes == 1:
        return (down,)
    if field.tiles:
        return (geometry.cdiv(down, 128) * 128, geometry.cdiv(across, 4) * 4)
    return (across, down) if field.flipped else (down, across)
