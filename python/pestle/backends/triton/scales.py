"""Moves of codes in Triton: swizzle_scales, unswizzle_scales, swap_nibbles.

Rules: docs/formats/swizzle.md.

Map      a program takes 128 rows and 16 columns of tiles; swap_nibbles: a piece of a row.
Traffic  each byte once, padding written.
Numerics none: bytes.
Right on an H200 (docs/performance.md), not timed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..._backends import implements
from ._blocks import scale_offset
from ._launch import cdiv, finish, flat, fresh, launch, power_of_2, raw, round_up


@triton.jit
def swizzle(scale, out, rows, columns, s_row, s_column, out_columns, tiles_in_row,
            BACK: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """BACK: from tiles in `out` to `scale`."""
    row = (tl.program_id(0) // tiles_in_row) * 128 + tl.arange(0, 128)[:, None]
    column = (tl.program_id(0) % tiles_in_row) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < columns)
    plain = scale + row.to(tl.int64) * s_row + column.to(tl.int64) * s_column
    tiled = out + scale_offset(row, column, out_columns, True)
    if BACK:
        tl.store(plain, tl.load(tiled, mask=inside, other=0), mask=inside)
    else:
        tl.store(tiled, tl.load(plain, mask=inside, other=0), mask=column < out_columns)


def _swizzle(scale, out, back) -> None:
    columns = min(64, power_of_2(out.shape[1]))
    tiles = cdiv(out.shape[1], columns)
    launch(swizzle, out.shape[0] // 128 * tiles, scale, raw(scale), raw(out), *scale.shape,
           *scale.stride(), out.shape[1], tiles, BACK=back, COLUMNS=columns, warps=8)  # fmt: skip


@implements("swizzle_scales", backend="triton")
def swizzle_scales(scale, *, out=None):
    m, c = scale.shape
    tiles = fresh(out, (round_up(m, 128), round_up(c, 4)), scale.dtype, scale)
    _swizzle(scale, tiles, False)
    return finish(out, tiles)


@implements("unswizzle_scales", backend="triton")
def unswizzle_scales(scale, *, rows, columns, out=None):
    plain = fresh(out, (rows, columns), scale.dtype, scale)
    _swizzle(plain, scale.contiguous(), True)
    return finish(out, plain)


@triton.jit
def swap(q, out, rows, columns, q_row, q_column, o_row, o_column, tiles_in_row,
         ROWS: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    tile = tl.program_id(0)
    row = ((tile // tiles_in_row) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = (tile % tiles_in_row).to(tl.int64) * SIZE + tl.arange(0, SIZE)[None, :]
    inside = (row < rows) & (column < columns)
    byte = tl.load(q + row * q_row + column * q_column, mask=inside, other=0)
    tl.store(out + row * o_row + column * o_column, (byte << 4) | (byte >> 4), mask=inside)


@implements("swap_nibbles", backend="triton")
def swap_nibbles(q, *, out=None):
    swapped = fresh(out, q.shape, torch.uint8, q)
    if q.numel() == 0:
        return finish(out, swapped)
    q, to = flat(q, swapped)
    m, k = q.shape
    size = min(power_of_2(k), 8192)
    tile_rows = min(power_of_2(m), max(1, 8192 // size))
    tiles = cdiv(k, size)
    launch(swap, cdiv(m, tile_rows) * tiles, q, q, to, m, k, *q.stride(), *to.stride(), tiles,
           ROWS=tile_rows, SIZE=size)  # fmt: skip
    return finish(out, swapped)
