"""apply_rope in Triton: interleaved pairs or halves, with a second tensor, in place.

Map      a program rotates some positions in HEADS heads, so that rotations are read once for
         them; where positions share them instead (BSHD), heads and positions change places.
Traffic  x and out once; freqs once for each group of heads, from the L2 after the first.
Numerics f0 * x0 + f1 * x1 with one fused multiply-add in f32, one rounding.
Measured not yet run on a GPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..._backends import implements
from . import _device as d
from ._launch import cdiv, kind, launch, power_of_2, raw


@triton.jit
def _rotation(freqs, s, pair, inside, f_s, f_pair, f_i, f_j, FKIND: tl.constexpr,
              DENSE: tl.constexpr, POSITIONS: tl.constexpr, PAIRS: tl.constexpr,
              D2: tl.constexpr):  # fmt: skip
    """f00, f01, f10, f11 of [POSITIONS, PAIRS]."""
    if DENSE:
        entry = tl.arange(0, PAIRS * 4)[None, :]
        mask = inside & (entry < D2 * 4)
        f = d.widen(tl.load(freqs + s * f_s + entry, mask=mask, other=0), FKIND)
        first, second = tl.split(tl.reshape(f, (POSITIONS, PAIRS, 2, 2)))
        f00, f10 = tl.split(first)
        f01, f11 = tl.split(second)
    else:
        mask = inside & (pair < D2)
        at = freqs + s * f_s + pair * f_pair
        f00 = d.widen(tl.load(at, mask=mask, other=0), FKIND)
        f01 = d.widen(tl.load(at + f_j, mask=mask, other=0), FKIND)
        f10 = d.widen(tl.load(at + f_i, mask=mask, other=0), FKIND)
        f11 = d.widen(tl.load(at + f_i + f_j, mask=mask, other=0), FKIND)
    return f00, f01, f10, f11


@triton.jit
def rotate(x, out, freqs, heads, positions, x_b, x_h, x_s, x_d, o_b, o_h, o_s, o_d,
           f_b, f_h, f_s, f_pair, f_i, f_j, groups, tiles, KIND: tl.constexpr,
           FKIND: tl.constexpr, SPLIT_HALF: tl.constexpr, DENSE: tl.constexpr,
           SHARED: tl.constexpr, HEADS: tl.constexpr, POSITIONS: tl.constexpr,
           PAIRS: tl.constexpr, D2: tl.constexpr):  # fmt: skip
    """SHARED: one rotation for all heads. D2: pairs of a head; PAIRS: the next power of two."""
    group = tl.program_id(0) % groups
    tile = tl.program_id(0) // groups % tiles
    batch = (tl.program_id(0) // groups // tiles).to(tl.int64)
    s = (tile * POSITIONS + tl.arange(0, POSITIONS)).to(tl.int64)[:, None]
    pair = tl.arange(0, PAIRS)[None, :]
    inside = s < positions
    freqs += batch * f_b
    if SHARED:
        f00, f01, f10, f11 = _rotation(freqs, s, pair, inside, f_s, f_pair, f_i, f_j, FKIND, DENSE,
                                       POSITIONS, PAIRS, D2)  # fmt: skip
    for i in tl.static_range(HEADS):
        head = (group * HEADS + i).to(tl.int64)
        here = inside & (head < heads)
        from_x = x + batch * x_b + head * x_h + s * x_s
        to = out + batch * o_b + head * o_h + s * o_s
        if not SHARED:
            f00, f01, f10, f11 = _rotation(freqs + head * f_h, s, pair, here, f_s, f_pair, f_i, f_j,
                                           FKIND, DENSE, POSITIONS, PAIRS, D2)  # fmt: skip
        if SPLIT_HALF:
            mask = here & (pair < D2)
            x0 = d.widen(tl.load(from_x + pair * x_d, mask=mask, other=0), KIND)
            x1 = d.widen(tl.load(from_x + (pair + D2) * x_d, mask=mask, other=0), KIND)
        else:
            lane = tl.arange(0, PAIRS * 2)[None, :]
            mask = here & (lane < D2 * 2)
            both = d.widen(tl.load(from_x + lane * x_d, mask=mask, other=0), KIND)
            x0, x1 = tl.split(tl.reshape(both, (POSITIONS, PAIRS, 2)))
        y0 = d.narrow(tl.fma(f00, x0, f01 * x1), KIND)
        y1 = d.narrow(tl.fma(f10, x0, f11 * x1), KIND)
        if SPLIT_HALF:
            tl.store(to + pair * o_d, y0, mask=mask)
            tl.store(to + (pair + D2) * o_d, y1, mask=mask)
        else:
            y = tl.reshape(tl.join(y0, y1), (POSITIONS, PAIRS * 2))
            tl.store(to + lane * o_d, y, mask=mask)


def _rotate(x, freqs, pairs, out) -> torch.Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    if out.numel() == 0:
        return out
    result = out
    if freqs.shape[1] > 1 and freqs.shape[2] == 1:  # BSHD: positions are the second dimension
        x, out, freqs = (t.transpose(1, 2) for t in (x, out, freqs))
    batches, heads, positions, size = x.shape
    half = size // 2
    wide = power_of_2(half)
    together = 4 if heads >= 4 else heads
    tile = min(power_of_2(positions), max(1, 1024 // wide))
    f = [0 if n == 1 else s for n, s in zip(freqs.shape, freqs.stride(), strict=True)]
    dense = freqs.stride()[3:] == (4, 2, 1)
    groups, tiles = cdiv(heads, together), cdiv(positions, tile)
    launch(
        rotate, groups * tiles * batches, x, raw(x), raw(out), raw(freqs), heads, positions,
        *x.stride(), *out.stride(), f[0], f[1], f[2], *freqs.stride()[3:], groups, tiles,
        KIND=kind(x.dtype), FKIND=kind(freqs.dtype), SPLIT_HALF=pairs == "split_half", DENSE=dense,
        SHARED=freqs.shape[1] == 1, HEADS=together, POSITIONS=tile, PAIRS=wide, D2=half,
    )  # fmt: skip
    return result


@implements("apply_rope", backend="triton")
def apply_rope(x, freqs, x2, *, pairs, out=None):
    if x2 is None:
        return _rotate(x, freqs, pairs, out)
    first, second = out or (None, None)
    return _rotate(x, freqs, pairs, first), _rotate(x2, freqs, pairs, second)
