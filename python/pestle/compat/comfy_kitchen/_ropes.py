"""Rotary embeddings by comfy-kitchen's names, over Pestle's ops."""

from __future__ import annotations

from torch import Tensor

from ._serve import FLOATS, FOUR, ONE, PAIRS, adapter, of

_X = of(FLOATS, FOUR, PAIRS)
_W = of(FLOATS, ONE)
_FREQS = of(FLOATS)
_PAIR = {"xq": _X, "xk": _X, "freqs_cis": _FREQS}
_SINGLE = {"x": _X, "freqs_cis": _FREQS}
_RMS_PAIR = {"q": _X, "k": _X, "freqs_cis": _FREQS, "q_scale": _W, "k_scale": _W}
_RMS_SINGLE = {"x": _X, "freqs_cis": _FREQS, "scale": _W}

_SPLIT = {"pairs": "split_half"}


def six_dimensions(freqs: Tensor) -> Tensor:
    """[B, D1, D2, D/2, 2, 2], dimensions of 1 put in front where there are fewer."""
    return freqs[(None,) * (6 - freqs.ndim)] if freqs.ndim < 6 else freqs


def _rotate(call, x: Tensor, freqs: Tensor, x2: Tensor | None = None, **options):
    return call(x, freqs=six_dimensions(freqs), x2=x2, **options)


@adapter("apply_rope", **_PAIR)
def apply_rope(p, xq, xk, freqs_cis):
    return _rotate(p.apply_rope, xq, freqs_cis, xk)


@adapter("apply_rope", **_SINGLE)
def apply_rope1(p, x, freqs_cis):
    return _rotate(p.apply_rope, x, freqs_cis)


@adapter("apply_rope", **_PAIR)
def apply_rope_split_half(p, xq, xk, freqs_cis):
    return _rotate(p.apply_rope, xq, freqs_cis, xk, **_SPLIT)


@adapter("apply_rope", **_SINGLE)
def apply_rope_split_half1(p, x, freqs_cis):
    return _rotate(p.apply_rope, x, freqs_cis, **_SPLIT)


@adapter("apply_rope", **_PAIR)
def apply_rope_(p, xq, xk, freqs_cis):
    _rotate(p.apply_rope_, xq, freqs_cis, xk)
    return xq, xk


@adapter("apply_rope", **_SINGLE)
def apply_rope1_(p, x, freqs_cis):
    _rotate(p.apply_rope_, x, freqs_cis)
    return x


@adapter("apply_rope", **_PAIR)
def apply_rope_split_half_(p, xq, xk, freqs_cis):
    _rotate(p.apply_rope_, xq, freqs_cis, xk, **_SPLIT)
    return xq, xk


@adapter("apply_rope", **_SINGLE)
def apply_rope_split_half1_(p, x, freqs_cis):
    _rotate(p.apply_rope_, x, freqs_cis, **_SPLIT)
    return x


# ---- after the RMS norm of each head


def _norm_pair(call, q, k, freqs, q_scale, k_scale, epsilon, **options):
    options |= {"weight": q_scale, "weight2": k_scale, "eps": epsilon}
    return _rotate(call, q, freqs, k, **options)


def _norm_single(call, x, freqs, scale, epsilon, **options):
    return _rotate(call, x, freqs, weight=scale, eps=epsilon, **options)


@adapter("rms_rope", **_RMS_PAIR)
def rms_rope(p, q, k, freqs_cis, q_scale, k_scale=None, epsilon=1e-6):
    return _norm_pair(p.rms_rope, q, k, freqs_cis, q_scale, k_scale, epsilon)


@adapter("rms_rope", **_RMS_SINGLE)
def rms_rope1(p, x, freqs_cis, scale, epsilon=1e-6):
    return _norm_single(p.rms_rope, x, freqs_cis, scale, epsilon)


@adapter("rms_rope", **_RMS_PAIR)
def rms_rope_split_half(p, q, k, freqs_cis, q_scale, k_scale=None, epsilon=1e-6, rot_dim=0):
    how = {**_SPLIT, "rot_dim": rot_dim}
    return _norm_pair(p.rms_rope, q, k, freqs_cis, q_scale, k_scale, epsilon, **how)


@adapter("rms_rope", **_RMS_SINGLE)
def rms_rope_split_half1(p, x, freqs_cis, scale, epsilon=1e-6):
    return _norm_single(p.rms_rope, x, freqs_cis, scale, epsilon, **_SPLIT)


@adapter("rms_rope", **_RMS_PAIR)
def rms_rope_(p, q, k, freqs_cis, q_scale, k_scale=None, epsilon=1e-6):
    _norm_pair(p.rms_rope_, q, k, freqs_cis, q_scale, k_scale, epsilon)
    return q, k


@adapter("rms_rope", **_RMS_SINGLE)
def rms_rope1_(p, x, freqs_cis, scale, epsilon=1e-6):
    _norm_single(p.rms_rope_, x, freqs_cis, scale, epsilon)
    return x


@adapter("rms_rope", **_RMS_PAIR)
def rms_rope_split_half_(p, q, k, freqs_cis, q_scale, k_scale=None, epsilon=1e-6, rot_dim=0):
    how = {**_SPLIT, "rot_dim": rot_dim}
    _norm_pair(p.rms_rope_, q, k, freqs_cis, q_scale, k_scale, epsilon, **how)
    return q, k


@adapter("rms_rope", **_RMS_SINGLE)
def rms_rope_split_half1_(p, x, freqs_cis, scale, epsilon=1e-6):
    _norm_single(p.rms_rope_, x, freqs_cis, scale, epsilon, **_SPLIT)
    return x
