"""NVFP4, MXFP8 and MXFP4: a small scale for each 16 or 32 columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import pestle

from ..._contract import DTYPES
from .._geometry import CODES, NIBBLES, WHOLE, Field
from ..layout import BaseLayoutParams, QuantizedLayout
from ._common import given_scale, matrix, rounding, rows_of, scales_of, widened

E8M0 = DTYPES["e8m0"]  # uint8 where torch has no such dtype


def _scales(params, block: int) -> Field:
    return Field(1, block, tiles=params.scale_layout == "swizzled")


class TensorCoreNVFP4Layout(QuantizedLayout):
    """E2M1 codes, an E4M3 scale for 16 columns, one f32 scale for the tensor."""

    MIN_SM_VERSION = (10, 0)
    BLOCK = (16, 16)
    PACKED = 2

    @dataclass(frozen=True)
    class Params(BaseLayoutParams):
        block_scale: torch.Tensor
        transposed: bool = False
        scale_layout: str = "swizzled"
        nibbles: str = "high_first"

        def _validate_tensor_fields(self):
            self._as_f32("scale")
            self._as_codes("block_scale", torch.float8_e4m3fn)

    @staticmethod
    def _order(params) -> dict:
        return {"nibbles": params.nibbles, "scale_layout": params.scale_layout}

    @classmethod
    def quantize(
        cls,
        tensor,
        scale=None,
        stochastic_rounding=0,
        inplace_ops=False,
        scale_layout="swizzled",
        nibbles="high_first",
    ):
        matrix("NVFP4", tensor)
        how = {"pad": True, "scale_layout": scale_layout, "nibbles": nibbles}
        how |= rounding(stochastic_rounding)
        given = given_scale(cls.__name__, scale, tensor)
        if given is None:
            q, block_scale, given = pestle.quantize_nvfp4(tensor, **how)
        else:
            q, block_scale = pestle.quantize_nvfp4(tensor, given.reshape(1), **how)
        params = cls.Params(
            scale=given.reshape(()), orig_dtype=tensor.dtype, orig_shape=tuple(tensor.shape),
            block_scale=block_scale, scale_layout=scale_layout, nibbles=nibbles,
        )  # fmt: skip
        return q, params

    @classmethod
    def dequantize(cls, qdata, params):
        return pestle.dequantize_nvfp4(
            qdata, params.block_scale, params.scale, out_dtype=params.orig_dtype,
            **cls._order(params),
        )  # fmt: skip

    @classmethod
    def get_plain_tensors(cls, qtensor):
        params = qtensor._params
        return qtensor._qdata, params.scale, params.block_scale

    @classmethod
    def state_dict_tensors(cls, qdata, params):
        return {"": qdata, "_scale": params.block_scale, "_scale_2": params.scale}

    @classmethod
    def requantize_kwargs(cls, qtensor):
        return cls._order(qtensor._params)

    @classmethod
    def geometry(cls, params):
        return {"qdata": NIBBLES, "block_scale": _scales(params, 16), "scale": WHOLE}

    @classmethod
    def column_step(cls, params):
        return 16

    @classmethod
    def kernel_call(cls, x, qdata, params):
        codes, scales = rows_of(qdata, params), scales_of(params.block_scale, params)
        tensors = (widened(x, qdata.shape[-1] * 2), codes, scales, params.scale)
        return "linear_nvfp4", tensors, cls._order(params)

    @classmethod
    def scaled_mm(cls, a, b, bias, out_dtype):
        of_a, of_b = a._params, b._params
        if not issubclass(a._layout, TensorCoreNVFP4Layout) or cls._order(of_a) != cls._order(of_b):
            return NotImplemented
        return pestle.scaled_mm_nvfp4(
            rows_of(a._qdata, of_a), rows_of(b._qdata, of_b), scales_of(of_a.block_scale, of_a),
            scales_of(of_b.block_scale, of_b), of_a.scale, of_b.scale, bias=bias,
            out_dtype=out_dtype, **cls._order(of_b),
        )  # fmt: skip


class TensorCoreMXFP8Layout(QuantizedLayout):
    """E4M3 codes, a power of two for 32 columns."""

    MIN_SM_VERSION = (10, 0)
    BLOCK = (32, 32)

    @dataclass(frozen=True)
    class Params(BaseLayoutParams):
        transposed: bool = False
        scale_layout: str = "swizzled"

        def _validate_tensor_fields(self):
            self._as_codes("scale", E8M0)

    @classmethod
    def quantize(
        cls,
        tensor,
        scale=None,
        stochastic_rounding=0,
        inplace_ops=False,
        dtype=torch.float8_e4m3fn,
        scale_layout="swizzled",
    ):
        """`scale` is there for callers that pass it to every layout: MXFP8's follow from x."""
        matrix("MXFP8", tensor)
        how = {"scale_layout": scale_layout, "q_dtype": dtype, **rounding(stochastic_rounding)}
        q, scales = pestle.quantize_mxfp8(tensor, pad=True, **how)
        shape = tuple(tensor.shape)
        return q, cls.Params(scales, tensor.dtype, shape, scale_layout=scale_layout)

    @classmethod
    def dequantize(cls, qdata, params):
        how = {"scale_layout": params.scale_layout, "out_dtype": params.orig_dtype}
        return pestle.dequantize_mxfp8(qdata, params.scale, **how)

    @classmethod
    def requantize_kwargs(cls, qtensor):
        return {"dtype": qtensor._qdata.dtype, "scale_layout": qtensor._params.scale_layout}

    @classmethod
    def geometry(cls, params):
        return {"qdata": CODES, "scale": _scales(params, 32)}

    @classmethod
    def column_step(cls, params):
        return 32

    @classmethod
    def kernel_call(cls, x, qdata, params):
        codes, scales = rows_of(qdata, params), scales_of(params.scale, params)
        tensors = (widened(x, qdata.shape[-1]), codes, scales)
        return "linear_mxfp8", tensors, {"scale_layout": params.scale_layout}

    @classmethod
    def scaled_mm(cls, a, b, bias, out_dtype):
        of_a, of_b = a._params, b._params
        if (
            not issubclass(a._layout, TensorCoreMXFP8Layout)
            or of_a.scale_layout != of_b.scale_layout
        ):
            return NotImplemented
        return pestle.scaled_mm_mxfp8(
            rows_of(a._qdata, of_a), rows_of(b._qdata, of_b), scales_of(of_a.scale, of_a),
            scales_of(of_b.scale, of_b), bias=bias, scale_layout=of_b.scale_layout,
            out_dtype=out_dtype,
        )  # fmt: skip


