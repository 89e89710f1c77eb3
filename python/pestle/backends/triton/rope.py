"""apply_rope and rms_rope in Triton: interleaved pairs or halves, freqs or cos and sin, part of a
head, a second tensor, back again, in place.

Map      a program rotates some positions in HEADS heads, so that rotations are read once for
         them; where positions share them instead (BSHD), heads and positions change places.
Traffic  x and out once; rotations once for each group of heads, from the L2 after the first.
Numerics f32, f0 * x0 + f1 * x1 with one fused multiply-add, one rounding. rms_rope: the sum of
         squares of a head, then x * (1 / sqrt(mean + eps)) * weight, not rounded in between.
Right on an H200 (docs/performance.md), not timed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..._backends import implements
from . import _device as d
from ._launch import cdiv, kind, launch, power_of_2, raw


@triton.jit
def _rotation(freqs, sin, s, inside, f_s, f_pair, f_i, f_j, FKIND: tl.constexpr,
              COS: tl.constexpr, DENSE: tl.constexpr, INVERSE: tl.constexpr,
              POSITIONS: tl.constexpr, PAIRS: tl.constexpr, TURNED: tl.constexpr):  # fmt: skip
    """f00, f01, f10, f11 of [POSITIONS, PAIRS]; COS: freqs are cosines, with sines beside them."""
    pair = tl.arange(0, PAIRS)[None, :]
    mask = inside & (pair < TURNED)
    at = s * f_s + pair * f_pair
    if COS:
        f00 = d.widen(tl.load(freqs + at, mask=mask, other=0), FKIND)
        f11 = f00
        f10 = d.widen(tl.load(sin + at, mask=mask, other=0), FKIND)
        f01 = -f10
    elif DENSE:
        entry = tl.arange(0, PAIRS * 4)[None, :]
        mask = inside & (entry < TURNED * 4)
        f = d.widen(tl.load(freqs + s * f_s + entry, mask=mask, other=0), FKIND)
        first, second = tl.split(tl.reshape(f, (POSITIONS, PAIRS, 2, 2)))
        f00, f10 = tl.split(first)
        f01, f11 = tl.split(second)
    else:
        f00 = d.widen(tl.load(freqs + at, mask=mask, other=0), FKIND)
        f01 = d.widen(tl.load(freqs + at + f_j, mask=mask, other=0), FKIND)
        f10 = d.widen(tl.load(freqs + at + f_i, mask=mask, other=0), FKIND)
        f11 = d.widen(tl.load(freqs + at + f_i + f_j, mask=mask, other=0), FKIND)
    if INVERSE:
        return f00, f10, f01, f11
    return f00, f01, f10, f11


@triton.jit
def _load_pairs(p, x_d, inside, KIND: tl.constexpr, SPLIT_HALF: tl.constexpr,
                POSITIONS: tl.constexpr, PAIRS: tl.constexpr, TURNED: tl.constexpr):  # fmt: skip
    """First and second elements [POSITIONS, PAIRS] of the rows at p."""
    if SPLIT_HALF:
        pair = tl.arange(0, PAIRS)[None, :]
        mask = inside & (pair < TURNED)
        x0 = d.widen(tl.load(p + pair * x_d, mask=mask, other=0), KIND)
        x1 = d.widen(tl.load(p + (pair + TURNED) * x_d, mask=mask, other=0), KIND)
        return x0, x1
    else:
        lane = tl.arange(0, PAIRS * 2)[None, :]
        both = tl.load(p + lane * x_d, mask=inside & (lane < TURNED * 2), other=0)
        return tl.split(tl.reshape(d.widen(both, KIND), (POSITIONS, PAIRS, 2)))


@triton.jit
def _store_pairs(p, o_d, y0, y1, inside, SPLIT_HALF: tl.constexpr, POSITIONS: tl.constexpr,
                 PAIRS: tl.constexpr, TURNED: tl.constexpr):  # fmt: skip
    if SPLIT_HALF:
        pair = tl.arange(0, PAIRS)[None, :]
        mask = inside & (pair < TURNED)
        tl.store(p + pair * o_d, y0, mask=mask)
        tl.store(p + (pair + TURNED) * o_d, y1, mask=mask)
    else:
        lane = tl.arange(0, PAIRS * 2)[None, :]
        y = tl.reshape(tl.join(y0, y1), (POSITIONS, PAIRS * 2))
        tl.store(p + lane * o_d, y, mask=inside & (lane < TURNED * 2))


@triton.jit
def rotate(x, out, freqs, sin, weight, eps, heads, positions, x_b, x_h, x_s, x_d,
           o_b, o_h, o_s, o_d, f_b, f_h, f_s, f_pair, f_i, f_j, w_d, groups, tiles,
           KIND: tl.constexpr, FKIND: tl.constexpr, WKIND: tl.constexpr,
           SPLIT_HALF: tl.constexpr, COS: tl.constexpr, DENSE: tl.constexpr,
           INVERSE: tl.constexpr, SHARED: tl.constexpr, HEADS: tl.constexpr,
           POSITIONS: tl.constexpr, PAIRS: tl.constexpr, TURNED: tl.constexpr,
           REST: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """SHARED: one rotation for all heads. WKIND: the weight's, -1 for no norm. TURNED pairs of
    a head of SIZE are rotated, PAIRS and REST are powers of two that hold them and what is left."""
    group = tl.program_id(0) % groups
    tile = tl.program_id(0) // groups % tiles
    batch = (tl.program_id(0) // groups // tiles).to(tl.int64)
    s = (tile * POSITIONS + tl.arange(0, POSITIONS)).to(tl.int64)[:, None]
    inside = s < positions
    freqs += batch * f_b
    sin += batch * f_b
    if SHARED:
        f00, f01, f10, f11 = _rotation(freqs, sin, s, inside, f_s, f_pair, f_i, f_j, FKIND, COS,
                                       DENSE, INVERSE, POSITIONS, PAIRS, TURNED)  # fmt: skip
    if WKIND >= 0:
        w0, w1 = _load_pairs(weight, w_d, tl.full((1, 1), 1, tl.int1), WKIND, SPLIT_HALF, 1, PAIRS,
                             TURNED)  # fmt: skip
    for i in tl.static_range(HEADS):
        head = tl.full((1, 1), 0, tl.int64) + group * HEADS + i
        here = inside & (head < heads)
        from_x = x + batch * x_b + head * x_h + s * x_s
        to = out + batch * o_b + head * o_h + s * o_s
        if not SHARED:
            f00, f01, f10, f11 = _rotation(freqs + head * f_h, sin + head * f_h, s, here, f_s,
                                           f_pair, f_i, f_j, FKIND, COS, DENSE, INVERSE, POSITIONS,
                                           PAIRS, TURNED)  # fmt: skip
        x0, x1 = _load_pairs(from_x, x_d, here, KIND, SPLIT_HALF, POSITIONS, PAIRS, TURNED)
        if REST > 0:
            lane = 2 * TURNED + tl.arange(0, REST)[None, :]
            left = here & (lane < SIZE)
            x2 = d.widen(tl.load(from_x + lane * x_d, mask=left, other=0), KIND)
        if WKIND >= 0:
            squares = tl.sum(x0 * x0 + x1 * x1, axis=1)
            if REST > 0:
                squares += tl.sum(x2 * x2, axis=1)
            root = tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(squares, SIZE * 1.0) + eps))[:, None]
            x0 = x0 * root * w0
            x1 = x1 * root * w1
            if REST > 0:
                w2 = d.widen(tl.load(weight + lane * w_d, mask=lane < SIZE, other=0), WKIND)
                x2 = x2 * root * w2
        y0 = d.narrow(tl.fma(f00, x0, f01 * x1), KIND)
        y1 = d.narrow(tl.fma(f10, x0, f11 * x1), KIND)
        _store_pairs(to, o_d, y0, y1, here, SPLIT_HALF, POSITIONS, PAIRS, TURNED)
        if REST > 0:
            tl.store(to + lane * o_d, d.narrow(x2, KIND), mask=left)


def _rotate(x, freqs, cos, sin, out, *, pairs, rot_dim, inverse=False, weight=None, eps=0.0):
    out = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    if out.numel() == 0:
        return out
    result = out
    if cos is not None and sin.stride() != cos.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    turns = freqs if cos is None else cos
    sin = turns if cos is None else sin
    if turns.shape[1] > 1 and turns.shape[2] == 1:  # BSHD: positions are the second dimension
        x, out, turns, sin = (t.transpose(1, 2) for t in (x, out, turns, sin))
    batches, heads, positions, size = x.shape
    turned = (rot_dim or size) // 2
    wide = power_of_2(turned)
    rest = power_of_2(size - 2 * turned) if size > 2 * turned else 0
    together = min(4, heads)
    tile = min(power_of_2(positions), max(1, 1024 // (wide + rest // 2)))
    f = [0 if n == 1 else s for n, s in zip(turns.shape, turns.stride(), strict=True)]
    inner = turns.stride()[3:] if cos is None else (turns.stride(3), 0, 0)
    groups, tiles = cdiv(heads, together), cdiv(positions, tile)
    launch(
        rotate, groups * tiles * batches, x, raw(x), raw(out), raw(turns), raw(sin),
        raw(x if weight is None else weight), eps, heads, positions, *x.stride(), *out.stride(),
        f[0], f[1], f[2], *inner, 0 if weight is None else weight.stride(0), groups, tiles,
        KIND=kind(x.dtype), FKIND=kind(turns.dtype),
        WKIND=-1 if weight is None else kind(weight.dtype), SPLIT_HALF=pairs == "split_half",
        COS=cos is not None, DENSE=inner == (4, 2, 1), INVERSE=inverse,
        SHARED=turns.shape[1] == 1, HEADS=together, POSITIONS=tile, PAIRS=wide, TURNED=turned,
        REST=rest, SIZE=size,
    )  # fmt: skip
    return result


@implements("apply_rope", backend="triton")
def apply_rope(x, freqs, x2, cos, sin, *, out=None, **options):
    if x2 is None:
        return _rotate(x, freqs, cos, sin, out, **options)
    first, second = out or (None, None)
    return (
        _rotate(x, freqs, cos, sin, first, **options),
        _rotate(x2, freqs, cos, sin, second, **options),
    )


@implements("rms_rope", backend="triton")
def rms_rope(x, weight, freqs, x2, weight2, cos, sin, *, out=None, **options):
    if x2 is None:
        return _rotate(x, freqs, cos, sin, out, weight=weight, **options)
    first, second = out or (None, None)
    weight2 = weight if weight2 is None else weight2
    return (
        _rotate(x, freqs, cos, sin, first, weight=weight, **options),
        _rotate(x2, freqs, cos, sin, second, weight=weight2, **options),
    )
