"""The layout and options of each format of `formats/formats.def`, by the name that files use."""

from __future__ import annotations

import torch

from ..errors import InvalidArgumentError
from . import layouts
from .layout import _LAYOUTS, QuantizedLayout

FORMATS: dict[str, tuple[type[QuantizedLayout], dict]] = {
    "fp8": (layouts.TensorCoreFP8Layout, {}),
    "fp8-e5m2": (layouts.TensorCoreFP8Layout, {"dtype": torch.float8_e5m2}),
    "fp8-row": (layouts.FP8RowLayout, {}),
    "fp8-block": (layouts.FP8BlockLayout, {}),
    "nvfp4": (layouts.TensorCoreNVFP4Layout, {}),
    "mxfp8": (layouts.TensorCoreMXFP8Layout, {}),
    "mxfp4": (layouts.MXFP4Layout, {}),
    "int8": (layouts.TensorWiseINT8Layout, {}),
    "int8-row": (layouts.TensorWiseINT8Layout, {"per_channel": True}),
    "int8-convrot": (layouts.TensorWiseINT8Layout, {"per_channel": True, "convrot": True}),
    "int4-g32": (layouts.INT4Layout, {"group_size": 32}),
    "int4-g64": (layouts.INT4Layout, {"group_size": 64}),
    "int4-g128": (layouts.INT4Layout, {"group_size": 128}),
    "w4a8": (layouts.AsymW4A8Int8Layout, {}),
    "w4a4-convrot": (layouts.TensorCoreConvRotW4A4Layout, {}),
}

# Pestle's own layouts stay reachable when somebody registers another one under the same name.
_OWN = {cls: f"pestle.{cls.__name__}" for cls in layouts.LAYOUTS}
_LAYOUTS.update({name: cls for cls, name in _OWN.items()})


def name_of(cls: type[QuantizedLayout]) -> str:
    """The name that a layout is registered under."""
    if _LAYOUTS.get(cls.__name__) is cls:
        return cls.__name__
    for name, layout in _LAYOUTS.items():
        if layout is cls:
            return name
    raise InvalidArgumentError(
        f"{cls.__name__} is not registered: pestle.register_layout_class({cls.__name__!r}, "
        f"{cls.__name__})"
    )


def resolve(layout: str | type[QuantizedLayout]) -> tuple[str, type[QuantizedLayout], dict]:
    """Registered name, class and options of a layout given by class, registered name or format."""
    if isinstance(layout, type):
        return name_of(layout), layout, {}
    if layout in _LAYOUTS:
        return layout, _LAYOUTS[layout], {}
    if layout in FORMATS:
        cls, options = FORMATS[layout]
        return name_of(cls), cls, options
    known = ", ".join([*FORMATS, *(name for name in _LAYOUTS if not name.startswith("pestle."))])
    raise InvalidArgumentError(f"unknown layout {layout!r}: use one of {known}")
