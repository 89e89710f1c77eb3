"""Rotary position embeddings, alone and after an RMS norm: f32, one rounding."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._backends import implements


class _Rotations:
    """The 2x2 of each pair, from freqs or from cosines and sines."""

    def __init__(self, freqs, cos, sin, pairs: str, rot_dim: int, inverse: bool):
        if cos is None:
            f = freqs.float()
            self.f = [f[..., 0, 0], f[..., 0, 1], f[..., 1, 0], f[..., 1, 1]]
        else:
            c, s = cos.float(), sin.float()
            self.f = [c, -s, s, c]
        if inverse:
            self.f[1], self.f[2] = self.f[2], self.f[1]
        self.split, self.rot_dim = pairs == "split_half", rot_dim

    def turn(self, x: Tensor) -> Tensor:
        """f32 heads [B, H, S, D]; what rot_dim leaves stays."""
        rot = self.rot_dim or x.shape[-1]
        half, axis = rot // 2, -2 if self.split else -1
        pairs = x[..., :rot].unflatten(-1, (2, half) if self.split else (half, 2))
        x0, x1 = pairs.unbind(axis)
        f = [part[:, :, : x.shape[2]] if part.shape[2] != 1 else part for part in self.f]
        turned = torch.stack((f[0] * x0 + f[1] * x1, f[2] * x0 + f[3] * x1), axis).flatten(-2)
        return torch.cat((turned, x[..., rot:]), -1)


@implements("apply_rope", backend="eager")
def apply_rope(
    x, freqs=None, x2=None, cos=None, sin=None, *, pairs, rot_dim=0, inverse=False
):  # fmt: skip
    rotations = _Rotations(freqs, cos, sin, pairs, rot_dim, inverse)
    out = rotations.turn(x.float()).to(x.dtype)
    return out if x2 is None else (out, rotations.turn(x2.float()).to(x2.dtype))


def _root(x: Tensor, eps: float) -> Tensor:
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


@implements("rms_rope", backend="eager")
def rms_rope(
    x, weight, freqs=None, x2=None, weight2=None, cos=None, sin=None, *, eps, pairs, rot_dim
):  # fmt: skip
    rotations = _Rotations(freqs, cos, sin, pairs, rot_dim, False)

    def one(heads: Tensor, factor: Tensor) -> Tensor:
        values = heads.float()
        return rotations.turn(values * _root(values, eps) * factor.float()).to(heads.dtype)

    out = one(x, weight)
    return out if x2 is None else (out, one(x2, weight if weight2 is None else weight2))


@implements("rms_rope_backward", backend="eager")
def rms_rope_backward(
    d_out, x, weight, freqs=None, d_out2=None, x2=None, weight2=None, cos=None, sin=None, *,
    eps, pairs, rot_dim,
):  # fmt: skip
    rotations = _Rotations(freqs, cos, sin, pairs, rot_dim, True)

    def one(gradient: Tensor, heads: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        values = heads.float()
        root = _root(values, eps)
        turned, normal = rotations.turn(gradient.float()), values * root
        scaled = turned * factor.float()
        d_x = root * (scaled - normal * (scaled * normal).mean(-1, keepdim=True))
        return d_x.to(heads.dtype), (turned * normal).sum((0, 1, 2))

    d_x, d_weight = one(d_out, x, weight)
    if x2 is None:
        return d_x, d_weight.to(weight.dtype)
    d_x2, second = one(d_out2, x2, weight if weight2 is None else weight2)
    if weight2 is None:
        return d_x, (d_weight + second).to(weight.dtype), d_x2
    return d_x, d_weight.to(weight.dtype), d_x2, second.to(weight2.dtype)
