"""FP8 with one scale."""

from pestle.quantized.layouts import TensorCoreFP8Layout

__all__ = ["TensorCoreFP8Layout"]
