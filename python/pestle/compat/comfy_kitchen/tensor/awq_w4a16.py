"""AWQ as ComfyUI stores it."""

from pestle.quantized.layouts import TensorCoreAWQW4A16Layout

__all__ = ["TensorCoreAWQW4A16Layout"]
