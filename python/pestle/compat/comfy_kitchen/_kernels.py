"""Functions that comfy-kitchen's backends have beside those that its package lists: quantisers of
INT8 and INT4 rows, rotated or not, and the product of two INT4 matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from ._linears import activated
from ._nibbles import unpack_int4
from ._quantizers import need_groups, quantize_and_rotate_rowwise, rounding
from ._serve import FLOATS, INT8, TWO, adapter, of

_ROWS = {"x": of(FLOATS)}
_WEIGHT = {"weight_2d": of(FLOATS, TWO)}


# ---- INT8


@adapter("quantize_int8", **_WEIGHT)
def quantize_int8_rowwise_convrot64(
    p,
    weight_2d,
    group_size,
    stochastic_rounding=0,
    input_act=None,
    input_act_weight=None,
    input_act_eps=0.0,
):
    """Codes and scales of rotated rows, an activation applied before."""
    x = activated(weight_2d, input_act, input_act_weight, input_act_eps)
    need_groups(x, group_size, "group_size")
    return quantize_and_rotate_rowwise(p, x, None, group_size, stochastic_rounding)


@adapter("quantize_int8", **_WEIGHT)
def quantize_int8_convrot_staged(p, weight_2d, group_size, stochastic_rounding=0):
    need_groups(weight_2d, group_size, "group_size")
    return quantize_and_rotate_rowwise(p, weight_2d, None, group_size, stochastic_rounding)


# ---- INT4


def int4_rows(p, x: Tensor, hadamard: int, seed: int | None) -> tuple[Tensor, Tensor]:
    """Codes two a byte, and a scale for each row [..., 1]."""
    rows = x.reshape(-1, x.shape[-1])
    q, scale = p.quantize_int4(rows, group_size=0, hadamard=hadamard, **rounding(seed))
    return q.view(torch.int8).view(*x.shape[:-1], -1), scale.view(*x.shape[:-1], 1)


@adapter("quantize_int4", **_ROWS)
def quantize_int4_rowwise(p, x, stochastic_rounding=0):
    return int4_rows(p, x, 0, stochastic_rounding)


@adapter("quantize_int4", x=of(FLOATS, TWO))
def quantize_signed_int4_rowwise(p, x, stochastic_rounding=0):
    q, scale = int4_rows(p, x, 0, stochastic_rounding)
    return q, scale.view(-1)


@adapter("quantize_int4", **_ROWS)
def quantize_int4_rowwise_convrot64(p, x, group_size, stochastic_rounding=0):
    need_groups(x, group_size, "group_size")
    return int4_rows(p, x, group_size, stochastic_rounding)


@adapter("quantize_int4", **_ROWS)
def quantize_int4_rowwise_convrot64_to_int8(p, x, group_size, stochastic_rounding=0):
    """The same codes, one a byte."""
    q, scale = quantize_int4_rowwise_convrot64(p, x, group_size, stochastic_rounding)
    return unpack_int4(q), scale


@adapter(weight=of(INT8, TWO))
def prepare_int4_weight_for_int8_linear(p, weight):
    """Codes of four bits, one a byte."""
    return unpack_int4(weight)


def column(scale: Tensor, count: int, name: str, like: Tensor) -> Tensor:
    if scale.numel() != count:
        raise ValueError(f"{name} has {scale.numel()} elements: give {count}, one a row")
    return scale.to(like.device, torch.float32).reshape(count, 1)


@adapter("scaled_mm_int8", x_qdata=of(INT8, TWO), weight=of(INT8, TWO), bias=of(FLOATS))
def int4_linear(p, x_qdata, weight, x_scale, weight_scale, bias=None, out_dtype=torch.bfloat16):
    """Codes of both sides, two a byte, summed as integers, times their rows' scales."""
    if x_qdata.shape[1] != weight.shape[1]:
        widths = f"{2 * x_qdata.shape[1]} columns and the weight {2 * weight.shape[1]}"
        raise ValueError(f"x has {widths}: the K dimensions do not match")
    return p.scaled_mm_int8(
        unpack_int4(x_qdata),
        unpack_int4(weight),
        column(x_scale, x_qdata.shape[0], "x_scale", x_qdata),
        column(weight_scale, weight.shape[0], "weight_scale", x_qdata),
        granularity="row",
        bias=bias,
        out_dtype=out_dtype,
    )
