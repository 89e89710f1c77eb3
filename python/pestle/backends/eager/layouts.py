"""Codes and scales in other places, bit for bit: docs/formats/packing.md, swizzle.md."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._backends import implements
from . import _layouts, _numbers


@implements("swap_nibbles", backend="eager")
def swap_nibbles(q):
    return q << 4 | q >> 4


@implements("swizzle_scales", backend="eager")
def swizzle_scales(scale):
    return _layouts.swizzle(scale.view(torch.uint8)).view(scale.dtype)


@implements("unswizzle_scales", backend="eager")
def unswizzle_scales(scale, *, rows, columns):
    plain = _layouts.unswizzle(scale.view(torch.uint8), rows, columns)
    return plain.contiguous().view(scale.dtype)


def _codes_from(q: Tensor, packing: str) -> Tensor:
    """[N, K] codes of any packing."""
    if packing.startswith("plain"):
        return _layouts.unpack(q, False)
    words = q.contiguous().view(torch.int32)
    if packing == "gptq":  # eight rows of K to a word
        return _layouts.codes_of_words(words.t(), packing)
    codes = _layouts.codes_of_words(words, packing)
    return codes.t() if packing == "awq" else codes


def _codes_to(codes: Tensor, packing: str) -> Tensor:
    if packing.startswith("plain"):
        return _layouts.pack(codes, False)
    if packing == "kaio":
        return _layouts.words_of(codes, packing).view(torch.uint32)
    if packing == "gptq":
        return _layouts.words_of(codes, packing).t()
    return _layouts.words_of(codes.t(), packing)


@implements("repack_int4", backend="eager")
def repack_int4(q, *, from_packing, to_packing):
    signed = ("plain", "kaio")
    flip = 8 if (from_packing in signed) != (to_packing in signed) else 0
    return _codes_to(_codes_from(q, from_packing) ^ flip, to_packing)


@implements("repack_zeros", backend="eager")
def repack_zeros(zero, *, from_packing, to_packing):
    less = {"gptq": 1}
    if from_packing == "plain":
        codes = zero & 0xF
    else:
        codes = _layouts.codes_of_words(zero, from_packing).t()
        codes = codes + less.get(from_packing, 0) & 0xF
    if to_packing == "plain":
        return codes
    return _layouts.words_of(codes.t() - less.get(to_packing, 0) & 0xF, to_packing)


@implements("stochastic_cast", backend="eager")
def stochastic_cast(x, *, seed):
    """Up in magnitude with the probability of what is cut off; NaN is 0x7FC0."""
    u = _numbers.random_bits(seed, tuple(x.shape), x.device)
    codes = (_numbers.bits(x).long() & 0xFFFFFFFF) + u >> 16
    codes = torch.where(x.isnan(), 0x7FC0, codes & 0xFFFF)
    codes = torch.where(codes >= 1 << 15, codes - (1 << 16), codes)
    return codes.to(torch.int16).view(torch.bfloat16)
