"""INT8: one scale, one for each row, one for each group of columns; rotated or not."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import pestle

from .._geometry import CODES, WHOLE, Field
from ..layout import BaseLayoutParams, QuantizedLayout
from ._common import check_choice, given_scale, matrix, need_multiple, rounding

_ACTIVATIONS = ("float", "row")


class TensorWiseINT8Layout(QuantizedLayout):
    """One scale for a weight, or one for each row (per_channel); with convrot the columns are
    rotated first. Activations (is_weight=False) have a scale for each row."""

    MIN_SM_VERSION = (7, 5)

    @dataclass(frozen=True)
    class Params(BaseLayoutParams):
        is_weight: bool = True
        convrot: bool = False
        convrot_groupsize: int = 256
        transposed: bool = False
        activations: str = "float"

        def _validate_tensor_fields(self):
            self._as_f32("scale")

        @property
        def hadamard(self) -> int:
            return self.convrot_groupsize if self.convrot else 0

    @classmethod
    def quantize(
        cls,
        tensor,
        scale=None,
        stochastic_rounding=0,
        inplace_ops=False,
        is_weight=True,
        per_channel=False,
        convrot=False,
        convrot_groupsize=256,
        activations=None,
    ):
        activations = activations or cls.Params.activations
        check_choice(cls.__name__, "activations", activations, _ACTIVATIONS)
        if convrot and not is_weight:
            raise ValueError("convrot is only supported when is_weight is True")
        if convrot and not per_channel:
            raise ValueError("convrot is only supported when per_channel is True")
        if convrot:
            matrix("INT8 convrot", tensor)
            need_multiple(cls.__name__, tensor, convrot_groupsize, "group_size (convrot_groupsize)")
        by_row = per_channel or not is_weight
        given = given_scale(cls.__name__, scale, tensor)
        how = {"granularity": "row" if by_row else "tensor", **rounding(stochastic_rounding)}
        how["hadamard"] = convrot_groupsize if convrot else 0
        if given is None:
            q, given = pestle.quantize_int8(tensor, **how)
        else:
            rows = given.reshape(*given.shape[: tensor.ndim - 1], *[1] * (tensor.ndim - given.ndim))
            given = rows.expand(*tensor.shape[:-1], 1).contiguous() if by_row else given.reshape(1)
            q = pestle.quantize_int8(tensor, given, **how)
        params = cls.Params(
            scale=given if by_row else given.reshape(()), orig_dtype=tensor.dtype,
            orig_shape=tuple(tensor.shape), is_weight=is_weight, convrot=convrot,
            convrot_groupsize=convrot_groupsize, activations=activations,
        )  # fmt: skip
        return q.view(tensor.shape), params

    @classmethod
    def _scale(cls, qdata, params) -> tuple[torch.Tensor, str]:
        """The scale and its granularity, as the ops take them."""
        scale = params.scale
        if scale.numel() == 1 and not (scale.ndim and qdata.shape[-2:-1] == (1,)):
            if not params.convrot:
                return scale.reshape(1), "tensor"
            scale = scale.reshape(1, 1).expand(qdata.shape[-2], 1).contiguous()
        if scale.ndim < qdata.ndim or scale.shape[-1] != 1:
            scale = scale.reshape(*qdata.shape[:-1], 1)
        return scale, "row"

    @classmethod
    def dequantize(cls, qdata, params):
        scale, granularity = cls._scale(qdata, params)
        how = {"granularity": granularity, "hadamard": params.hadamard}
        how["out_dtype"] = params.orig_dtype
        return pestle.dequantize_int8(qdata, scale, **how).view(qdata.shape)

    @classmethod
    def dequantize_embedding(cls, qdata, params, indices):
        """The rows of these indices; no others are decoded."""
        flat = indices.reshape(-1).to(qdata.device)
        scale = params.scale
        if scale.numel() > 1:
            scale = scale.reshape(-1, 1)[flat]
        rows = {**vars(params), "scale": scale, "orig_shape": (flat.numel(), qdata.shape[-1])}
        values = cls.dequantize(qdata[flat], type(params)(**rows))
        return values.view(*indices.shape, qdata.shape[-1])

    @classmethod
    def requantize_kwargs(cls, qtensor):
        params = qtensor._params
        return {
            "is_weight": params.is_weight,
            "per_channel": params.scale.ndim > 0,
            "convrot": params.convrot,
            "convrot_groupsize": params.convrot_groupsize,
            "activations": params.activations,
        }

    @classmethod
    def get_padded_shape(cls, orig_shape):
        return tuple(orig_shape)

    @classmethod
    def get_storage_shape(cls, orig_shape):
        return tuple(orig_shape)

    @classmethod
    def geometry(cls, params):
        scale = params.scale
        rows = params.orig_shape[-1] if params.transposed else params.orig_shape[-2:-1]
        rows = rows if isinstance(rows, int) else (rows[0] if rows else 1)
        if scale.ndim == 0 or (scale.ndim == 1 and scale.numel() == 1 and rows != 1):
            return {"qdata": CODES, "scale": WHOLE}
        if scale.shape[-1] == 1 and scale.ndim > 1:
            return {"qdata": CODES, "scale": Field(1, 0)}
        if scale.ndim == 1 and scale.numel() != rows:  # one for each weight of a batch
            return {"qdata": CODES, "scale": WHOLE}
        return {"qdata": CODES, "scale": Field(1, 0, axes=1)}

    @classmethod
    def column_step(cls, params):
        return params.hadamard or 1

    @classmethod
    def kernel_call(cls, x, qdata, params):
        scale, granularity = cls._scale(qdata, params)
        how = {"granularity": granularity, "hadamard": params.hadamard}
        return "linear_int8", (x, qdata, scale), how | {"activations": params.activations}

    @classmethod
    def scaled_mm(cls, a, b, bias, out_dtype):
        if not issubclass(a._layout, TensorWiseINT8Layout):
            return NotImplemented
        if a._params.hadamard != b._params.hadamard:
            return NotImplemented
        (scale_a, of_a), (scale_b, of_b) = (cls._scale(t._qdata, t._params) for t in (a, b))
        if {of_a, of_b} == {"tensor", "row"}:
            if of_a == "tensor":
                scale_a = scale_a.expand(*a.shape[:-1], 1).contiguous()
            else:
                scale_b = scale_b.expand(b.shape[0], 1).contiguous()
            of_a = "row"
        return pestle.scaled_mm_int8(
            a._qdata, b._qdata, scale_a, scale_b, bias=bias, granularity=of_a, out_dtype=out_dtype
        )

    @classmethod
    def joinable(cls, tensors):
        """With a scale for each row tensors of different scales lie in one."""
        return [
            t._replace(params={"scale": cls._scale(t._qdata, t._params)[0].expand(t.shape[0], 1)})
            for t in tensors
        ]


class INT8GroupLayout(QuantizedLayout):
    """A scale for each group of columns: what GGUF's Q8_0 holds."""

    @dataclass(frozen=True)
    class Params(BaseLayoutParams):
        group_size: int = 32
        transposed: bool = False

        def _validate_tensor_fields(self):
            self._as_f32("scale")

    @classmethod
    def quantize(cls, tensor, group_size=32, stochastic_rounding=0):
        how = {"granularity": "group", "group_size": group_size, **rounding(stochastic_rounding)}
        q, scale = pestle.quantize_int8(tensor, **how)
        return q, cls.Params(scale, tensor.dtype, tuple(tensor.shape), group_size)

    @staticmethod
    def _how(params) -> dict:
        return {"granularity": "group", "group_size": params.group_size}

    @classmethod
    def dequantize(cls, qdata, params):
        how = {"out_dtype": params.orig_dtype, **cls._how(params)}
        return pestle.dequantize_int8(qdata, params.scale, **how)

    @classmethod
    def requantize_kwargs(cls, qtensor):
        return {"group_size": qtensor._params.group_size}

    @classmethod
    def geometry(cls, params):
        return {"qdata": CODES, "scale": Field(1, params.group_size)}

    @classmethod
    def column_step(cls, params):
        return params.group_size

    @classmethod
    def kernel_call(cls, x, qdata, params):
        return "linear_int8", (x, qdata, params.scale), cls._how(params)
