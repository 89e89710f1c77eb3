"""Formats that come in files only: AWQ as ComfyUI stores it, and SVDQuant, which is refused."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import pestle

from ...errors import UnsupportedError
from .._geometry import NIBBLES, Field
from ..layout import BaseLayoutParams, QuantizedLayout

_SVDQUANT = (
    "SVDQuant: Pestle's table has no product of INT4 activations with a low-rank branch yet, so "
    "this layout can be loaded and stored but neither decoded nor multiplied"
)


class TensorCoreAWQW4A16Layout(QuantizedLayout):
    """(code - 8) * scale + zero, with scales and zeros [K / group, N]."""

    QUANTIZES_INPUT = False
    PACKED = 2

    @dataclass(frozen=True)
    class Params(BaseLayoutParams):
        zeros: torch.Tensor
        group_size: int = 64
        transposed: bool = False

    @classmethod
    def quantize(cls, tensor, **options):
        raise NotImplementedError(
            "TensorCoreAWQW4A16Layout is made offline, by AWQ's calibration: load such a file, or "
            "quantise to INT4Layout with mode='asymmetric'"
        )

    @staticmethod
    def _codes(qdata, params):
        """linear_int4's arguments for (code - 8) * scale."""
        zero = torch.full(
            (qdata.shape[0], params.scale.shape[0]), 8, dtype=torch.uint8, device=qdata.device
        )
        return qdata.view(torch.uint8), params.scale.float().t().contiguous(), zero

    @classmethod
    def dequantize(cls, qdata, params):
        how = {"group_size": params.group_size, "mode": "asymmetric", "out_dtype": torch.float32}
        values = pestle.dequantize_int4(*cls._codes(qdata, params), **how)
        zeros = params.zeros.float().t().repeat_interleave(params.group_size, dim=1)
        return (values + zeros).to(params.orig_dtype)

    @classmethod
    def get_plain_tensors(cls, qtensor):
        return qtensor._qdata, qtensor._params.scale, qtensor._params.zeros

    @classmethod
    def state_dict_tensors(cls, qdata, params):
        return {"": qdata, "_scale": params.scale, "_zeros": params.zeros}

    @classmethod
    def geometry(cls, params):
        field = Field(1, params.group_size, flipped=True)
        return {"qdata": NIBBLES, "scale": field, "zeros": field}

    @classmethod
    def column_step(cls, params):
        return params.group_size

    @classmethod
    def kernel_call(cls, x, qdata, params):
        how = {"group_size": params.group_size, "mode": "asymmetric"}
        return "linear_int4", (x, *cls._codes(qdata, params)), how

    @classmethod
    def linear(cls, x, qdata, params, bias, out_dtype):
        # The zeros times the sums of x's groups: few enough for f64, and rounded only at the end.
        rows = x.reshape(-1, x.shape[-1])
        sums = rows.double().view(rows.shape[0], -1, params.group_size).sum(-1)
        zeros = (sums @ params.zeros.double()).float()
        out = pestle.linear_int4(
            rows, *cls._codes(qdata, params), group_size=params.group_size, mode="asymmetric",
            bias=bias, residual=zeros, out_dtype=out_dtype,
        )  # fmt: skip
        return out.view(*x.shape[:-1], qdata.shape[0])


class TensorCoreSVDQuantW4A4Layout(QuantizedLayout):
    """Nunchaku's W4A4 with a low-rank branch: carried, not computed."""

    MIN_SM_VERSION = (8, 0)
    QUANTIZES_INPUT = False
    PACKED = 2

    @dataclass(frozen=True)
    class Params(BaseLayoutParams):
        proj_down: torch.Tensor
        proj_up: torch.Tensor
        smooth_factor: torch.Tensor
        act_unsigned: bool = False
        transposed: bool = False

    @classmethod
    def quantize(cls, tensor, **options):
        raise NotImplementedError("TensorCoreSVDQuantW4A4Layout is made offline: load such a file")

    @classmethod
    def dequantize(cls, qdata, params):
        raise UnsupportedError(_SVDQUANT)

    @classmethod
    def linear(cls, x, qdata, params, bias, out_dtype):
        raise UnsupportedError(_SVDQUANT)

    @classmethod
    def get_out_features_from_storage(cls, qdata: torch.Tensor) -> int:
        """Rows of the weight: codes lie row by row, or in tiles of 128 rows."""
        return qdata.shape[0] * 128 if qdata.ndim == 4 else qdata.shape[0]

    @classmethod
    def supports_fast_matmul(cls):
        return False

    @classmethod
    def get_plain_tensors(cls, qtensor):
        params = qtensor._params
        tensors = (params.scale, params.smooth_factor, params.proj_down, params.proj_up)
        return (qtensor._qdata, *tensors)

    @classmethod
    def state_dict_tensors(cls, qdata, params):
        return {
            "": qdata,
            "_scale": params.scale,
            "_proj_down": params.proj_down,
            "_proj_up": params.proj_up,
            "_smooth_factor": params.smooth_factor,
        }
