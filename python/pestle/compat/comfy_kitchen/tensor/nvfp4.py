"""NVFP4."""

from pestle.quantized.layouts import TensorCoreNVFP4Layout

__all__ = ["TensorCoreNVFP4Layout"]
