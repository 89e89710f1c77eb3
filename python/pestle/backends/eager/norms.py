"""rms_norm, layer_norm, adaln, rms_adaln and their gradients; the maths: ops/common/norm_rows.h.
f32, one rounding; codes are those of the stand-alone quantisers for the rounded output."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..._backends import implements
from . import _numbers as n
from ._quantised import codes_of


def _per_row(group: Tensor | None, m: int) -> Tensor | None:
    """gate, scale or shift [*G, K] as f32 [M, K]: neighbouring rows share a row of it."""
    if group is None:
        return None
    values = n.rows(group).float()
    return values.repeat_interleave(m // values.shape[0] if m else 0, 0)


class _Rows:
    """What is normalised, and its normalised rows."""

    def __init__(self, x, residual, gate, eps: float, subtract_mean: bool):
        self.x = n.rows(x).float()
        self.gate = _per_row(gate, self.x.shape[0])
        self.sum = self.x if self.gate is None else self.gate * self.x
        if residual is not None:
            self.sum = n.rows(residual).float() + self.sum
        centred = self.sum
        if subtract_mean:
            centred = centred - centred.mean(1, keepdim=True)
        self.root = torch.rsqrt(centred.square().mean(1, keepdim=True) + eps)
        self.normal = centred * self.root


def _forward(
    subtract_mean, x, residual, gate, weight, bias, scale, shift, q_scale, global_scale, eps, how
):  # fmt: skip
    rows = _Rows(x, residual, gate, eps, subtract_mean)
    m, y = rows.x.shape[0], rows.normal
    y = y if weight is None else y * weight.float()
    y = y if bias is None else y + bias.float()
    if scale is not None:
        y = y * (1 + _per_row(scale, m)) + _per_row(shift, m)
    out = y.to(x.dtype).reshape(x.shape)
    quantised = how["out_format"] != "none"
    results = [out] if how["keep_out"] or not quantised else []
    if residual is not None:
        results.append(rows.sum.to(x.dtype).reshape(x.shape))
    if quantised:
        results += codes_of(out, q_scale, global_scale, how)
    return tuple(results)


def _plain(subtract_mean: bool):
    def forward(
        x, residual=None, gate=None, weight=None, bias=None, q_scale=None, global_scale=None, *,
        eps, **how,
    ):  # fmt: skip
        return _forward(
            subtract_mean, x, residual, gate, weight, bias, None, None, q_scale, global_scale,
            eps, how,
        )  # fmt: skip

    return forward


def _modulated(subtract_mean: bool):
    def forward(
        x, scale, shift, residual=None, gate=None, weight=None, q_scale=None, global_scale=None, *,
        eps, **how,
    ):  # fmt: skip
        return _forward(
            subtract_mean, x, residual, gate, weight, None, scale, shift, q_scale, global_scale,
            eps, how,
        )  # fmt: skip

    return forward


rms_norm = implements("rms_norm", backend="eager")(_plain(False))
implements("layer_norm", backend="eager")(_plain(True))
implements("rms_adaln", backend="eager")(_modulated(False))
implements("adaln", backend="eager")(_modulated(True))


def _over_groups(values: Tensor, like: Tensor) -> Tensor:
    """Sums of the rows of each group, in the group's shape and dtype."""
    groups = n.rows(like).shape[0]
    if values.shape[0] == 0:
        return torch.zeros_like(like)
    summed = values.reshape(groups, values.shape[0] // groups, values.shape[1]).sum(1)
    return summed.to(like.dtype).reshape(like.shape)


def _backward(
    subtract_mean, x, d_out, residual, gate, weight, bias, scale, d_residual_out, eps
):  # fmt: skip
    rows = _Rows(x, residual, gate, eps, subtract_mean)
    y, gradient = rows.normal, n.rows(d_out).float()
    unscaled = gradient if scale is None else gradient * (1 + _per_row(scale, y.shape[0]))
    g = unscaled if weight is None else unscaled * weight.float()
    d_sum = g - y * (g * y).mean(1, keepdim=True)
    if subtract_mean:
        d_sum = d_sum - g.mean(1, keepdim=True)
    d_sum = rows.root * d_sum
    if d_residual_out is not None:
        d_sum = d_sum + n.rows(d_residual_out).float()
    d_x = d_sum if rows.gate is None else d_sum * rows.gate
    results = [d_x.to(x.dtype).reshape(x.shape)]
    if residual is not None:
        results.append(d_sum.to(x.dtype).reshape(x.shape))
    if weight is not None:
        results.append((unscaled * y).sum(0).to(weight.dtype))
    if gate is not None:
        results.append(_over_groups(d_sum * rows.x, gate))
    if bias is not None:
        results.append(unscaled.sum(0).to(bias.dtype))
    if scale is not None:
        normal = y if weight is None else y * weight.float()
        results += [_over_groups(gradient * normal, scale), _over_groups(gradient, scale)]
    return tuple(results)


def _plain_backward(subtract_mean: bool):
    def backward(
        x, d_out, residual=None, gate=None, weight=None, bias=None, d_residual_out=None, *, eps
    ):  # fmt: skip
        return _backward(
            subtract_mean, x, d_out, residual, gate, weight, bias, None, d_residual_out, eps
        )

    return backward


def _modulated_backward(subtract_mean: bool):
    def backward(
        x, d_out, scale, residual=None, gate=None, weight=None, d_residual_out=None, *, eps
    ):  # fmt: skip
        return _backward(
            subtract_mean, x, d_out, residual, gate, weight, None, scale, d_residual_out, eps
        )

    return backward


implements("rms_norm_backward", backend="eager")(_plain_backward(False))
implements("layer_norm_backward", backend="eager")(_plain_backward(True))
implements("rms_adaln_backward", backend="eager")(_modulated_backward(False))
implements("adaln_backward", backend="eager")(_modulated_backward(True))


def _groups(x: Tensor, groups: int) -> Tensor:
    """[N, groups, elements of a group] as f32."""
    count = math.prod(x.shape[1:]) // groups if x.shape[1] else 0
    return x.float().reshape(x.shape[0], groups, count)


def _channels(parameter: Tensor, x: Tensor) -> Tensor:
    return parameter.float().reshape(-1, *([1] * (x.ndim - 2)))


def _normal_groups(x: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    values = _groups(x, groups)
    centred = values - values.mean(2, keepdim=True)
    root = torch.rsqrt(centred.square().mean(2, keepdim=True) + eps)
    return (centred * root).reshape(x.shape), root


@implements("group_norm", backend="eager")
def group_norm(x, weight=None, bias=None, *, groups, eps, activation):
    y, _ = _normal_groups(x, groups, eps)
    y = y if weight is None else y * _channels(weight, x)
    y = y if bias is None else y + _channels(bias, x)
    return (torch.nn.functional.silu(y) if activation == "silu" else y).to(x.dtype)


@implements("group_norm_backward", backend="eager")
def group_norm_backward(x, d_out, weight=None, bias=None, *, groups, eps, activation):
    y, root = _normal_groups(x, groups, eps)
    gradient = d_out.float()
    if activation == "silu":
        h = y if weight is None else y * _channels(weight, x)
        h = h if bias is None else h + _channels(bias, x)
        gradient = torch.ops.aten.silu_backward(gradient, h)
    g = gradient if weight is None else gradient * _channels(weight, x)
    g, normal = _groups(g, groups), _groups(y, groups)
    d_x = root * (g - g.mean(2, keepdim=True) - normal * (g * normal).mean(2, keepdim=True))
    results = [d_x.reshape(x.shape).to(x.dtype)]
    others = [d for d in range(x.ndim) if d != 1]
    if weight is not None:
        results.append((gradient * y).sum(others).to(weight.dtype))
    if bias is not None:
        results.append(gradient.sum(others).to(bias.dtype))
    return tuple(results)
