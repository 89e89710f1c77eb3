"""rms_norm, layer_norm, adaln, rms_adaln and their gradients.

The maths: ops/norm/forward/norm_rows.h. f32, one rounding; codes are those of the stand-alone
quantisers for the rounded output."""

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
    """[N, groups, elements of a group]"""
    count = math.prod(x.shape[1:]) // groups if x.shape[1] else 0
    return x.reshape(x.shape[0], groups, count)


def _channels(parameter: Tensor | None, x: Tensor) -> Tensor | None:
    """weight, bias [C] or gate, scale, shift [G, C] as f32, to be combined with x [N, C, ...]:
    neighbouring samples share a row."""
    if parameter is None:
        return None
    values = parameter.float()
    if values.ndim == 2:
        rows = values.shape[0]
        values = values.repeat_interleave(x.shape[0] // rows if rows else 0, 0)
    return values.reshape(*values.shape, *([1] * (x.ndim - 2)))


class _ChannelGroups:
    """What is normalised, its normalised groups, and what belongs to its channels."""

    def __init__(self, x, weight, bias, residual, gate, scale, shift, groups: int, eps: float):
        self.x, self.groups = x.float(), groups
        self.weight, self.bias = _channels(weight, x), _channels(bias, x)
        self.gate, self.scale, self.shift = (_channels(p, x) for p in (gate, scale, shift))
        self.sum = self.x if self.gate is None else self.gate * self.x
        if residual is not None:
            self.sum = residual.float() + self.sum
        values = _groups(self.sum, groups)
        centred = values - values.mean(2, keepdim=True)
        self.root = torch.rsqrt(centred.square().mean(2, keepdim=True) + eps)
        self.normal = (centred * self.root).reshape(x.shape)

    def before_modulation(self) -> Tensor:
        y = self.normal if self.weight is None else self.normal * self.weight
        return y if self.bias is None else y + self.bias

    def before_activation(self) -> Tensor:
        y = self.before_modulation()
        y = y if self.scale is None else y * (1 + self.scale)
        return y if self.shift is None else y + self.shift


@implements("group_norm", backend="eager")
def group_norm(
    x, weight=None, bias=None, residual=None, gate=None, scale=None, shift=None, q_scale=None,
    global_scale=None, *, groups, eps, activation, **how,
):  # fmt: skip
    of = _ChannelGroups(x, weight, bias, residual, gate, scale, shift, groups, eps)
    y = of.before_activation()
    out = (torch.nn.functional.silu(y) if activation == "silu" else y).to(x.dtype)
    quantised = how["out_format"] != "none"
    results = [out] if how["keep_out"] or not quantised else []
    if residual is not None:
        results.append(of.sum.to(x.dtype))
    if quantised:
        results += codes_of(out, q_scale, global_scale, how)
    return tuple(results)


@implements("group_norm_backward", backend="eager")
def group_norm_backward(
    x, d_out, weight=None, bias=None, residual=None, gate=None, scale=None, shift=None,
    d_residual_out=None, *, groups, eps, activation,
):  # fmt: skip
    of = _ChannelGroups(x, weight, bias, residual, gate, scale, shift, groups, eps)
    y, gradient = of.normal, d_out.float()
    if activation == "silu":
        gradient = torch.ops.aten.silu_backward(gradient, of.before_activation())
    unscaled = gradient if of.scale is None else gradient * (1 + of.scale)
    g = unscaled if of.weight is None else unscaled * of.weight
    g, normal = _groups(g, groups), _groups(y, groups)
    d_sum = of.root * (g - g.mean(2, keepdim=True) - normal * (g * normal).mean(2, keepdim=True))
    d_sum = d_sum.reshape(x.shape)
    if d_residual_out is not None:
        d_sum = d_sum + d_residual_out.float()
    d_x = d_sum if of.gate is None else d_sum * of.gate
    results = [d_x.to(x.dtype)]
    planes = list(range(2, x.ndim))

    def over_planes(values: Tensor) -> Tensor:
        return values.sum(planes) if planes else values

    def over_samples(values: Tensor, like: Tensor) -> Tensor:
        sums, rows = over_planes(values), like.shape[0]
        each = x.shape[0] // rows if rows else 0
        return sums.reshape(rows, each, sums.shape[1]).sum(1).to(like.dtype)

    if weight is not None:
        results.append(over_planes(unscaled * y).sum(0).to(weight.dtype))
    if bias is not None:
        results.append(over_planes(unscaled).sum(0).to(bias.dtype))
    if residual is not None:
        results.append(d_sum.to(x.dtype))
    if gate is not None:
        results.append(over_samples(d_sum * of.x, gate))
    if scale is not None:
        results.append(over_samples(gradient * of.before_modulation(), scale))
    if shift is not None:
        results.append(over_samples(gradient, shift))
    return tuple(results)
