"""Rotary position embeddings: f32 operation by operation, one rounding."""

from __future__ import annotations

import torch

from ..._backends import implements


def _rotate(x, freqs, pairs):
    f = freqs[:, :, : x.shape[2]].float() if freqs.shape[2] != 1 else freqs.float()
    halves = x.float().unflatten(-1, (2, -1) if pairs == "split_half" else (-1, 2))
    x0, x1 = halves.unbind(-2 if pairs == "split_half" else -1)
    y0 = f[..., 0, 0] * x0 + f[..., 0, 1] * x1
    y1 = f[..., 1, 0] * x0 + f[..., 1, 1] * x1
    out = torch.stack((y0, y1), -2 if pairs == "split_half" else -1)
    return out.flatten(-2).to(x.dtype)


@implements("apply_rope", backend="eager")
def apply_rope(x, freqs, x2=None, *, pairs):
    out = _rotate(x, freqs, pairs)
    return out if x2 is None else (out, _rotate(x2, freqs, pairs))
