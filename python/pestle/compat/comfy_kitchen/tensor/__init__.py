"""comfy-kitchen's names around QuantizedTensor.

The tensor subclass itself is not here yet: layouts can be named, subclassed and registered, as
ComfyUI does when it is imported, and whatever would quantise, decode or make such a tensor raises
NoCapableBackendError. The functions on plain tensors work.
"""

from .._functions import (
    convrot_w4a4_linear,
    dequantize_convrot_w4a4_weight,
    dequantize_w4a8_int8_weight,
    quantize_convrot_w4a4_weight,
    quantize_w4a8_int8_weight,
    w4a8_int8_linear,
)
from .base import (
    AsymW4A8Int8Layout,
    BaseLayoutParams,
    QuantizedLayout,
    QuantizedTensor,
    TensorCoreAWQW4A16Layout,
    TensorCoreConvRotW4A4Layout,
    TensorCoreFP8Layout,
    TensorCoreMXFP8Layout,
    TensorCoreNVFP4Layout,
    TensorCoreSVDQuantW4A4Layout,
    TensorWiseINT8Layout,
    dequantize_args,
    get_cuda_capability,
    get_layout_class,
    register_layout_class,
    register_layout_op,
    svdquant_w4a4_can_share_quant,
    svdquant_w4a4_fuse_linear_weights,
    svdquant_w4a4_fused_grouped_linear,
    svdquant_w4a4_grouped_linear,
)

__all__ = [
    "AsymW4A8Int8Layout",
    "BaseLayoutParams",
    "QuantizedLayout",
    "QuantizedTensor",
    "TensorCoreAWQW4A16Layout",
    "TensorCoreConvRotW4A4Layout",
    "TensorCoreFP8Layout",
    "TensorCoreMXFP8Layout",
    "TensorCoreNVFP4Layout",
    "TensorCoreSVDQuantW4A4Layout",
    "TensorWiseINT8Layout",
    "convrot_w4a4_linear",
    "dequantize_args",
    "dequantize_convrot_w4a4_weight",
    "dequantize_w4a8_int8_weight",
    "get_cuda_capability",
    "get_layout_class",
    "quantize_convrot_w4a4_weight",
    "quantize_w4a8_int8_weight",
    "register_layout_class",
    "register_layout_op",
    "svdquant_w4a4_can_share_quant",
    "svdquant_w4a4_fuse_linear_weights",
    "svdquant_w4a4_fused_grouped_linear",
    "svdquant_w4a4_grouped_linear",
    "w4a8_int8_linear",
]
