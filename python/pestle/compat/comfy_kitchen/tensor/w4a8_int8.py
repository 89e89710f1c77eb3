"""W4A8 in every form that comfy-kitchen has. The usual one runs as Pestle's own layout does."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from pestle.quantized import layouts, register_layout_class

from .. import _functions, _w4a8
from .._functions import dequantize_w4a8_int8_weight, quantize_w4a8_int8_weight, w4a8_int8_linear

_OURS = layouts.AsymW4A8Int8Layout


class AsymW4A8Int8Layout(_OURS):
    @dataclass(frozen=True)
    class Params(_OURS.Params):
        def _validate_tensor_fields(self):
            if self.scale.dtype != torch.float32:
                self._as_codes("scale", torch.float8_e4m3fn)
            self._as_f32("s_channel", "codebook")
            if len(self.orig_shape) != 2:  # one row, or weights of a batch
                return
            rows, columns = self.orig_shape[::-1] if self.transposed else self.orig_shape
            _w4a8.check_columns(columns, self.group_size, self.convrot_groupsize)
            scale = None if self.mma_packed and not self.scale.numel() else self.scale
            groups = columns // self.group_size
            others = (self.s_channel, self.correction, self.codebook)
            _w4a8.check_scales(rows, groups, scale, *others)

    @classmethod
    def quantize(
        cls,
        tensor,
        group_size=16,
        convrot_groupsize=256,
        symmetric=True,
        scale_dtype=torch.float8_e4m3fn,
        codebook=True,
        codebook_tensor=None,
        stochastic_rounding=0,
        bits=4,
        scale_search=True,
        scale=None,
        inplace_ops=False,
    ):
        """`scale` is there for callers that pass it to every layout: these follow from x."""
        q, s_rel, s_channel, correction, table = _functions.quantize_w4a8_int8_weight(
            tensor, group_size, convrot_groupsize, symmetric, scale_dtype, codebook,
            codebook_tensor, stochastic_rounding, bits, scale_search,
        )  # fmt: skip
        params = cls.Params(
            s_rel, tensor.dtype, tuple(tensor.shape), s_channel, correction, table, group_size,
            convrot_groupsize,
        )  # fmt: skip
        return q, params

    @staticmethod
    def _rows_of(qdata, params):
        """Codes and scales row by row, of a weight that lies in records: those are read by
        comfy-kitchen's kernels alone."""
        if not params.mma_packed:
            return qdata, params
        rows, columns = params.orig_shape[::-1] if params.transposed else params.orig_shape
        qdata, scale = _w4a8.unpack_records(qdata, rows, columns)
        return qdata, replace(params, scale=scale, mma_packed=False)

    @classmethod
    def _stored(cls, qdata, params) -> dict:
        qdata, params = cls._rows_of(qdata, params)
        return {
            "qdata": qdata,
            "s_rel": params.scale,
            "s_channel": params.s_channel,
            "codebook": params.codebook,
            "correction": params.correction,
            "group_size": params.group_size,
            "convrot_groupsize": params.convrot_groupsize,
        }

    @staticmethod
    def _is_usual(qdata, params) -> bool:
        """Two codes of a codebook a byte, groups of 16 with E4M3 scales: what Pestle's ops take."""
        extras = params.correction is not None or params.codebook is None
        scales = params.group_size == 16 and params.scale.dtype != torch.float32
        scales = scales and not params.mma_packed
        return scales and not extras and qdata.shape[1] == 8 * params.scale.shape[1]

    @classmethod
    def dequantize(cls, qdata, params):
        if cls._is_usual(qdata, params):
            return super().dequantize(qdata, params)
        how = {"output_dtype": params.orig_dtype}
        return _functions.dequantize_w4a8_int8_weight(**cls._stored(qdata, params), **how)

    @classmethod
    def linear(cls, x, qdata, params, bias, out_dtype):
        if cls._is_usual(qdata, params):
            return super().linear(x, qdata, params, bias, out_dtype)
        stored = cls._stored(qdata, params)
        return _functions.w4a8_int8_linear(x, **stored, bias=bias, out_dtype=out_dtype)

    @classmethod
    def geometry(cls, params):
        """Rows and columns of the usual form alone can be cut where they lie."""
        usual = params.group_size == 16 and params.correction is None and not params.mma_packed
        return super().geometry(params) if usual and params.codebook is not None else None

    @classmethod
    def logical_shape(cls, qdata, params):
        if params.mma_packed:
            return params.orig_shape[::-1] if params.transposed else params.orig_shape
        rows, groups = params.scale.shape
        return (rows, groups * params.group_size)

    @classmethod
    def state_dict_tensors(cls, qdata, params):
        if params.mma_packed:
            raise ValueError("a packed W4A8 weight is for the memory alone: save its rows")
        tensors = super().state_dict_tensors(qdata, params)
        if params.correction is not None:
            tensors["_correction"] = params.correction
        return tensors

    @classmethod
    def requantize_kwargs(cls, qtensor):
        params = qtensor._params
        return super().requantize_kwargs(qtensor) | {
            "symmetric": params.correction is None,
            "codebook": params.codebook is not None,
            "scale_dtype": params.scale.dtype,
            "bits": cls.bits(qtensor),
            "scale_search": False,
        }

    @classmethod
    def linear_input_act(cls, weight, x, bias=None, input_act=None, input_act_weight=None,
                         input_act_eps=0.0, residual=None, residual_scale=None):  # fmt: skip
        params = weight._params
        if params.transposed:
            return NotImplemented
        return w4a8_int8_linear(
            x, **cls._stored(weight._qdata, params), bias=bias, out_dtype=params.orig_dtype,
            input_act=input_act, input_act_weight=input_act_weight, input_act_eps=input_act_eps,
            residual=residual, residual_scale=residual_scale,
        )  # fmt: skip

    @classmethod
    def bits(cls, qtensor) -> int:
        """Bits of a code: 4, or 6."""
        params = qtensor._params
        if params.mma_packed:
            return _w4a8.record_bits(qtensor._qdata.numel(), *params.orig_shape)
        return _w4a8.geometry(qtensor._qdata, params.scale, params.group_size)[2]


register_layout_class("AsymW4A8Int8Layout", AsymW4A8Int8Layout)

__all__ = [
    "AsymW4A8Int8Layout",
    "dequantize_w4a8_int8_weight",
    "quantize_w4a8_int8_weight",
    "w4a8_int8_linear",
]
