"""INT4 of the rotated weight."""

from pestle.quantized.layouts import TensorCoreConvRotW4A4Layout

from .._functions import (
    convrot_w4a4_linear,
    dequantize_convrot_w4a4_weight,
    quantize_convrot_w4a4_weight,
)

__all__ = [
    "TensorCoreConvRotW4A4Layout",
    "convrot_w4a4_linear",
    "dequantize_convrot_w4a4_weight",
    "quantize_convrot_w4a4_weight",
]
