"""FP8: one scale for the tensor, for each row, or for each block of 128 columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import pestle

from .._geometry import CODES, WHOLE, Field
from ..layout import BaseLayoutParams, QuantizedLayout
from ._common import check_choice, given_scale, rounding, rows_of

_ACTIVATIONS = ("float", "row")


class _FP8(QuantizedLayout):
    MIN_SM_VERSION = (8, 9)
    GRANULARITY = "tensor"

    @classmethod
    def granularity(cls, params) -> str:
        return cls.GRANULARITY

    @classmethod
    def dequantize(cls, qdata, params):
        how = {"granularity": cls.granularity(params), "out_dtype": params.orig_dtype}
        return pestle.dequantize_fp8(qdata, params.scale, **how).view(qdata.shape)

    @classmethod
    def kernel_call(cls, x, qdata, params):
        how = {"granularity": cls.granularity(params), "activations": params.activations}
        return "linear_fp8", (x, qdata, params.scale), how

    @classmethod
    def scaled_mm(cls, a, b, bias, out_dtype):
        if not issubclass(a._layout, _FP8):
            return NotImplemented
        found = _common_granularity(a, b)
        if found is None:
            return NotImplemented
        granularity, scale_a, scale_b = found
        return pestle.scaled_mm_fp8(
            a._qdata, b._qdata, scale_a, scale_b, bias=bias, granularity=granularity,
            out_dtype=out_dtype,
        )  # fmt: skip


def _common_granularity(a, b):
    """Scales of both sides as scaled_mm_fp8 takes them together; None where it can't."""
    of_a, of_b = a._layout.granularity(a._params), b._layout.granularity(b._params)
    scale_a, scale_b = a._params.scale, b._params.scale
    if of_a == of_b == "tensor":
        return "tensor", scale_a, scale_b
    if {of_a, of_b} <= {"tensor", "row"}:
        if of_a == "tensor":
            scale_a = scale_a.expand(*a.shape[:-1], 1).contiguous()
        if of_b == "tensor":
            scale_b = scale_b.expand(b.shape[0], 1).contiguous()
        return "row", scale_a, scale_b
    if of_b == "block_128x128" and of_a in ("tensor", "row", "block_1x128"):
        blocks = scale_b.shape[-1]
        return "block", scale_a.expand(*a.shape[:-1], blocks).contiguous(), scale_b
    return None


class TensorCoreFP8Layout(_FP8):
    """Codes of any shape, one scale."""

    @dataclass(frozen=True)
    class Params(BaseLayoutParams):
        activations: str = "float"

        def _validate_tensor_fields(self):
            self._as_f32("scale")

    @classmethod
    def quantize(
        cls,
        tensor,
        scale=None,
        dtype=torch.float8_e4m3fn,
        stochastic_rounding=0,
        inplace_ops=False,
        activations="float",
    ):
        check_choice(cls.__name__, "activations", activations, _ACTIVATIONS)
        how = {"q_dtype": dtype, **rounding(stochastic_rounding)}
        given = given_scale(cls.__name__, scale, tensor)
        if given is None:
            q, given = pestle.quantize_fp8(tensor, **how)
        else:
            q = pestle.quantize_fp8(tensor, given.reshape(1), **how)
        params = cls.Params(
            scale=given.reshape(()), orig_dtype=tensor.dtype, orig_shape=tuple(tensor.shape),
            activations=activations,
        )  # fmt: skip
        return q.view(tensor.shape), params

    @classmethod
    def requantize_kwargs(cls, qtensor):
        return {"dtype": qtensor._qdata.dtype, "activations": qtensor._params.activations}

    @classmethod
    def get_padded_shape(cls, orig_shape):
        return tuple(orig_shape)

    @classmethod
    def get_storage_shape(cls, orig_shape):
        return tuple(orig_shape)

    @classmethod
    def geometry(cls, params):
        return {"qdata": CODES, "scale": WHOLE}

    @classmethod
    def joinable(cls, tensors):
        """With a scale for each row tensors of different scales lie in one."""
        return [_by_row(t) for t in tensors]


def _by_row(qt):
    params = FP8RowLayout.Params(
        scale=qt._params.scale.reshape(1, 1).expand(qt.shape[0], 1).contiguous(),
        orig_dtype=qt._params.orig_dtype,
        orig_shape=qt._params.orig_shape,
        activations=qt._params.activations,
    )
    return type(qt)(qt._qdata, "FP8RowLayout", params)


class FP8RowLayout(_FP8):
    """A scale for every row."""

    GRANULARITY = "row"

    @dataclass(frozen=True)
    class Params(BaseLayoutParams):
        activations: str = "float"
        transposed: bool = False

        def _validate_tensor_fields(self):
            self._as_f32("scale")
            if isinstance(self.scale, torch.Tensor) and self.scale.ndim == 1:
                self._set("scale", self.scale.unsqueeze(-1))

    @classmethod
    def quantize(
        cls, tensor, dtype=torch.float8_e4m3fn, stochastic_rounding=0, activations="float"
    ):
        check_choice(cls.__name__, "activations", activations, _ACTIVATIONS)
        how = {"q_dtype": dtype, **rounding(stochastic_rounding)}
        q, scale = pestle.quantize_fp8(tensor, granularity="row", **how)
        return q, cls.Params(scale, tensor.dtype, tuple(tensor.shape), activations)

    @classmethod
    def requantize_kwargs(cls, qtensor):
        return {"dtype": qtensor._qdata.dtype, "activations": qtensor._params.activations}

    @classmethod
    def geometry(cls, params):
        return {"qdata": CODES, "scale": Field(1, 0)}


class FP8BlockLayout(_FP8):
    """A scale for every 128 x 128 block, or for 128 columns of a row (block_rows=1)."""

    @dataclass(frozen=True)
    class Params(BaseLayoutParams):
        block_rows: int = 128
        activations: str = "float"
        transposed: bool = False

        def _validate_tensor_fields(self):
            self._as_f32("scale")

    @classmethod
    def granularity(cls, params):
        return "block_128x128" if params.block_rows == 128 else "block_1x128"

    @classmethod
    def quantize(cls, tensor, dtype=torch.float8_e4m3fn, stochastic_rounding=0, block_rows=128):
        if block_rows not in (1, 128):
            raise ValueError(f"{cls.__name__}: block_rows is {block_rows}: give 1 or 128")
        granularity = "block_128x128" if block_rows == 128 else "block_1x128"
        how = {"q_dtype": dtype, **rounding(stochastic_rounding)}
        q, scale = pestle.quantize_fp8(tensor, granularity=granularity, **how)
        return q, cls.Params(scale, tensor.dtype, tuple(tensor.shape), block_rows)

    @classmethod
    def requantize_kwargs(cls, qtensor):
        return {"dtype": qtensor._qdata.dtype, "block_rows": qtensor._params.block_rows}

    @classmethod
    def geometry(cls, params):
        return {"qdata": CODES, "scale": Field(params.block_rows, 128)}

    @classmethod
    def column_step(cls, params):
        return 128

    @classmethod
    def by_rows(cls, qdata, params):
        """The same with a scale for each row of a block, so that any rows can be cut."""
        if params.block_rows == 1:
            return qdata, params
        rows = qdata.shape[-2]
        scale = params.scale.repeat_interleave(128, dim=-2)[..., :rows, :].contiguous()
        replaced = {**vars(params), "scale": scale, "block_rows": 1}
        return qdata, type(params)(**replaced)


__all__ = ["FP8BlockLayout", "FP8RowLayout", "TensorCoreFP8Layout", "rows_of"]
