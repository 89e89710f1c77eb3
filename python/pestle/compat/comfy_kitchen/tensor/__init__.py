"""comfy-kitchen's names around QuantizedTensor: Pestle's own classes, and two of their layouts that
do as comfy-kitchen's do where it matters to its callers."""

from . import int8_utils, w4a8_packed  # noqa: F401
from .awq_w4a16 import TensorCoreAWQW4A16Layout
from .base import (
    BaseLayoutParams,
    QuantizedLayout,
    QuantizedTensor,
    dequantize_args,
    get_cuda_capability,
    get_layout_class,
    register_layout_class,
    register_layout_op,
)
from .convrot_w4a4 import (
    TensorCoreConvRotW4A4Layout,
    convrot_w4a4_linear,
    dequantize_convrot_w4a4_weight,
    quantize_convrot_w4a4_weight,
)
from .fp8 import TensorCoreFP8Layout
from .int8 import TensorWiseINT8Layout
from .mxfp8 import TensorCoreMXFP8Layout
from .nvfp4 import TensorCoreNVFP4Layout
from .svdquant_w4a4 import (
    TensorCoreSVDQuantW4A4Layout,
    svdquant_w4a4_can_share_quant,
    svdquant_w4a4_fuse_linear_weights,
    svdquant_w4a4_fused_grouped_linear,
    svdquant_w4a4_grouped_linear,
)
from .w4a8_int8 import (
    AsymW4A8Int8Layout,
    dequantize_w4a8_int8_weight,
    quantize_w4a8_int8_weight,
    w4a8_int8_linear,
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
