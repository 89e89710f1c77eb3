"""Modulated norms by comfy-kitchen's names, over Pestle's ops."""

from __future__ import annotations

from torch import Tensor

from ._serve import FLOATS, adapter, of

_RULES = {"x": of(FLOATS), "scale": of(FLOATS), "shift": of(FLOATS)}


def grouped(x: Tensor, *modulations: Tensor) -> list[Tensor]:
    """Tensors that broadcast to x as [G, K]: M/G neighbouring rows of x share a row of them.

    What changes along an inner dimension of x but not along an outer one has no such form, and is
    written out, a row for each of x's.
    """
    lead = x.ndim - 1
    full = [(1,) * (x.ndim - t.ndim) + tuple(t.shape) for t in modulations]
    kept = max((axis + 1 for shape in full for axis in range(lead) if shape[axis] != 1), default=0)
    return [
        t.expand(*x.shape[:kept], *(1,) * (lead - kept), x.shape[-1]).reshape(-1, x.shape[-1])
        for t in modulations
    ]


@adapter("adaln", **_RULES)
def adaln(p, x, scale, shift, eps=1e-6):
    scale, shift = grouped(x, scale, shift)
    return p.adaln(x, scale=scale, shift=shift, eps=eps)


@adapter("rms_adaln", **_RULES)
def rms_adaln(p, x, scale, shift, eps=1e-6):
    scale, shift = grouped(x, scale, shift)
    return p.rms_adaln(x, scale=scale, shift=shift, eps=eps)
