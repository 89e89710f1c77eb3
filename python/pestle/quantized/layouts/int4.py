"""INT4 in groups of columns, and rotated with a scale for each row; W4A8's codebook."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from math import lcm

import torch

import pestle

from ...backends._codebook import W4A8
from .._geometry import NIBBLES, Field
from ..layout import BaseLayoutParams, QuantizedLayout
from ._common import check_choice, matrix, need_multiple, rounding


class INT4Layout(QuantizedLayout):
    """Codes with a scale for each group of columns, and a zero point where they are asymmetric;
    files of GPTQ and AWQ are brought into this order without a loss."""

    PACKED = 2

    @dataclass(frozen=True)
    class Params(BaseLayoutParams):
        zero: torch.Tensor | None = None
        group_size: int = 32
        transposed: bool = False

        def _validate_tensor_fields(self):
            self._as_f32("scale")

        @property
        def mode(self) -> str:
            return "symmetric" if self.zero is None else "asymmetric"

    @classmethod
    def quantize(cls, tensor, group_size=32, mode="symmetric", stochastic_rounding=0):
        matrix("INT4", tensor)
        check_choice(cls.__name__, "mode", mode, ("symmetric", "asymmetric"))
        how = {"group_size": group_size, "mode": mode, **rounding(stochastic_rounding)}
        q, scale, *zero = pestle.quantize_int4(tensor, **how)
        shape = tuple(tensor.shape)
        return q, cls.Params(scale, tensor.dtype, shape, zero[0] if zero else None, group_size)

    @staticmethod
    def _how(params) -> dict:
        return {"group_size": params.group_size, "mode": params.mode}

    @classmethod
    def dequantize(cls, qdata, params):
        how = {"out_dtype": params.orig_dtype, **cls._how(params)}
        return pestle.dequantize_int4(qdata, params.scale, params.zero, **how)

    @classmethod
    def get_plain_tensors(cls, qtensor):
        params = qtensor._params
        tensors = (qtensor._qdata, params.scale)
        return tensors if params.zero is None else (*tensors, params.zero)

    @classmethod
    def state_dict_tensors(cls, qdata, params):
        tensors = {"": qdata, "_scale": params.scale}
        return tensors if params.zero is None else tensors | {"_zeros": params.zero}

    @classmethod
    def requantize_kwargs(cls, qtensor):
        return cls._how(qtensor._params)

    @classmethod
    def geometry(cls, params):
        field = Field(1, params.group_size)
        fields = {"qdata": NIBBLES, "scale": field}
        return fields if params.zero is None else fields | {"zero": field}

    @classmethod
    def column_step(cls, params):
        return params.group_size or 2

    @classmethod
    def kernel_call(cls, x, qdata, params):
        tensors = (x, qdata, params.scale)
        tensors = tensors if params.zero is None else (*tensors, params.zero)
        return "linear_int4", tensors, cls._how(params)


class TensorCoreConvRotW4A4Layout(QuantizedLayout):
    """INT4 of the rotated weight, a scale for each row. Activations stay as they are."""

    MIN_SM_VERSION = (7, 5)
    QUANTIZES_INPUT = False
    PACKED = 2

    @dataclass(frozen=True)
    class Params(BaseLayoutParams):
        convrot_groupsize: int = 256
        quant_group_size: int = 64
        linear_dtype: str = "int4"
        transposed: bool = False

        def _validate_tensor_fields(self):
            self._as_f32("scale")
            if self.linear_dtype not in ("int4", "int8"):
                raise ValueError(
                    f"ConvRot W4A4 linear_dtype must be 'int4' or 'int8', got {self.linear_dtype!r}"
                )

    @classmethod
    def quantize(
        cls,
        tensor,
        convrot_groupsize=256,
        quant_group_size=64,
        stochastic_rounding=0,
        linear_dtype="int4",
        scale=None,
        inplace_ops=False,
    ):
        """`scale` is there for callers that pass it to every layout: these follow from x."""
        matrix("ConvRot W4A4", tensor)
        need_multiple(cls.__name__, tensor, convrot_groupsize, "convrot_groupsize")
        how = rounding(stochastic_rounding)
        q, scales = pestle.quantize_int4(tensor, group_size=0, hadamard=convrot_groupsize, **how)
        params = cls.Params(
            scales.view(-1), tensor.dtype, tuple(tensor.shape), convrot_groupsize,
            quant_group_size, linear_dtype,
        )  # fmt: skip
        return q.view(torch.int8), params

    @staticmethod
    def _tensors(qdata, params) -> tuple:
        return qdata.view(torch.uint8), params.scale.reshape(-1, 1)

    @staticmethod
    def _how(params) -> dict:
        return {"group_size": 0, "hadamard": params.convrot_groupsize}

    @classmethod
    def dequantize(cls, qdata, params):
        how = {"out_dtype": params.orig_dtype, **cls._how(params)}
        return pestle.dequantize_int4(*cls._tensors(qdata, params), **how)

    @classmethod
    def requantize_kwargs(cls, qtensor):
        params = qtensor._params
        return {
            "convrot_groupsize": params.convrot_groupsize,
            "quant_group_size": params.quant_group_size,
            "linear_dtype": params.linear_dtype,
        }

    @classmethod
    def geometry(cls, params):
        return {"qdata": NIBBLES, "scale": Field(1, 0, axes=1)}

    @classmethod
    def column_step(cls, params):
        return lcm(2, params.convrot_groupsize)

    @classmethod
    def kernel_call(cls, x, qdata, params):
        return "linear_int4", (x, *cls._tensors(qdata, params)), cls._how(params)


class AsymW4A8Int8Layout(QuantizedLayout):
    """Indices into a codebook, an E4M3 scale for 16 columns, an f32 scale for each row."""

    MIN_SM_VERSION = (8, 0)
    QUANTIZES_INPUT = False
    PACKED = 2

    @dataclass(frozen=True)
    class Params(BaseLayoutParams):
        s_channel: torch.Tensor | None = None
        correction: torch.Tensor | None = None
        codebook: torch.Tensor | None = None
        group_size: int = 16
        convrot_groupsize: int = 256
        mma_packed: bool = False
        transposed: bool = False

        def _validate_tensor_fields(self):
            self._as_codes("scale", torch.float8_e4m3fn)
            for name, wanted in (("correction", None), ("group_size", 16), ("mma_packed", False)):
                value = getattr(self, name)
                if value is not None and (wanted is None or value != wanted):
                    raise NotImplementedError(
                        f"W4A8: {name} is {value}: Pestle's W4A8 has groups of 16, symmetric "
                        "codes and canonical storage alone"
                    )
            self._as_f32("s_channel", "codebook")

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
        matrix("W4A8", tensor)
        need_multiple(cls.__name__, tensor, convrot_groupsize, "convrot_groupsize")
        asked = {
            "group_size": (group_size, 16),
            "symmetric": (symmetric, True),
            "scale_dtype": (scale_dtype, torch.float8_e4m3fn),
            "codebook": (codebook, True),
            "bits": (bits, 4),
        }
        for name, (value, only) in asked.items():
            if value != only:
                raise NotImplementedError(f"W4A8: {name} is {value}: Pestle makes {only} alone")
        if stochastic_rounding:
            warnings.warn(
                "W4A8: its codes are searched for, not rounded: the seed is not used", stacklevel=2
            )
        table = codebook_tensor
        if table is None:
            table = torch.tensor(W4A8, dtype=torch.float32, device=tensor.device)
        q, rel, channel = pestle.quantize_w4a8(tensor, table, hadamard=convrot_groupsize)
        params = cls.Params(
            rel, tensor.dtype, tuple(tensor.shape), channel, None, table, 16, convrot_groupsize
        )
        return q.view(torch.int8), params

    @staticmethod
    def _tensors(qdata, params) -> tuple:
        channel = params.s_channel
        if channel.ndim != 1:
            channel = channel.reshape(-1)
        return qdata.view(torch.uint8), params.scale, channel, params.codebook

    @classmethod
    def dequantize(cls, qdata, params):
        how = {"hadamard": params.convrot_groupsize, "out_dtype": params.orig_dtype}
        return pestle.dequantize_w4a8(*cls._tensors(qdata, params), **how)

    @classmethod
    def get_plain_tensors(cls, qtensor):
        params = qtensor._params
        return qtensor._qdata, params.scale, params.s_channel, params.correction, params.codebook

    @classmethod
    def state_dict_tensors(cls, qdata, params):
        tensors = {"": qdata, "_s_rel": params.scale, "_s_channel": params.s_channel}
        return tensors if params.codebook is None else tensors | {"_codebook": params.codebook}

    @classmethod
    def requantize_kwargs(cls, qtensor):
        params = qtensor._params
        return {
            "group_size": params.group_size,
            "convrot_groupsize": params.convrot_groupsize,
            "codebook_tensor": params.codebook,
        }

    @classmethod
    def geometry(cls, params):
        fields = {"qdata": NIBBLES, "scale": Field(1, 16), "s_channel": Field(1, 0, axes=1)}
        if params.codebook is None:
            return fields
        return fields | {"codebook": Field(0, 0, axes=1, shared=True)}

    @classmethod
    def column_step(cls, params):
        return lcm(16, params.convrot_groupsize or 1)

    @classmethod
    def kernel_call(cls, x, qdata, params):
        return (
            "linear_w4a8",
            (x, *cls._tensors(qdata, params)),
            {"hadamard": params.convrot_groupsize},
        )
