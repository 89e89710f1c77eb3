"""Quantised tensors and models: docs/quantized.md.

w = pestle.QuantizedTensor.from_float(weight, "nvfp4")
y = torch.nn.functional.linear(x, w)
"""

from . import handlers, layouts
from ._strict import DecodedError, DecodeWarning, decodes, strict
from .layout import (
    BaseLayoutParams,
    QuantizedLayout,
    get_cuda_capability,
    get_layout_class,
    register_layout_class,
    register_layout_op,
)
from .layouts import *  # noqa: F403
from .layouts import __all__ as _layouts
from .loading import load_model_, load_quantized
from .lora import add_lora_, merge_lora_, remove_lora_, unmerge_lora_
from .models import quantize_, save_model, state_dict
from .report import Layer, Report, report
from .tensor import QuantizedTensor, dequantize_args

__all__ = [
    "BaseLayoutParams",
    "DecodeWarning",
    "DecodedError",
    "Layer",
    "QuantizedLayout",
    "QuantizedTensor",
    "Report",
    "add_lora_",
    "decodes",
    "dequantize_args",
    "get_cuda_capability",
    "get_layout_class",
    "handlers",
    "layouts",
    "load_model_",
    "load_quantized",
    "merge_lora_",
    "quantize_",
    "register_layout_class",
    "register_layout_op",
    "remove_lora_",
    "report",
    "save_model",
    "state_dict",
    "strict",
    "unmerge_lora_",
    *_layouts,
]
