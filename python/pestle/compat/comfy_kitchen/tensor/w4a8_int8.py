"""W4A8."""

from __future__ import annotations

from pestle.quantized import layouts, register_layout_class

from .._functions import dequantize_w4a8_int8_weight, quantize_w4a8_int8_weight, w4a8_int8_linear


class AsymW4A8Int8Layout(layouts.AsymW4A8Int8Layout):
    @classmethod
    def linear_input_act(cls, weight, x, bias=None, input_act=None, input_act_weight=None,
                         input_act_eps=0.0, residual=None, residual_scale=None):  # fmt: skip
        params = weight._params
        if params.transposed:
            return NotImplemented
        return w4a8_int8_linear(
            x, weight._qdata, params.scale, params.s_channel, codebook=params.codebook,
            correction=params.correction, bias=bias, group_size=params.group_size,
            convrot_groupsize=params.convrot_groupsize, out_dtype=params.orig_dtype,
            input_act=input_act, input_act_weight=input_act_weight, input_act_eps=input_act_eps,
            residual=residual, residual_scale=residual_scale,
        )  # fmt: skip

    @classmethod
    def bits(cls, qtensor) -> int:
        """Bits of a code: two lie in a byte."""
        return 4


register_layout_class("AsymW4A8Int8Layout", AsymW4A8Int8Layout)

__all__ = [
    "AsymW4A8Int8Layout",
    "dequantize_w4a8_int8_weight",
    "quantize_w4a8_int8_weight",
    "w4a8_int8_linear",
]
