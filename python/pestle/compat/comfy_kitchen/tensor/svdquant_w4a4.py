"""SVDQuant: weights that are made offline, and products with them in plain PyTorch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from pestle.quantized import layouts, register_layout_class
from pestle.quantized.tensor import QuantizedTensor

from .. import _functions, _svdquant


class TensorCoreSVDQuantW4A4Layout(layouts.TensorCoreSVDQuantW4A4Layout):
    @classmethod
    def dequantize(cls, qdata, params):
        """The weight that a product by it has; what act_unsigned adds to x stands in the bias."""
        rows = cls.get_out_features_from_storage(qdata)
        tiles = params.scale.ndim == 3
        scale = _svdquant.of_rows(params.scale).t() if tiles else params.scale
        up = _svdquant.of_rows(params.proj_up) if params.proj_up.ndim == 3 else params.proj_up
        codes = _svdquant.decoded(_svdquant.weight_rows(qdata), scale, False)
        low_rank = up.float() @ params.proj_down.float().t()
        return (codes / params.smooth_factor.float() + low_rank)[:rows].to(params.orig_dtype)

    @classmethod
    def linear(cls, x, qdata, params, bias, out_dtype):
        return multiplied(x, [(qdata, params, bias)])[0].to(out_dtype)


def multiplied(x: torch.Tensor, weights: Sequence[tuple]) -> list[torch.Tensor]:
    """x, quantised once, times each (codes, params, bias)."""
    params = weights[0][1]
    rows = x.reshape(-1, x.shape[-1])
    unsigned = bool(params.act_unsigned)
    q, scales, low_rank = _functions.quantize_svdquant_w4a4(
        rows + _svdquant.SHIFT if unsigned else rows, params.smooth_factor, params.proj_down,
        act_unsigned=unsigned, lora_x=rows if unsigned else None,
    )  # fmt: skip
    outs = []
    for qdata, own, bias in weights:
        out = _functions.scaled_mm_svdquant_w4a4(
            q, qdata, scales, own.scale, low_rank, own.proj_up, bias, unsigned
        )
        outs.append(out[: rows.shape[0]].reshape(*x.shape[:-1], out.shape[-1]))
    return outs


def _is_svdquant(weight: torch.Tensor) -> bool:
    return (
        isinstance(weight, QuantizedTensor)
        and issubclass(weight._layout, layouts.TensorCoreSVDQuantW4A4Layout)
        and not weight._params.transposed
    )


def _alike(a: torch.Tensor, b: torch.Tensor, validate: bool, trust: bool) -> bool:
    if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
        return False
    return trust or a.data_ptr() == b.data_ptr() or (validate and torch.equal(a, b))


def svdquant_w4a4_can_share_quant(
    weights: Sequence[torch.Tensor], *, validate: bool = False, trust: bool = False
) -> bool:
    """Whether one quantised activation does for all of these weights: they smooth it alike and
    share its low-rank side. Tensors count as the same where they lie at one address, with
    `validate` where their values agree, with `trust` where their shapes do."""
    if not weights or not all(map(_is_svdquant, weights)):
        return False
    first, *others = (weight._params for weight in weights)
    return all(
        bool(first.act_unsigned) == bool(other.act_unsigned)
        and _alike(first.smooth_factor, other.smooth_factor, validate, trust)
        and _alike(first.proj_down, other.proj_down, validate, trust)
        for other in others
    )


def _shared(weights, biases, validate: bool, trust: bool) -> list:
    """The biases, one for each weight, once it is known that the weights go together."""
    if not weights:
        raise ValueError("expected at least one weight")
    biases = [None] * len(weights) if biases is None else list(biases)
    if len(biases) != len(weights):
        raise ValueError(f"got {len(weights)} weights but {len(biases)} biases")
    if not svdquant_w4a4_can_share_quant(weights, validate=validate, trust=trust):
        raise ValueError("SVDQuant weights do not share quantization parameters")
    return biases


def _joined(tensors: list[torch.Tensor], rows_along: int) -> torch.Tensor:
    """One tensor of several weights' rows; tiles of rows lie along dimension 0."""
    if len({tensor.ndim for tensor in tensors}) > 1:
        raise ValueError("some of these weights lie in tiles and some don't")
    return torch.cat(tensors, rows_along if tensors[0].ndim == 2 else 0)


def svdquant_w4a4_fuse_linear_weights(
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None] | None = None,
    *,
    validate_shared_quant: bool = False,
    assume_shared_quant: bool = False,
) -> tuple[QuantizedTensor, torch.Tensor | None, tuple[int, ...]]:
    """One weight that has the rows of all, its bias, and how many rows are whose."""
    biases = _shared(weights, biases, validate_shared_quant, assume_shared_quant)
    parts = [weight._params for weight in weights]
    columns = {params.orig_shape[1] for params in parts}
    if len(columns) > 1:
        raise ValueError(f"the weights have {sorted(columns)} columns: they must agree")
    codes = _joined([weight._qdata for weight in weights], 0)
    rows = tuple(w._layout.get_out_features_from_storage(w._qdata) for w in weights)
    params = dataclasses.replace(
        parts[0],
        scale=_joined([p.scale for p in parts], 1),
        proj_up=_joined([p.proj_up for p in parts], 0),
        orig_shape=(sum(rows), columns.pop()),
    )
    bias = None
    if any(one is not None for one in biases):
        pairs = zip(biases, rows, strict=True)
        bias = torch.cat([params.proj_up.new_zeros(n) if b is None else b for b, n in pairs])
    return QuantizedTensor(codes, weights[0]._layout_cls, params), bias, rows


def svdquant_w4a4_fused_grouped_linear(
    input_tensor: torch.Tensor,
    fused_weight: torch.Tensor,
    fused_bias: torch.Tensor | None,
    output_features: Sequence[int],
) -> tuple[torch.Tensor, ...]:
    """A product by a weight of svdquant_w4a4_fuse_linear_weights, split again."""
    if not _is_svdquant(fused_weight):
        raise TypeError("fused_weight must be a TensorCoreSVDQuantW4A4Layout QuantizedTensor")
    weight = (fused_weight._qdata, fused_weight._params, fused_bias)
    return torch.split(multiplied(input_tensor, [weight])[0], tuple(output_features), -1)


def svdquant_w4a4_grouped_linear(
    input_tensor: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None] | None = None,
    *,
    validate_shared_quant: bool = False,
    assume_shared_quant: bool = False,
) -> tuple[torch.Tensor, ...]:
    """Products by several weights of x, which is quantised once."""
    biases = _shared(weights, biases, validate_shared_quant, assume_shared_quant)
    parts = [(w._qdata, w._params, b) for w, b in zip(weights, biases, strict=True)]
    return tuple(multiplied(input_tensor, parts))


register_layout_class("TensorCoreSVDQuantW4A4Layout", TensorCoreSVDQuantW4A4Layout)

__all__ = [
    "TensorCoreSVDQuantW4A4Layout",
    "svdquant_w4a4_can_share_quant",
    "svdquant_w4a4_fuse_linear_weights",
    "svdquant_w4a4_fused_grouped_linear",
    "svdquant_w4a4_grouped_linear",
]
