"""comfy_kitchen.backends: each backend's functions, as attributes of its module.

from comfy_kitchen.backends import eager
eager.quantize_nvfp4(x, scale)          # as quantize_nvfp4(x, scale, backend="eager")
"""

from . import cpu, cuda, eager, triton

__all__ = ["cpu", "cuda", "eager", "triton"]
