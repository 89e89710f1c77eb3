"""Rotary embeddings by comfy-kitchen's names, over Pestle's ops."""

from __future__ import annotations

import torch
from torch import Tensor

from ._rope_utils import check_rope_inplace
from ._serve import FLOATS, FOUR, ONE, PAIRS, adapter, of

_X = of(FLOATS, FOUR, PAIRS)
_W = of(FLOATS, ONE)
_FREQS = of(FLOATS)
_PAIR = {"xq": _X, "xk": _X, "freqs_cis": _FREQS}
_SINGLE = {"x": _X, "freqs_cis": _FREQS}
_RMS_PAIR = {"q": _X, "k": _X, "freqs_cis": _FREQS, "q_scale": _W, "k_scale": _W}
_RMS_SINGLE = {"x": _X, "freqs_cis": _FREQS, "scale": _W}


def six_dimensions(freqs: Tensor) -> Tensor:
    """[B, D1, D2, D/2, 2, 2], dimensions of 1 put in front where there are fewer."""
    return freqs[(None,) * (6 - freqs.ndim)] if freqs.ndim < 6 else freqs


def writable(*tensors: Tensor | None, reads: tuple[Tensor | None, ...]) -> None:
    """What is traced has no memory to look at."""
    if not torch.compiler.is_compiling():
        given = [t for t in tensors if t is not None]
        check_rope_inplace(*given, readonly=tuple(t for t in reads if t is not None))


def _keep(split: str, layout: dict, end: str) -> None:
    """The four functions of a layout that give new tensors (`end` is "") or write in place ("_"):
    RoPE of two tensors or one, and the same after the RMS norm of each head."""

    def rope(p, x, freqs, x2=None):
        if end:
            writable(x, x2, reads=(freqs,))
        call = getattr(p, f"apply_rope{end}")
        return call(x, freqs=six_dimensions(freqs), x2=x2, **layout)

    def normed(p, x, freqs, weight, eps, x2=None, weight2=None, **more):
        if end:
            writable(x, x2, reads=(freqs, weight, weight2))
        call = getattr(p, f"rms_rope{end}")
        more |= {"x2": x2, "weight2": weight2, **layout}
        return call(x, freqs=six_dimensions(freqs), weight=weight, eps=eps, **more)

    def rope_of_two(p, xq, xk, freqs_cis):
        return rope(p, xq, freqs_cis, xk)

    def rope_of_one(p, x, freqs_cis):
        return rope(p, x, freqs_cis)

    def normed_two(p, q, k, freqs_cis, q_scale, k_scale=None, epsilon=1e-6):
        return normed(p, q, freqs_cis, q_scale, epsilon, x2=k, weight2=k_scale)

    def normed_part(p, q, k, freqs_cis, q_scale, k_scale=None, epsilon=1e-6, rot_dim=0):
        more = {"x2": k, "weight2": k_scale, "rot_dim": rot_dim}
        return normed(p, q, freqs_cis, q_scale, epsilon, **more)

    def normed_one(p, x, freqs_cis, scale, epsilon=1e-6):
        return normed(p, x, freqs_cis, scale, epsilon)

    for op, count, function, rules in (
        ("apply_rope", "", rope_of_two, _PAIR),
        ("apply_rope", "1", rope_of_one, _SINGLE),
        ("rms_rope", "", normed_part if split else normed_two, _RMS_PAIR),
        ("rms_rope", "1", normed_one, _RMS_SINGLE),
    ):
        function.__name__ = f"{op}{split}{count}{end}"
        adapter(op, **rules)(function)


for _split, _layout in (("", {}), ("_split_half", {"pairs": "split_half"})):
    for _end in ("", "_"):
        _keep(_split, _layout, _end)
