"""Rotary position embeddings: f32 operation by operation, one rounding."""

from __future__ import annotations

import torch

from ..._backends import implements


def _matrices(x, freqs, cos, sin, inverse):
    """f00, f01, f10, f11, broadcast over x's heads and positions."""

    def trimmed(t):
        return t[:, :, : x.shape[2]].float() if t.shape[2] != 1 else t.float()

    if cos is not None:
        c, s = trimmed(cos), trimmed(sin)
        f = c, -s, s, c
    else:
        t = trimmed(freqs)
        f = t[..., 0, 0], t[..., 0, 1], t[..., 1, 0], t[..., 1, 1]
    return (f[0], f[2], f[1], f[3]) if inverse else f


def _rotate(x, freqs, cos, sin, *, pairs, rot_dim, inverse):
    f00, f01, f10, f11 = _matrices(x, freqs, cos, sin, inverse)
    turned = x[..., : rot_dim or x.shape[-1]]
    halves = turned.float().unflatten(-1, (2, -1) if pairs == "split_half" else (-1, 2))
    x0, x1 = halves.unbind(-2 if pairs == "split_half" else -1)
    y0 = f00 * x0 + f01 * x1
    y1 = f10 * x0 + f11 * x1
    out = torch.stack((y0, y1), -2 if pairs == "split_half" else -1).flatten(-2).to(x.dtype)
    return torch.cat((out, x[..., turned.shape[-1] :]), -1)


@implements("apply_rope", backend="eager")
def apply_rope(x, freqs=None, x2=None, cos=None, sin=None, *, pairs, rot_dim, inverse):
    how = {"pairs": pairs, "rot_dim": rot_dim, "inverse": inverse}
    out = _rotate(x, freqs, cos, sin, **how)
    return out if x2 is None else (out, _rotate(x2, freqs, cos, sin, **how))
