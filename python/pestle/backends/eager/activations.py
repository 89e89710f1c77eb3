"""silu and gelu, alone and with a gate, and their gradients: f32, one rounding."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ..._backends import implements
from ._quantised import codes_of

_SLOPE_END = 128.0  # beyond, the slopes are 0 and 1 whatever x is; at infinity formulas say NaN


def _gelu(x: Tensor) -> Tensor:
    """By erfc, which does not cancel where x is negative, as 1 + erf does."""
    return 0.5 * x * torch.special.erfc(x * -(0.5**0.5))


_ACTIVATIONS = {
    "silu": functional.silu,
    "gelu": _gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


def slope_of(x: Tensor, act: str) -> Tensor:
    near, one = x.clamp(-_SLOPE_END, _SLOPE_END), torch.ones_like(x)
    if act == "silu":
        return torch.ops.aten.silu_backward(one, near)
    how = "tanh" if act == "gelu_tanh" else "none"
    return torch.ops.aten.gelu_backward(one, near, approximate=how)


def _results(y: Tensor, x: Tensor, q_scale, global_scale, how: dict) -> tuple:
    """out, or its codes, or both."""
    out = y.to(x.dtype)
    if how["out_format"] == "none":
        return (out,)
    kept = (out,) if how["keep_out"] else ()
    return kept + codes_of(out, q_scale, global_scale, how)


@implements("activation", backend="eager")
def activation(x, q_scale=None, global_scale=None, *, act, **how):
    return _results(_ACTIVATIONS[act](x.float()), x, q_scale, global_scale, how)


@implements("activation_backward", backend="eager")
def activation_backward(d_out, x, *, act):
    return (d_out.float() * slope_of(x.float(), act)).to(x.dtype)


def _factors(x: Tensor, gate: Tensor | None, layout: str) -> tuple[Tensor, Tensor]:
    """What act takes and the other factor, as f32."""
    if layout == "pair":
        return x.float(), gate.float()
    first, last = x.float().chunk(2, -1) if x.shape[-1] else (x.float(), x.float())
    return (first, last) if layout == "act_first" else (last, first)


@implements("gated_activation", backend="eager")
def gated_activation(x, gate=None, q_scale=None, global_scale=None, *, act, layout, **how):
    inner, other = _factors(x, gate, layout)
    return _results(_ACTIVATIONS[act](inner) * other, x, q_scale, global_scale, how)


@implements("gated_activation_backward", backend="eager")
def gated_activation_backward(d_out, x, gate=None, *, act, layout):
    inner, other = _factors(x, gate, layout)
    gradient = d_out.float()
    d_inner = (gradient * other * slope_of(inner, act)).to(x.dtype)
    d_other = (gradient * _ACTIVATIONS[act](inner)).to(x.dtype)
    if layout == "pair":
        return d_inner, d_other
    return torch.cat((d_inner, d_other) if layout == "act_first" else (d_other, d_inner), -1)
