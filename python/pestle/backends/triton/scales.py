"""Moves of codes in Triton: swizzle_scales, unswizzle_scales, swap_nibbles. docs/formats/swizzle.md.

Map      a program takes 128 rows and 16 columns of tiles; swap_nibbles: a piece of a row.
Traffic  each byte once, padding written.
Numerics none: bytes.
Measured not yet run on a GPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .blocks import scale_offset
from .launch import cdiv, flat, launch, power_of_2, raw, round_up


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


def swizzle_scales(scale):
    m, c = scale.shape
    out = torch.empty(round_up(m, 128), round_up(c, 4), dtype=scale.dtype, device=scale.device)
    _swizzle(scale, out, False)
    return out


def unswizzle_scales(scale, *, rows=0, columns=0):
    out = torch.empty(rows, columns, dtype=scale.dtype, device=scale.device)
    _swizzle(out, scale.contiguous(), True)
    return out


@triton.jit
def swap(q, out, rows, columns, q_row, q_column, o_row, o_column, tiles_in_row,
         ROWS: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    tile = tl.program_id(0)
    row = ((tile // tiles_in_row) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = (tile % tiles_in_row).to(tl.int64) * SIZE + tl.arange(0, SIZE)[None, :]
    inside = (row < rows) & (column < columns)
    byte = tl.load(q + row * q_row + column * q_column, mask=inside, other=0)
    tl.store(out + row * o_row + column * o_column, (byte << 4) | (byte >> 4), mask=inside)


def _swap(q, out) -> None:
    if q.numel() == 0:
        return
    q, out = flat(q, out)
    m, k = q.shape
    size = min(power_of_2(k), 8192)
    tile_rows = min(power_of_2(m), max(1, 8192 // size))
    tiles = cdiv(k, size)
    launch(swap, cdiv(m, tile_rows) * tiles, q, q, out, m, k, *q.stride(), *out.stride(), tiles,
           ROWS=tile_rows, SIZE=size)  # fmt: skip


def swap_nibbles(q):
    out = torch.empty(q.shape, dtype=torch.uint8, device=q.device)
    _swap(q, out)
    return out


def swap_nibbles_(q):
    if q.ndim > 2 and not q.is_contiguous():
        return q.copy_(swap_nibbles(q))
    _swap(q, q)
    return q
