"""torch.ops.comfy_kitchen: the operators that comfy-kitchen defines and its users call, where
Pestle stands in its place. Its functions themselves are no such operators here."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch

from . import _functions
from ._backend_module import unlisted
from ._quantizers import BY_CODE

_ROPES = "".join(
    f"""
apply_rope{split}(Tensor xq, Tensor xk, Tensor freqs_cis) -> (Tensor, Tensor)
apply_rope{split}_(Tensor(a!) xq, Tensor(b!) xk, Tensor freqs_cis) -> ()
apply_rope{split}1(Tensor x, Tensor freqs_cis) -> Tensor
apply_rope{split}1_(Tensor(a!) x, Tensor freqs_cis) -> ()
rms_rope{split}(Tensor q, Tensor k, Tensor freqs_cis, Tensor q_scale, Tensor? k_scale=None, \
float epsilon=1e-06{part}) -> (Tensor, Tensor)
rms_rope{split}_(Tensor(a!) q, Tensor(b!) k, Tensor freqs_cis, Tensor q_scale, \
Tensor? k_scale=None, float epsilon=1e-06{part}) -> ()
rms_rope{split}1(Tensor x, Tensor freqs_cis, Tensor scale, float epsilon=1e-06) -> Tensor
rms_rope{split}1_(Tensor(a!) x, Tensor freqs_cis, Tensor scale, float epsilon=1e-06) -> ()
"""
    for split, part in (("", ""), ("_split_half", ", int rot_dim=0"))
)

# An operator is the function of the same name, or of the name in _FUNCTIONS.
SCHEMAS = [
    line
    for line in f"""{_ROPES}
adaln(Tensor x, Tensor scale, Tensor shift, float eps) -> Tensor
rms_adaln(Tensor x, Tensor scale, Tensor shift, float eps) -> Tensor
quantize_fp8(Tensor x, Tensor scale, int output_dtype_code) -> Tensor
dequantize_fp8(Tensor x, Tensor scale, int output_dtype_code) -> Tensor
quantize_nvfp4(Tensor x, Tensor per_tensor_scale, float epsilon, bool pad_16x, bool hi_first) \
-> (Tensor, Tensor)
dequantize_nvfp4(Tensor qx, Tensor per_tensor_scale, Tensor block_scales, int output_dtype_code, \
bool hi_first) -> Tensor
scaled_mm_nvfp4(Tensor a, Tensor b, Tensor tensor_scale_a, Tensor tensor_scale_b, \
Tensor block_scale_a, Tensor block_scale_b, Tensor? bias, int output_dtype_code, Tensor? alpha) \
-> Tensor
quantize_mxfp8(Tensor x, bool pad_32x) -> (Tensor, Tensor)
dequantize_mxfp8(Tensor qx, Tensor block_scales, int output_dtype_code) -> Tensor
scaled_mm_mxfp8(Tensor a, Tensor b, Tensor block_scale_a, Tensor block_scale_b, Tensor? bias, \
int output_dtype_code) -> Tensor
quantize_int8_rowwise(Tensor x) -> (Tensor, Tensor)
quantize_int8_tensorwise(Tensor x) -> (Tensor, Tensor)
quantize_int8_convrot_weight(Tensor weight, int group_size) -> (Tensor, Tensor)
dequantize_int8_convrot_weight(Tensor q, Tensor scale, int group_size) -> Tensor
dequantize_int8_convrot_weight_dtype(Tensor q, Tensor scale, int group_size, \
int output_dtype_code) -> Tensor
dequantize_int8_simple(Tensor q, Tensor scale) -> Tensor
dequantize_int8_simple_dtype(Tensor q, Tensor scale, int output_dtype_code) -> Tensor
dequantize_int8_embedding(Tensor q, Tensor scale, Tensor indices, int group_size, \
int output_dtype_code) -> Tensor
int8_linear(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias, int output_dtype_code, \
bool convrot=False, int convrot_groupsize=256, str? input_act=None, \
Tensor? input_act_weight=None, float input_act_eps=0.0, Tensor? residual=None, \
Tensor? residual_scale=None) -> Tensor
gemv_awq_w4a16(Tensor x, Tensor qweight, Tensor wscales, Tensor wzeros, Tensor? bias=None, \
int group_size=64) -> Tensor
quantize_svdquant_w4a4(Tensor x, Tensor smooth, Tensor lora_down, int pad_size=256, \
bool act_unsigned=False, Tensor? lora_x=None) -> (Tensor, Tensor, Tensor)
scaled_mm_svdquant_w4a4(Tensor act, Tensor wgt, Tensor ascales, Tensor wscales, \
Tensor lora_act_in, Tensor lora_up, Tensor? bias=None, bool act_unsigned=False) -> Tensor
int8_attention(Tensor q, Tensor k, Tensor v, float? scale) -> Tensor
int8_attention_masked(Tensor q, Tensor k, Tensor v, Tensor attn_mask, float? scale) -> Tensor
na3d(Tensor q, Tensor k, Tensor v, int[] kernel_size, bool[] is_causal, float? scale) -> Tensor
fp16_conv3d(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, int[] stride) -> Tensor
fp16_conv3d_out(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, int[] stride, \
Tensor(a!) out) -> ()
group_norm_stats3d(Tensor x, int num_groups, float eps) -> Tensor
group_norm_silu_pad3d(Tensor x, Tensor? weight, Tensor? bias, int num_groups, float eps, \
int[] pad, bool silu, bool zero_pad, Tensor? stats) -> Tensor
group_norm_silu_pad3d_out(Tensor x, Tensor? weight, Tensor? bias, int num_groups, float eps, \
int[] pad, bool silu, bool zero_pad, Tensor(a!) out, Tensor? stats) -> ()
""".splitlines()
    if line
]

_FUNCTIONS = {
    "quantize_fp8": "quantize_per_tensor_fp8",
    "dequantize_fp8": "dequantize_per_tensor_fp8",
    "int8_attention_masked": "int8_attention",
    "fp16_conv3d_out": "fp16_conv3d",
    "group_norm_silu_pad3d_out": "group_norm_silu_pad3d",
}

_library: torch.library.Library | None = None


def _function(name: str) -> Callable:
    name = _FUNCTIONS.get(name, name)
    return getattr(_functions, name, None) or unlisted(name, None)


def operator(schema) -> Callable:
    """What runs an operator: the function, a code in the place of a dtype."""
    function = _function(schema.name.partition("::")[2])
    names = [argument.name for argument in schema.arguments]
    own = inspect.signature(function).parameters
    dtype = next((name for name in ("output_type", "out_dtype") if name in own), None)

    def call(*args, **options):
        values = dict(zip(names, args, strict=False)) | options
        if dtype is not None and "output_dtype_code" in values:
            values[dtype] = BY_CODE[values.pop("output_dtype_code")]
        made = function(**values)
        return made if schema.returns else None

    return call


def define() -> None:
    """Once for the process; torch takes them apart into Pestle's own ops."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("comfy_kitchen", "FRAGMENT")
    for line in SCHEMAS:
        _library.define(line)
        schema = torch._C.parse_schema(f"comfy_kitchen::{line}")
        name = line.partition("(")[0]
        _library.impl(name, operator(schema), "CompositeImplicitAutograd")


def remove() -> None:
    """For a comfy_kitchen that is imported after all: it defines the same names."""
    global _library
    if _library is not None:
        _library._destroy()
        _library = None
