"""MXFP8."""

from pestle.quantized.layouts import TensorCoreMXFP8Layout

__all__ = ["TensorCoreMXFP8Layout"]
