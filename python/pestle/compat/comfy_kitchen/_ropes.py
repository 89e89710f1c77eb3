"""Rotary embeddings by comfy-kitchen's names, over Pestle's ops, with its roundings in between: the
normalised value is rounded to x's dtype before it is rotated, and frequencies below f32 are
multiplied and summed up in their own precision."""

from __future__ import annotations

import torch
from torch import Tensor

from ._rope_utils import check_rope_inplace
from ._serve import FLOATS, FOUR, ONE, PAIRS, ExactDims, MinDims, adapter, of

_HEADS = of(FLOATS, MinDims(3), PAIRS)
_X = of(FLOATS, FOUR, PAIRS)
_W = of(FLOATS, ONE)
_FREQS = of(FLOATS)
_PAIR = {"xq": _HEADS, "xk": _HEADS, "freqs_cis": _FREQS}
_SINGLE = {"x": _HEADS, "freqs_cis": _FREQS}
_SIX = of(FLOATS, ExactDims(6))
_RMS_PAIR = {"q": _X, "k": _X, "freqs_cis": _SIX, "q_scale": _W, "k_scale": _W}
_RMS_SINGLE = {"x": _X, "freqs_cis": _SIX, "scale": _W}


def six_dimensions(freqs: Tensor) -> Tensor:
    """[B, D1, D2, D/2, 2, 2], dimensions of 1 put in front where there are fewer."""
    return freqs[(None,) * (6 - freqs.ndim)] if freqs.ndim < 6 else freqs


def writable(*tensors: Tensor, reads: tuple[Tensor | None, ...]) -> None:
    """What is traced has no memory to look at."""
    if not torch.compiler.is_compiling():
        check_rope_inplace(*tensors, readonly=tuple(t for t in reads if t is not None))


def as_precise_as(freqs: Tensor, x: Tensor) -> Tensor:
    """x as it meets freqs: f32 takes any dtype as it is, the others their own."""
    return x if freqs.dtype == torch.float32 else x.to(freqs.dtype)


def _all(made) -> tuple[Tensor, ...]:
    return made if isinstance(made, tuple) else (made,)


def rotated(p, xs: list[Tensor], freqs: Tensor, how: dict) -> tuple[Tensor, ...]:
    """New tensors of the dtypes of xs."""
    x, *second = (as_precise_as(freqs, x) for x in xs)
    made = p.apply_rope(x, freqs=six_dimensions(freqs), x2=second[0] if second else None, **how)
    return tuple(y.to(x.dtype) for y, x in zip(_all(made), xs, strict=True))


def rotate_in_place(p, xs: list[Tensor], freqs: Tensor, how: dict) -> None:
    if all(as_precise_as(freqs, x) is x for x in xs):
        second = xs[1] if len(xs) == 2 else None
        p.apply_rope_(xs[0], freqs=six_dimensions(freqs), x2=second, **how)
    else:
        copied(xs, rotated(p, xs, freqs, how))


def one_op_does(xs: list[Tensor], freqs: Tensor, weights: list[Tensor]) -> bool:
    """Whether nothing is rounded between norm and rotation."""
    floats = {x.dtype for x in (*xs, freqs)}
    return floats == {torch.float32} and len({w.dtype for w in weights}) == 1


def copied(xs: list[Tensor], made: tuple[Tensor, ...]) -> None:
    for x, y in zip(xs, made, strict=True):
        x.copy_(y)


def _keep(split: str, layout: dict, end: str) -> None:
    """The four functions of a layout that give new tensors (`end` is "") or write in place ("_"):
    RoPE of two tensors or one, and the same after the RMS norm of each head."""

    def rope(p, xs, freqs):
        batches = [x.unsqueeze(0) if x.ndim == 3 else x for x in xs]
        if not end:
            made = rotated(p, batches, freqs, layout)
            return tuple(y[0] if x.ndim == 3 else y for y, x in zip(made, xs, strict=True))
        writable(*xs, reads=(freqs,))
        rotate_in_place(p, batches, freqs, layout)
        return tuple(xs)

    def after_norm(p, xs, freqs, weights, eps, rot_dim=0):
        how = {"rot_dim": rot_dim, **layout}
        if end:
            writable(*xs, reads=(freqs, *weights))
        if one_op_does(xs, freqs, weights):
            second = {"x2": xs[1], "weight2": weights[1]} if len(xs) == 2 else {}
            how |= second | {"weight": weights[0], "freqs": freqs, "eps": eps}
            return _all(getattr(p, f"rms_rope{end}")(xs[0], **how))
        norms = [p.rms_norm(x, weight=w, eps=eps) for x, w in zip(xs, weights, strict=True)]
        made = rotated(p, norms, freqs, how)
        if not end:
            return made
        copied(xs, made)
        return tuple(xs)

    def rope_of_two(p, xq, xk, freqs_cis):
        return rope(p, [xq, xk], freqs_cis)

    def rope_of_one(p, x, freqs_cis):
        return rope(p, [x], freqs_cis)[0]

    def normed_two(p, q, k, freqs_cis, q_scale, k_scale=None, epsilon=1e-6, rot_dim=0):
        weights = [q_scale, q_scale if k_scale is None else k_scale]
        return after_norm(p, [q, k], freqs_cis, weights, epsilon, rot_dim)

    def normed_one(p, x, freqs_cis, scale, epsilon=1e-6):
        return after_norm(p, [x], freqs_cis, [scale], epsilon)[0]

    for op, ops, count, function, rules in (
        ("apply_rope", ["apply_rope"], "", rope_of_two, _PAIR),
        ("apply_rope", ["apply_rope"], "1", rope_of_one, _SINGLE),
        ("rms_rope", ["rms_rope", "rms_norm", "apply_rope"], "", normed_two, _RMS_PAIR),
        ("rms_rope", ["rms_rope", "rms_norm", "apply_rope"], "1", normed_one, _RMS_SINGLE),
    ):
        function.__name__ = f"{op}{split}{count}{end}"
        adapter(*ops, **rules)(function)


for _split, _layout in (("", {}), ("_split_half", {"pairs": "split_half"})):
    for _end in ("", "_"):
        _keep(_split, _layout, _end)
