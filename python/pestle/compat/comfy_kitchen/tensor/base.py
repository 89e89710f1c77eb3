"""comfy-kitchen's names around QuantizedTensor: Pestle's own classes."""

from pestle.quantized.layout import _LAYOUTS as LAYOUTS
from pestle.quantized.layout import (
    BaseLayoutParams,
    QuantizedLayout,
    get_cuda_capability,
    get_layout_class,
    register_layout_class,
    register_layout_op,
)
from pestle.quantized.tensor import QuantizedTensor, dequantize_args

__all__ = [
    "LAYOUTS",
    "BaseLayoutParams",
    "QuantizedLayout",
    "QuantizedTensor",
    "dequantize_args",
    "get_cuda_capability",
    "get_layout_class",
    "register_layout_class",
    "register_layout_op",
]
