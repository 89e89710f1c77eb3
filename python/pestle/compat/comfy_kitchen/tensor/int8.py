"""INT8 whose activations are quantised by rows on the way into a linear, as comfy-kitchen's are.
Pestle's own layout leaves them as they are unless it is asked."""

from __future__ import annotations

from dataclasses import dataclass

from pestle.quantized import layouts, register_layout_class

from .. import _functions


class TensorWiseINT8Layout(layouts.TensorWiseINT8Layout):
    @dataclass(frozen=True)
    class Params(layouts.TensorWiseINT8Layout.Params):
        activations: str = "row"

    @classmethod
    def linear_input_act(cls, weight, x, bias=None, input_act=None, input_act_weight=None,
                         input_act_eps=0.0, residual=None, residual_scale=None):  # fmt: skip
        params = weight._params
        if params.transposed:
            return NotImplemented
        return _functions.int8_linear(
            x, weight._qdata, params.scale, bias, x.dtype, convrot=params.convrot,
            convrot_groupsize=params.convrot_groupsize, input_act=input_act,
            input_act_weight=input_act_weight, input_act_eps=input_act_eps, residual=residual,
            residual_scale=residual_scale,
        )  # fmt: skip

    @classmethod
    def fused_rms_modulated(cls, x, weight, bias, norm_weight, norm_eps, modulation_scale):
        """linear(rms_norm(x) * (1 + modulation_scale)); NotImplemented for other weights, and for
        a modulation of more than one row."""
        ours = isinstance(getattr(weight, "_params", None), layouts.TensorWiseINT8Layout.Params)
        width = x.shape[-1]
        if not ours or weight._params.transposed:
            return NotImplemented
        if modulation_scale.numel() != width or norm_weight.numel() != width:
            return NotImplemented
        params = weight._params
        return _functions.int8_linear_rms_modulated(
            x, norm_weight, norm_eps, modulation_scale, weight._qdata, params.scale, bias, x.dtype,
            convrot=params.convrot, convrot_groupsize=params.convrot_groupsize,
        )  # fmt: skip


register_layout_class("TensorWiseINT8Layout", TensorWiseINT8Layout)

__all__ = ["TensorWiseINT8Layout"]
