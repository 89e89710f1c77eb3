"""hadamard in Triton: the regular Hadamard rotation. Numerics: docs/formats/hadamard.md.

Map      a program takes whole groups; a stage splits each group's four quarters off by reshape and
         permutation, and puts the four sums back the same way.
Traffic  x once, out once.
Numerics each stage is the rule's three f32 operations in its order: exact.
Right on an H200 (docs/performance.md), not timed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..._backends import implements
from . import _device as d
from ._launch import cdiv, finish, fresh, kind, launch, power_of_2, raw, rows


@triton.jit
def _stage(v, GROUPS: tl.constexpr, SIZE: tl.constexpr, STEP: tl.constexpr):
    """One butterfly stage over [GROUPS, SIZE] at distance STEP."""
    OUTER: tl.constexpr = GROUPS * SIZE // (4 * STEP)
    v = tl.permute(tl.reshape(v, (OUTER, 2, 2, STEP)), (0, 3, 1, 2))  # [OUTER, STEP, high, low]
    even, odd = tl.split(v)  # low digit: a, c and b, d
    a, c = tl.split(even)
    b, e = tl.split(odd)
    sum_ab = a + b
    first = (sum_ab + c) - e
    second = (sum_ab - c) + e
    third = ((a - b) + c) + e
    fourth = ((b - a) + c) + e
    v = tl.join(tl.join(first, third), tl.join(second, fourth))
    return tl.reshape(tl.permute(v, (0, 2, 3, 1)), (GROUPS, SIZE))


@triton.jit
def butterfly(v, GROUPS: tl.constexpr, SIZE: tl.constexpr):
    """H v / sqrt(SIZE) of each row of [GROUPS, SIZE]."""
    # No return before the end: statements after one would have to compile too.
    v = _stage(v, GROUPS, SIZE, 1)
    if SIZE >= 16:
        v = _stage(v, GROUPS, SIZE, 4)
    if SIZE >= 64:
        v = _stage(v, GROUPS, SIZE, 16)
    if SIZE >= 256:
        v = _stage(v, GROUPS, SIZE, 64)
    if SIZE >= 1024:
        v = _stage(v, GROUPS, SIZE, 256)
    if SIZE == 4:
        v = v * 0.5
    elif SIZE == 16:
        v = v * 0.25
    elif SIZE == 64:
        v = v * 0.125
    elif SIZE == 256:
        v = v * 0.0625
    else:
        v = v * 0.03125
    return v


@triton.jit
def rotate_groups(x, out, groups, groups_in_row, x_row, x_column, o_row, o_column,
                  XKIND: tl.constexpr, OKIND: tl.constexpr,
                  GROUPS: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    index = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    row = (index // groups_in_row)[:, None]
    column = (index % groups_in_row)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    inside = (index < groups)[:, None]
    v = d.widen(tl.load(x + row * x_row + column * x_column, mask=inside, other=0), XKIND)
    v = butterfly(v, GROUPS, SIZE)
    tl.store(out + row * o_row + column * o_column, d.narrow(v, OKIND), mask=inside)


def rotate(x: torch.Tensor, out: torch.Tensor, size: int) -> None:
    """out [*M, K], contiguous, from x; they may be the same memory."""
    if out.numel() == 0:
        return
    x, to = rows(x), rows(out)
    groups = x.numel() // size
    together = min(max(1, 4096 // size), power_of_2(groups))
    launch(
        rotate_groups, cdiv(groups, together), x, raw(x), raw(to), groups, x.shape[1] // size,
        *x.stride(), *to.stride(), XKIND=kind(x.dtype), OKIND=kind(out.dtype), GROUPS=together,
        SIZE=size,
    )  # fmt: skip


@implements("hadamard", backend="triton")
def hadamard(x, *, hadamard, out_dtype, out=None):
    values = fresh(out, x.shape, out_dtype, x)
    rotate(x, values, hadamard)
    return finish(out, values)
