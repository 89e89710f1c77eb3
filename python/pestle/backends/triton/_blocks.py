"""Block formats in Triton: NVFP4, MXFP8, MXFP4, both ways. Numerics: docs/formats/nvfp4.md, mx.md.

Map      a program takes some rows of the matrix of blocks; a row of the tile is a block, so its
         amax is a reduction over 2 or 4 neighbouring threads. The grid covers scales' padding too.
Traffic  x once, codes and scales once, padding included; nothing is cleared before.
Numerics exact. E2M1 by f32 sums (_device.py): no instruction of sm_100 is needed, any GPU runs it.
Right on an H200 (docs/performance.md), not timed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import _device as d
from ._launch import cdiv, hardware, kind, launch, power_of_2, raw, round_up, seed_words

NVFP4 = tl.constexpr(0)
MXFP4 = tl.constexpr(1)
MXFP8_E4M3 = tl.constexpr(3)
MXFP8_E5M2 = tl.constexpr(4)
LAST_OF_4_BITS = tl.constexpr(1)
ELEMENTS = 65536 if d.INTERPRETED.value else 4096  # of a program; the interpreter likes few


@triton.jit
def scale_offset(row, column, columns, SWIZZLED: tl.constexpr):
    """Where the scale of a block lies, in an array with `columns` of them a row."""
    if SWIZZLED:
        tile = (row >> 7).to(tl.int64) * (columns >> 2) + (column >> 2)
        return tile * 512 + (((row & 31) << 4) | ((row & 127) >> 5 << 2) | (column & 3))
    else:
        return row.to(tl.int64) * columns + column


@triton.jit
def _nvfp4_codes(x, amax, g, u, STOCHASTIC: tl.constexpr, HW: tl.constexpr):
    """(codes, scale codes, mask, what is set) of blocks; amax [N, 1] as bits, g [1, 1]. Mask, then
    what is set go over bytes of two codes: zeros have 0 everywhere, NaN 7."""
    t = tl.div_rn(tl.div_rn(amax.to(tl.float32, bitcast=True), 6.0), g)
    t = tl.where(t > 448.0, 448.0, t)
    # By integers: the code of the conversion (HW 2), widened here, has the upper of two garbled by
    # ptxas of Triton 3.6 in tiles of f16 with odd strides.
    s = tl.where((amax == 0) | (g == 0), 0, d.fp8_code(t, d.E4M3, 0).to(tl.int32))
    factor = d.fp8_value(s, d.E4M3) * g
    bad = factor != factor
    mask = tl.where((s == 0) | (factor == 0) | bad, 0, 0xFF)
    nans = tl.where(bad & (s != 0), 0x77, 0)
    if STOCHASTIC:
        code = d.minifloat_stochastic(tl.div_rn(x, factor), u, 1, 1, 7, 7, 3)
    else:
        code = d.e2m1_quotient_code(x, factor, HW)
    return code, s, mask, nans


@triton.jit
def _mx_codes(x, amax, u, FORMAT: tl.constexpr, STOCHASTIC: tl.constexpr, HW: tl.constexpr):
    e = d.e8m0_of(amax, FORMAT)
    v = x * d.e8m0_inverse(e)
    mask = tl.where(amax == 0, 0, 0xFF)
    nans = 0
    if FORMAT == MXFP4:
        nans = tl.where(e == 255, 0x77, 0)
        mask = tl.where(e == 255, 0, mask)
        if STOCHASTIC:
            code = d.minifloat_stochastic(v, u, 1, 1, 7, 7, 3)
        else:
            if d.INTERPRETED:
                v = tl.where(v == v, v, 0.0)
            code = d.e2m1_code(v, HW)
    else:
        code = d.fp8_code_stochastic(v, u, FORMAT) if STOCHASTIC else d.fp8_code(v, FORMAT, HW)
        code = code & mask.to(tl.uint8)
    return code, e, mask, nans


@triton.jit
def quantize_blocks(x, q, scales, global_scale, rows, columns, x_row, x_column, q_rows,
                    blocks_in_row, scale_rows, scale_columns, tiles_in_row, seed_low, seed_high,
                    XKIND: tl.constexpr, FORMAT: tl.constexpr, HIGH_FIRST: tl.constexpr,
                    SWIZZLED: tl.constexpr, STOCHASTIC: tl.constexpr, HW: tl.constexpr,
                    ROWS: tl.constexpr, BLOCKS: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """x is [rows, columns]; q covers q_rows rows of blocks_in_row blocks of SIZE elements."""
    i = tl.arange(0, ROWS * BLOCKS)
    row = (tl.program_id(0) // tiles_in_row) * ROWS + i // BLOCKS
    block = (tl.program_id(0) % tiles_in_row) * BLOCKS + i % BLOCKS
    from_x = x + row.to(tl.int64) * x_row
    column = block[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    inside = (row < rows)[:, None] & (column < columns)
    raw_x = tl.load(from_x[:, None] + column.to(tl.int64) * x_column, mask=inside, other=0)
    values = d.widen(raw_x, XKIND)
    amax = tl.max(d.abs_bits(values), axis=1)[:, None]
    index = row.to(tl.int64) * blocks_in_row + block  # of the block in q
    u = 0
    if STOCHASTIC:
        u = d.philox_u16(seed_low, seed_high, index[:, None] * SIZE + tl.arange(0, SIZE)[None, :])
    if FORMAT == NVFP4:
        g = tl.load(global_scale + tl.zeros((1, 1), tl.int32))
        code, s, mask, nans = _nvfp4_codes(values, amax, g, u, STOCHASTIC, HW)
    else:
        code, s, mask, nans = _mx_codes(values, amax, u, FORMAT, STOCHASTIC, HW)
    kept = ((row < q_rows) & (block < blocks_in_row))[:, None]
    if FORMAT <= LAST_OF_4_BITS:
        even, odd = tl.split(tl.reshape(code, (ROWS * BLOCKS, SIZE // 2, 2)))
        byte = ((even << 4) | odd) if HIGH_FIRST else ((odd << 4) | even)
        byte = (byte & mask) | nans
        place = index[:, None] * (SIZE // 2) + tl.arange(0, SIZE // 2)[None, :]
        tl.store(q + place, byte.to(tl.uint8), mask=kept)
    else:
        tl.store(q + index[:, None] * SIZE + tl.arange(0, SIZE)[None, :], code, mask=kept)
    inside = (row < scale_rows) & (block < scale_columns)
    at = scale_offset(row, block, scale_columns, SWIZZLED)
    tl.store(scales + at[:, None], s.to(tl.uint8), mask=inside[:, None])


@triton.jit
def dequantize_blocks(q, scales, global_scale, out, rows, blocks_in_row, q_row, q_column,
                      scale_columns, tiles_in_row, OKIND: tl.constexpr, FORMAT: tl.constexpr,
                      HIGH_FIRST: tl.constexpr, SWIZZLED: tl.constexpr, ROWS: tl.constexpr,
                      BLOCKS: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    i = tl.arange(0, ROWS * BLOCKS)
    row = (tl.program_id(0) // tiles_in_row) * ROWS + i // BLOCKS
    block = (tl.program_id(0) % tiles_in_row) * BLOCKS + i % BLOCKS
    inside = (row < rows) & (block < blocks_in_row)
    from_q = (q + row.to(tl.int64) * q_row)[:, None]
    at = scale_offset(row, block, scale_columns, SWIZZLED)
    s = tl.load(scales + at, mask=inside, other=0).to(tl.int32)[:, None]
    factor = d.e8m0_value(s)
    if FORMAT == NVFP4:
        factor = d.fp8_value(s, d.E4M3) * tl.load(global_scale)
    if FORMAT <= LAST_OF_4_BITS:
        column = block[:, None] * (SIZE // 2) + tl.arange(0, SIZE // 2)[None, :]
        byte = tl.load(from_q + column.to(tl.int64) * q_column, mask=inside[:, None], other=0)
        byte = byte.to(tl.int32)
        low, high = d.e2m1_value(byte), d.e2m1_value(byte >> 4)
        low, high = d.narrow(low * factor, OKIND), d.narrow(high * factor, OKIND)
        two = tl.join(high, low) if HIGH_FIRST else tl.join(low, high)
        v = tl.reshape(two, (ROWS * BLOCKS, SIZE))
    else:
        column = block[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
        code = tl.load(from_q + column.to(tl.int64) * q_column, mask=inside[:, None], other=0)
        v = d.narrow(d.fp8_value(code, FORMAT) * factor, OKIND)
    to = (row.to(tl.int64) * blocks_in_row + block)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    tl.store(out + to, v, mask=inside[:, None])


# --- host -----------------------------------------------------------------------------------------


def _tile(rows: int, columns: int, size: int) -> tuple[int, int]:
    """Rows and blocks in a row of a program."""
    blocks = min(power_of_2(columns), ELEMENTS // size)
    return min(power_of_2(rows), max(1, ELEMENTS // (size * blocks))), blocks


def scale_shape(rows: int, blocks: int, swizzled: bool) -> tuple[int, int]:
    return (round_up(rows, 128), round_up(blocks, 4)) if swizzled else (rows, blocks)


def quantize(x, q, scales, global_scale, form, size, *, high_first, swizzled, stochastic, seed):
    """q and scales (contiguous, of padded shapes) from x [M, K]."""
    blocks_in_row = q.shape[1] * (2 if form in (0, 1) else 1) // size
    if scales.numel() == 0:
        return
    tile_rows, blocks = _tile(scales.shape[0], scales.shape[1], size)
    tiles = cdiv(scales.shape[1], blocks)
    launch(
        quantize_blocks, cdiv(scales.shape[0], tile_rows) * tiles, x, raw(x), raw(q), raw(scales),
        global_scale if global_scale is not None else raw(x), *x.shape, *x.stride(), q.shape[0],
        blocks_in_row, *scales.shape, tiles, *seed_words(seed), XKIND=kind(x.dtype), FORMAT=form,
        HIGH_FIRST=high_first, SWIZZLED=swizzled, STOCHASTIC=stochastic, HW=hardware(x),
        ROWS=tile_rows, BLOCKS=blocks, SIZE=size,
    )  # fmt: skip


def dequantize(q, scales, global_scale, out, form, size, *, high_first, swizzled):
    """out (contiguous) from q [M, ...]."""
    if out.numel() == 0:
        return
    scales = scales.contiguous()
    blocks_in_row = out.shape[1] // size
    tile_rows, blocks = _tile(out.shape[0], blocks_in_row, size)
    tiles = cdiv(blocks_in_row, blocks)
    launch(
        dequantize_blocks, cdiv(out.shape[0], tile_rows) * tiles, q, raw(q), raw(scales),
        global_scale if global_scale is not None else raw(q), raw(out), out.shape[0], blocks_in_row,
        *q.stride(), scales.shape[1], tiles, OKIND=kind(out.dtype), FORMAT=form,
        HIGH_FIRST=high_first, SWIZZLED=swizzled, ROWS=tile_rows, BLOCKS=blocks, SIZE=size,
    )  # fmt: skip


def padded(x: torch.Tensor, size: int, pad: bool) -> tuple[int, int]:
    m, k = x.shape
    return (round_up(m, size), round_up(k, size)) if pad else (m, k)