class MXFP4Layout(QuantizedLayout):
    """E2M1 codes, a power of two for 32 columns."""

    BLOCK = (32, 32)
    PACKED = 2

    @dataclass(frozen=True)
    class Params(BaseLayoutParams):
        transposed: bool = False
        scale_layout: str = "swizzled"
        nibbles: str = "low_first"

        def _validate_tensor_fields(self):
            self._as_codes("scale", E8M0)

    @staticmethod
    def _order(params) -> dict:
        return {"nibbles": params.nibbles, "scale_layout": params.scale_layout}

    @classmethod
    def quantize(cls, tensor, stochastic_rounding=0, scale_layout="swizzled", nibbles="low_first"):
        matrix("MXFP4", tensor)
        order = {"nibbles": nibbles, "scale_layout": scale_layout}
        q, scales = pestle.quantize_mxfp4(
            tensor, pad=True, **order, **rounding(stochastic_rounding)
        )
        return q, cls.Params(scales, tensor.dtype, tuple(tensor.shape), **order)

    @classmethod
    def dequantize(cls, qdata, params):
        how = {"out_dtype": params.orig_dtype, **cls._order(params)}
        return pestle.dequantize_mxfp4(qdata, params.scale, **how)

    @classmethod
    def requantize_kwargs(cls, qtensor):
        return cls._order(qtensor._params)

    @classmethod
    def geometry(cls, params):
        return {"qdata": NIBBLES, "scale": _scales(params, 32)}

    @classmethod
    def column_step(cls, params):
        return 32

    @classmethod
    def kernel_call(cls, x, qdata, params):
        codes, scales = rows_of(qdata, params), scales_of(params.scale, params)
        tensors = (widened(x, qdata.shape[-1] * 2), codes, scales)
        return "linear_mxfp4", tensors, cls._order(params)
