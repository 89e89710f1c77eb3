"""INT4 in Triton: quantize_int4, dequantize_int4, rotated or not. Numerics: docs/formats/int4.md.

Map      scales: a program takes some groups, long ones in pieces; codes and values: tiles of a
         matrix. The rotation is hadamard.py's: rotated f32 values go through memory.
Traffic  x twice (the second time from the L2 where groups are short), codes and scales once.
Numerics exact. The sign of a zero does not reach codes.
Right on an H200 (docs/performance.md), not timed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..._backends import implements
from . import _device as d
from ._launch import cdiv, finish, fresh, kind, launch, power_of_2, raw, seed_words
from ._rows import _tile
from .hadamard import rotate
from .int8 import rotated_f32


@triton.jit
def rounded(v, low, high):
    """clamp(round half even(v), low, high) as int32 for bounds of a few bits; NaN gives 0."""
    v = tl.where(v == v, v, 0.0)
    return d.bits_of(tl.minimum(tl.maximum(v, low), high) + 12582912.0).to(tl.int32) - 0x4B400000


@triton.jit
def scales_of_groups(x, scale_out, zero_out, groups, group, groups_in_row, columns, x_row, x_column,
                     XKIND: tl.constexpr, ASYMMETRIC: tl.constexpr, GROUPS: tl.constexpr,
                     SIZE: tl.constexpr):  # fmt: skip
    index = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    row = (index // groups_in_row).to(tl.int64)
    first = (index % groups_in_row).to(tl.int64) * group
    largest = tl.zeros((GROUPS, SIZE), tl.int32)
    low = tl.zeros((GROUPS, SIZE), tl.float32)
    high = tl.zeros((GROUPS, SIZE), tl.float32)
    for start in range(0, group, SIZE):
        lane = start + tl.arange(0, SIZE)[None, :]
        column = first[:, None] + lane
        inside = (index < groups)[:, None] & (lane < group) & (column < columns)
        place = (row * x_row)[:, None] + column * x_column
        v = d.widen(tl.load(x + place, mask=inside, other=0), XKIND)
        largest = tl.maximum(largest, d.abs_bits(v))
        if ASYMMETRIC:
            v = tl.where(v == v, v, 0.0)
            low = tl.minimum(low, v)
            high = tl.maximum(high, v)
    amax = tl.max(largest, axis=1)
    if ASYMMETRIC:
        least = tl.min(low, axis=1)
        s = tl.div_rn(tl.max(high, axis=1) - least, 15.0)
        s = tl.where(s > 1e-30, s, 1e-30)
        is_nan = amax > 0x7F800000
        zero = tl.where(is_nan, 0, rounded(tl.div_rn(-least, s), 0.0, 15.0))
        bits = tl.where(is_nan, 0x7FC00000, s.to(tl.int32, bitcast=True))
        s = bits.to(tl.float32, bitcast=True)
        tl.store(zero_out + index, zero.to(tl.uint8), mask=index < groups)
    else:
        s = d.scale_or_nan(amax, 7.0, 1e-30)
    tl.store(scale_out + index, s, mask=index < groups)


@triton.jit
def quantize_nibbles(x, q, scale, zero, rows_, columns, x_row, x_column, group, groups_in_row,
                     tiles_in_row, seed_low, seed_high, XKIND: tl.constexpr,
                     ASYMMETRIC: tl.constexpr, STOCHASTIC: tl.constexpr, ROWS: tl.constexpr,
                     SIZE: tl.constexpr):  # fmt: skip
    """Codes of a tile, two a byte, the even column low; q, scale and zero are contiguous."""
    tile = tl.program_id(0)
    row = ((tile // tiles_in_row) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = (tile % tiles_in_row).to(tl.int64) * SIZE + tl.arange(0, SIZE)[None, :]
    inside = (row < rows_) & (column < columns)
    v = d.widen(tl.load(x + row * x_row + column * x_column, mask=inside, other=0), XKIND)
    at = row * groups_in_row + column // group
    v = tl.div_rn(v, tl.load(scale + at, mask=inside, other=1.0))
    shift = tl.zeros((ROWS, SIZE), tl.float32)
    if ASYMMETRIC:
        shift = tl.load(zero + at, mask=inside, other=0).to(tl.int32).to(tl.float32)
        low = -shift
    else:
        low = shift - 8.0
    high = low + 15.0
    if STOCHASTIC:
        u = d.philox_u16(seed_low, seed_high, row * columns + column)
        t = tl.minimum(tl.maximum(tl.where(v == v, v, 0.0), low), high)
        down = tl.floor(t)
        up = (u.to(tl.float32) < (t - down) * 65536.0) & (t > low) & (t < high)
        code = down.to(tl.int32) + up.to(tl.int32)
    else:
        code = rounded(v, low, high)
    code = (code + shift.to(tl.int32)) & 15
    even, odd = tl.split(tl.reshape(code, (ROWS, SIZE // 2, 2)))
    byte_at = (tile % tiles_in_row).to(tl.int64) * (SIZE // 2) + tl.arange(0, SIZE // 2)[None, :]
    tl.store(q + row * (columns // 2) + byte_at, ((odd << 4) | even).to(tl.uint8),
             mask=(row < rows_) & (byte_at < columns // 2))  # fmt: skip


@triton.jit
def nibbles(q, row, column, inside, q_row, q_column):
    """Codes 0 to 15 of elements, the even column in the low nibble."""
    byte = tl.load(q + row * q_row + (column // 2) * q_column, mask=inside, other=0).to(tl.int32)
    return (byte >> ((column & 1) * 4).to(tl.int32)) & 15


@triton.jit
def dequantize_nibbles(q, out, scale, zero, rows_, columns, q_row, q_column, s_row, s_column,
                       z_row, z_column, group, tiles_in_row, OKIND: tl.constexpr,
                       ASYMMETRIC: tl.constexpr, ROWS: tl.constexpr,
                       SIZE: tl.constexpr):  # fmt: skip
    tile = tl.program_id(0)
    row = ((tile // tiles_in_row) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = (tile % tiles_in_row).to(tl.int64) * SIZE + tl.arange(0, SIZE)[None, :]
    inside = (row < rows_) & (column < columns)
    code = nibbles(q, row, column, inside, q_row, q_column)
    at = column // group
    if ASYMMETRIC:
        z = tl.load(zero + row * z_row + at * z_column, mask=inside, other=0)
        code = code - z.to(tl.int32)
    else:
        code = (code ^ 8) - 8
    v = code.to(tl.float32) * tl.load(scale + row * s_row + at * s_column, mask=inside, other=0.0)
    tl.store(out + row * columns + column, d.narrow(v, OKIND), mask=inside)


# --- host -----------------------------------------------------------------------------------------


def group_of(group_size: int, k: int) -> int:
    return group_size or max(k, 1)


def _tile_of_pairs(m: int, k: int) -> tuple[int, int]:
    """As _tile, never less than one byte of codes."""
    tile_rows, size = _tile(m, k)
    return tile_rows, max(size, 2)


@implements("quantize_int4", backend="triton")
def quantize_int4(x, *, group_size, mode, hadamard, rounding, seed, out=None):
    m, k = x.shape
    x, group, asymmetric = rotated_f32(x, hadamard), group_of(group_size, k), mode == "asymmetric"
    in_row = cdiv(k, group)
    targets = out or (None, None, None)
    q = fresh(targets[0], (m, k // 2), torch.uint8, x)
    scale = fresh(targets[1], (m, in_row), torch.float32, x)
    zero = fresh(targets[2], (m, in_row), torch.uint8, x) if asymmetric else q
    if q.numel():
        size = min(power_of_2(group), 4096)
        together = min(max(1, 4096 // size), power_of_2(m * in_row))
        launch(
            scales_of_groups, cdiv(m * in_row, together), x, raw(x), scale, zero, m * in_row, group,
            in_row, k, *x.stride(), XKIND=kind(x.dtype), ASYMMETRIC=asymmetric, GROUPS=together,
            SIZE=size,
        )  # fmt: skip
        tile_rows, size = _tile_of_pairs(m, k)
        tiles = cdiv(k, size)
        launch(
            quantize_nibbles, cdiv(m, tile_rows) * tiles, x, raw(x), q, scale, zero, m, k,
            *x.stride(), group, in_row, tiles, *seed_words(seed), XKIND=kind(x.dtype),
            ASYMMETRIC=asymmetric, STOCHASTIC=rounding == "stochastic", ROWS=tile_rows, SIZE=size,
        )  # fmt: skip
    return finish(out, *((q, scale, zero) if asymmetric else (q, scale)))


@implements("dequantize_int4", backend="triton")
def dequantize_int4(q, scale, zero, *, group_size, mode, hadamard, out_dtype, out=None):
    m, k = q.shape[0], q.shape[1] * 2
    values = fresh(out, (m, k), out_dtype, q)
    plain = torch.empty((m, k), dtype=torch.float32, device=q.device) if hadamard else values
    if values.numel():
        zeros = q if zero is None else zero
        tile_rows, size = _tile_of_pairs(m, k)
        tiles = cdiv(k, size)
        launch(
            dequantize_nibbles, cdiv(m, tile_rows) * tiles, q, q, raw(plain), scale, zeros, m, k,
            *q.stride(), *scale.stride(), *zeros.stride(), group_of(group_size, k), tiles,
            OKIND=kind(plain.dtype), ASYMMETRIC=zero is not None, ROWS=tile_rows, SIZE=size,
        )  # fmt: skip
        if hadamard:
            rotate(plain, values, hadamard)
    return finish(out, values)
