"""Rows of elements and f32 decode scales on a grid: quantize_fp8, quantize_int8 and their inverses.

Map      given scales and decoding: tiles of a matrix. Computed scales: a set of elements (row,
         group, 128 columns of a row) lies in the registers of one program between its amax and its
         codes; a longer set is read twice. Whole tensor and columns: partial amaxima, then tiles.
Traffic  x once, codes once; x twice where amax is of the tensor, a column or a very long row.
Numerics docs/formats/fp8.md, int8.md: exact. amax is an integer maximum, so any order gives it.
Right on an H200 (docs/performance.md), not timed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import _device as d
from ._launch import cdiv, hardware, kind, launch, power_of_2, processors, raw, rows, seed_words

INT8 = tl.constexpr(5)
NVFP4_GLOBAL = tl.constexpr(6)
MAX_SET = 32768  # elements that a program keeps in registers
MAX_PARTS = 1024  # partial amaxima of a tensor


@triton.jit
def _encode(v, KIND: tl.constexpr, HW: tl.constexpr):
    if KIND == INT8:
        return d.int8_code(v)
    else:
        return d.fp8_code(v, KIND, HW)


@triton.jit
def _encode_stochastic(v, u, KIND: tl.constexpr):
    if KIND == INT8:
        return d.int8_code_stochastic(v, u)
    else:
        return d.fp8_code_stochastic(v, u, KIND)


@triton.jit
def _computed_scale(amax, KIND: tl.constexpr):
    if KIND == INT8:
        return d.scale_or_nan(amax, 127.0, 1e-30)
    elif KIND == NVFP4_GLOBAL:
        return d.scale_or_nan(amax, 2688.0, 0.0)
    elif KIND == d.E4M3:
        return d.scale_or_nan(amax, 448.0, 1.1754943508222875e-38)
    else:
        return d.scale_or_nan(amax, 57344.0, 1.1754943508222875e-38)


@triton.jit
def _codes_of_set(x, amax, index, seed_low, seed_high, KIND: tl.constexpr,
                  STOCHASTIC: tl.constexpr, HW: tl.constexpr):  # fmt: skip
    """(codes, scale) of sets with these amaxima, shaped to broadcast against x."""
    s = _computed_scale(amax, KIND)
    if STOCHASTIC:
        u = d.philox_u16(seed_low, seed_high, index)
        return _encode_stochastic(tl.div_rn(x, s), u, KIND), s
    else:
        k, dk, r = d.divisor_parts(s)
        v = d.quotient(x, s, k, dk, r)
        if KIND != INT8:
            v = d.with_sign_of(v, x)
        return _encode(v, KIND, HW), s


# --- scales of sets along a row -------------------------------------------------------------------


@triton.jit
def quantize_sets(x, q, scale_out, sets, set_size, sets_in_row, columns, x_row, x_column,
                  seed_low, seed_high, XKIND: tl.constexpr, QKIND: tl.constexpr,
                  STOCHASTIC: tl.constexpr, HW: tl.constexpr,
                  SETS: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """SETS sets of up to SIZE elements a program; q and scale_out are contiguous."""
    index = tl.program_id(0) * SETS + tl.arange(0, SETS)
    row = (index // sets_in_row).to(tl.int64)
    first = (index % sets_in_row).to(tl.int64) * set_size
    lane = tl.arange(0, SIZE)
    column = first[:, None] + lane[None, :]
    inside = (index < sets)[:, None] & (lane < set_size)[None, :] & (column < columns)
    place = (row * x_row)[:, None] + column * x_column
    values = d.widen(tl.load(x + place, mask=inside, other=0), XKIND)
    amax = tl.max(d.abs_bits(values), axis=1)
    element = (row * columns)[:, None] + column
    code, s = _codes_of_set(values, amax[:, None], element, seed_low, seed_high,
                            QKIND, STOCHASTIC, HW)  # fmt: skip
    tl.store(q + element, code, mask=inside)
    tl.store(scale_out + index[:, None], s, mask=(index < sets)[:, None])


@triton.jit
def quantize_long_sets(x, q, scale_out, set_size, sets_in_row, columns, x_row, x_column,
                       seed_low, seed_high, XKIND: tl.constexpr, QKIND: tl.constexpr,
                       STOCHASTIC: tl.constexpr, HW: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """One set a program, too long for registers: amax, then codes from the last piece backwards,
    which the L2 may still hold."""
    index = tl.program_id(0)
    row = (index // sets_in_row).to(tl.int64)
    first = (index % sets_in_row).to(tl.int64) * set_size
    count = tl.minimum(set_size, columns - first)
    from_x = x + row * x_row + first * x_column
    to_q = q + row * columns + first
    lane = tl.arange(0, SIZE).to(tl.int64)
    largest = tl.zeros((SIZE,), tl.int32)
    pieces = tl.cdiv(count, SIZE)
    for piece in range(0, pieces):
        column = piece * SIZE + lane
        values = tl.load(from_x + column * x_column, mask=column < count, other=0)
        largest = tl.maximum(largest, d.abs_bits(d.widen(values, XKIND)))
    amax = tl.max(largest, axis=0)
    for piece in range(0, pieces):
        column = (pieces - 1 - piece) * SIZE + lane
        values = d.widen(tl.load(from_x + column * x_column, mask=column < count, other=0), XKIND)
        code, _ = _codes_of_set(values, tl.full((SIZE,), 0, tl.int32) + amax,
                                row * columns + first + column, seed_low, seed_high,
                                QKIND, STOCHASTIC, HW)  # fmt: skip
        tl.store(to_q + column, code, mask=column < count)
    tl.store(scale_out + index, _computed_scale(amax, QKIND))


@triton.jit
def quantize_tiles(x, q, scale_out, rows_, columns, x_row, x_column, tiles_in_row,
                   seed_low, seed_high, XKIND: tl.constexpr, QKIND: tl.constexpr,
                   STOCHASTIC: tl.constexpr, HW: tl.constexpr, SIDE: tl.constexpr):  # fmt: skip
    """A scale for each SIDE x SIDE tile, one a program."""
    tile = tl.program_id(0)
    row = ((tile // tiles_in_row) * SIDE + tl.arange(0, SIDE)).to(tl.int64)[:, None]
    column = ((tile % tiles_in_row) * SIDE + tl.arange(0, SIDE))[None, :]
    inside = (row < rows_) & (column < columns)
    place = row * x_row + column.to(tl.int64) * x_column
    values = d.widen(tl.load(x + place, mask=inside, other=0), XKIND)
    amax = tl.max(tl.max(d.abs_bits(values), axis=1), axis=0)
    element = row * columns + column
    code, s = _codes_of_set(values, tl.full((1, 1), 0, tl.int32) + amax, element,
                            seed_low, seed_high, QKIND, STOCHASTIC, HW)  # fmt: skip
    tl.store(q + element, code, mask=inside)
    tl.store(scale_out + tile, tl.max(s))


# --- amax of a tensor or of columns ---------------------------------------------------------------


@triton.jit
def tensor_amax(x, parts, columns, x_row, x_column, pieces, pieces_in_row,
                KIND: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """parts[p]: amax bits of every programs-th piece of SIZE elements of a row."""
    largest = tl.zeros((SIZE,), tl.int32)
    lane = tl.arange(0, SIZE)
    for piece in range(tl.program_id(0), pieces, tl.num_programs(0)):
        row = (piece // pieces_in_row).to(tl.int64)
        column = (piece % pieces_in_row).to(tl.int64) * SIZE + lane
        values = tl.load(x + row * x_row + column * x_column, mask=column < columns, other=0)
        largest = tl.maximum(largest, d.abs_bits(d.widen(values, KIND)))
    tl.store(parts + tl.program_id(0), tl.max(largest, axis=0))


@triton.jit
def column_amax(x, parts, rows_, columns, x_row, x_column, chunk, columns_tiles,
                KIND: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """parts[c, k]: amax bits of `chunk` rows of column k."""
    part = tl.program_id(0) // columns_tiles
    column = ((tl.program_id(0) % columns_tiles) * SIZE + tl.arange(0, SIZE))[None, :]
    largest = tl.zeros((ROWS, SIZE), tl.int32)
    for start in range(0, chunk, ROWS):
        row = (part * chunk + start + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < rows_) & (column < columns)
        values = tl.load(x + row * x_row + column.to(tl.int64) * x_column, mask=inside, other=0)
        largest = tl.maximum(largest, d.abs_bits(d.widen(values, KIND)))
    amax = tl.max(largest, axis=0)[None, :]
    tl.store(parts + part.to(tl.int64) * columns + column, amax, mask=column < columns)


@triton.jit
def scales_of_parts(parts, scale_out, count, columns, QKIND: tl.constexpr,
                    PARTS: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """scale_out[k] from the partial amaxima parts[:, k]."""
    column = (tl.program_id(0) * SIZE + tl.arange(0, SIZE))[None, :]
    part = tl.arange(0, PARTS)[:, None]
    inside = (part < count) & (column < columns)
    found = tl.load(parts + part.to(tl.int64) * columns + column, mask=inside, other=0)
    amax = tl.max(found, axis=0)[None, :]
    tl.store(scale_out + column, _computed_scale(amax, QKIND), mask=column < columns)


# --- scales that are there ------------------------------------------------------------------------


@triton.jit
def _scale_at(scale, row, column, inside, s_row, s_column, SET_ROWS: tl.constexpr,
              SET_COLUMNS: tl.constexpr):  # fmt: skip
    """Scales of elements; SET_ROWS or SET_COLUMNS 0: one for all rows or columns."""
    if SET_ROWS == 0 and SET_COLUMNS == 0:
        return tl.load(scale)
    elif SET_COLUMNS == 0:
        at = (row // SET_ROWS) * s_row
        return tl.load(scale + at, mask=tl.max(inside.to(tl.int32), axis=1)[:, None] > 0, other=1.0)
    elif SET_ROWS == 0:
        at = (column // SET_COLUMNS).to(tl.int64) * s_column
        return tl.load(scale + at, mask=tl.max(inside.to(tl.int32), axis=0)[None, :] > 0, other=1.0)
    else:
        at = (row // SET_ROWS) * s_row + (column // SET_COLUMNS).to(tl.int64) * s_column
        return tl.load(scale + at, mask=inside, other=1.0)


@triton.jit
def quantize_by_scale(x, q, scale, rows_, columns, x_row, x_column, s_row, s_column, tiles_in_row,
                      seed_low, seed_high, XKIND: tl.constexpr, QKIND: tl.constexpr,
                      SET_ROWS: tl.constexpr, SET_COLUMNS: tl.constexpr,
                      STOCHASTIC: tl.constexpr, HW: tl.constexpr, REVERSED: tl.constexpr,
                      ROWS: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """x / scale to codes. REVERSED: from the tensor's end, which an amax pass left in the L2."""
    tile = tl.program_id(0)
    if REVERSED:
        tile = tl.num_programs(0) - 1 - tile
    row = ((tile // tiles_in_row) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = (tile % tiles_in_row).to(tl.int64) * SIZE + tl.arange(0, SIZE)[None, :]
    inside = (row < rows_) & (column < columns)
    values = d.widen(tl.load(x + row * x_row + column * x_column, mask=inside, other=0), XKIND)
    element = row * columns + column
    s = _scale_at(scale, row, column, inside, s_row, s_column, SET_ROWS, SET_COLUMNS)
    if STOCHASTIC:
        u = d.philox_u16(seed_low, seed_high, element)
        code = _encode_stochastic(tl.div_rn(values, s), u, QKIND)
    elif SET_ROWS == 0 and SET_COLUMNS == 0:
        code = _encode(d.quotient_by_one(values, s), QKIND, HW)
    else:
        code = _encode(tl.div_rn(values, s), QKIND, HW)
    tl.store(q + element, code, mask=inside)


@triton.jit
def dequantize(q, out, scale, rows_, columns, q_row, q_column, s_row, s_column, tiles_in_row,
               QKIND: tl.constexpr, OKIND: tl.constexpr, SET_ROWS: tl.constexpr,
               SET_COLUMNS: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """code * scale, rounded once; out is contiguous."""
    tile = tl.program_id(0)
    row = ((tile // tiles_in_row) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = (tile % tiles_in_row).to(tl.int64) * SIZE + tl.arange(0, SIZE)[None, :]
    inside = (row < rows_) & (column < columns)
    code = tl.load(q + row * q_row + column * q_column, mask=inside, other=0)
    v = code.to(tl.float32) if QKIND == INT8 else d.fp8_value(code, QKIND)
    s = _scale_at(scale, row, column, inside, s_row, s_column, SET_ROWS, SET_COLUMNS)
    tl.store(out + row * columns + column, d.narrow(v * s, OKIND), mask=inside)


# --- host -----------------------------------------------------------------------------------------


def scale_shape(x: torch.Tensor, granularity: str, group_size: int = 128) -> tuple[int, ...]:
    """Shape of the scales of x [*M, K]."""
    lead, k = x.shape[:-1], x.shape[-1]
    return {
        "tensor": lambda: (1,),
        "row": lambda: (*lead, 1),
        "column": lambda: (1, k),
        "group": lambda: (*lead, cdiv(k, group_size)),
        "block_1x128": lambda: (*lead, cdiv(k, 128)),
        "block_128x128": lambda: (cdiv(x.numel() // max(k, 1) if k else 0, 128), cdiv(k, 128)),
    }[granularity]()


def _set_of(granularity: str, group_size: int) -> tuple[int, int]:
    """(rows, columns) that share a scale; 0 means all."""
    return {
        "tensor": (0, 0), "row": (1, 0), "column": (0, 1), "group": (1, group_size),
        "block_1x128": (1, 128), "block_128x128": (128, 128),
    }[granularity]  # fmt: skip


def _tile(m: int, k: int) -> tuple[int, int]:
    """(rows, columns) of a tile of some 4096 elements."""
    size = min(power_of_2(k), 4096)
    return min(power_of_2(m), max(1, 4096 // size)), size


def _tiled(x: torch.Tensor, given: torch.Tensor, granularity: str) -> tuple:
    """x as it is walked with these scales, and the scales' strides: one row if one scale is all."""
    if granularity == "tensor" and x.is_contiguous():
        return x.view(1, -1), (0, 0)
    x = rows(x)
    if granularity == "tensor":
        return x, (0, 0)
    grid = rows(given)
    return x, (0 if granularity == "column" else grid.stride(0), grid.stride(1))


def encode_by_scale(x, scale, q, granularity, group_size, stochastic, seed, reverse=False) -> None:
    """q (contiguous) from x and scales that are there."""
    if q.numel() == 0:
        return
    scale = scale if granularity == "tensor" else rows(scale)
    set_rows, set_columns = _set_of(granularity, group_size)
    x, strides = _tiled(x, scale, granularity)
    m, k = x.shape
    tile_rows, size = _tile(m, k)
    tiles = cdiv(k, size)
    launch(
        quantize_by_scale, cdiv(m, tile_rows) * tiles, x, raw(x), raw(q), scale, m, k,
        x.stride(0), x.stride(1), *strides, tiles, *seed_words(seed),
        XKIND=kind(x.dtype), QKIND=kind(q.dtype), SET_ROWS=set_rows, SET_COLUMNS=set_columns,
        STOCHASTIC=stochastic, HW=hardware(x), REVERSED=reverse, ROWS=tile_rows, SIZE=size,
    )  # fmt: skip


def _encode_sets(x, q, scale_out, set_size, stochastic, seed) -> None:
    x = rows(x)
    m, k = x.shape
    in_row = cdiv(k, set_size)
    sets, size = m * in_row, power_of_2(set_size)
    common = (set_size, in_row, k, x.stride(0), x.stride(1), *seed_words(seed))
    constants = dict(XKIND=kind(x.dtype), QKIND=kind(q.dtype), STOCHASTIC=stochastic,
                     HW=hardware(x))  # fmt: skip
    if size > MAX_SET:
        launch(quantize_long_sets, sets, x, raw(x), raw(q), scale_out, *common, **constants,
               SIZE=8192, warps=8)  # fmt: skip
        return
    together = min(max(1, 4096 // size), power_of_2(sets))
    warps = min(16, max(4, size // 1024))
    launch(quantize_sets, cdiv(sets, together), x, raw(x), raw(q), scale_out, sets, *common,
           **constants, SETS=together, SIZE=size, warps=warps)  # fmt: skip


def tensor_amax_parts(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """(partial amaxima as f32 bits, how many)."""
    x = x.view(1, -1) if x.is_contiguous() else rows(x)
    size = min(8192, power_of_2(x.shape[-1]))
    in_row = cdiv(x.shape[-1], size)
    pieces = x.shape[0] * in_row
    count = max(1, min(pieces, 4 * processors(x), MAX_PARTS))
    parts = torch.empty(count, dtype=torch.int32, device=x.device)
    launch(
        tensor_amax, count, x, raw(x), parts, x.shape[-1], x.stride(0), x.stride(1), pieces, in_row,
        KIND=kind(x.dtype), SIZE=size, warps=8,
    )  # fmt: skip
    return parts, count


def _column_amax_parts(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    x = rows(x)
    m, k = x.shape
    tiles = cdiv(k, 256)
    wanted = max(1, min(64, cdiv(4 * processors(x), max(tiles, 1))))
    chunk = max(16, cdiv(m, wanted))
    count = cdiv(m, chunk)
    parts = torch.empty(count, k, dtype=torch.int32, device=x.device)
    launch(
        column_amax, count * tiles, x, raw(x), parts, m, k, x.stride(0), x.stride(1), chunk, tiles,
        KIND=kind(x.dtype), ROWS=16, SIZE=256,
    )  # fmt: skip
    return parts, count


def _encode_by_parts(x, q, scale_out, granularity, stochastic, seed) -> None:
    """A scale of the tensor, or scales of columns: amaxima first."""
    columnwise = granularity == "column"
    parts, count = _column_amax_parts(x) if columnwise else tensor_amax_parts(x)
    columns = x.shape[-1] if columnwise else 1
    size = min(64, power_of_2(columns)) if columnwise else 1
    launch(scales_of_parts, cdiv(columns, size), x, parts, scale_out, count, columns,
           QKIND=kind(q.dtype), PARTS=power_of_2(count), SIZE=size)  # fmt: skip
    encode_by_scale(x, scale_out, q, granularity, 1, stochastic, seed, reverse=not columnwise)


def encode(x, q, scale_out, granularity, group_size, stochastic, seed) -> None:
    """q and scale_out (both contiguous) from x."""
    if granularity in ("tensor", "column"):
        _encode_by_parts(x, q, scale_out, granularity, stochastic, seed)
    elif q.numel() == 0:
        _encode_empty(q, scale_out)
    elif granularity == "block_128x128":
        x = rows(x)
        tiles = cdiv(x.shape[1], 128)
        launch(quantize_tiles, cdiv(x.shape[0], 128) * tiles, x, raw(x), raw(q), scale_out,
               *x.shape, x.stride(0), x.stride(1), tiles, *seed_words(seed), XKIND=kind(x.dtype),
               QKIND=kind(q.dtype), STOCHASTIC=stochastic, HW=hardware(x), SIDE=128,
               warps=8)  # fmt: skip
    else:
        set_size = _set_of(granularity, group_size)[1] or x.shape[-1]
        _encode_sets(x, q, scale_out, set_size, stochastic, seed)


def _encode_empty(q: torch.Tensor, scale_out: torch.Tensor) -> None:
    """Rows without elements have the scale of zeros."""
    if scale_out.numel():
        scale_out.fill_(1e-30 if q.dtype == torch.int8 else 2.0**-126)


def decode(q, scale, out, granularity, group_size=128) -> None:
    """out (contiguous) from codes and scales."""
    if out.numel() == 0:
        return
    scale = scale if granularity == "tensor" else rows(scale)
    set_rows, set_columns = _set_of(granularity, group_size)
    q, strides = _tiled(q, scale, granularity)
    m, k = q.shape
    tile_rows, size = _tile(m, k)
    tiles = cdiv(k, size)
    launch(
        dequantize, cdiv(m, tile_rows) * tiles, q, raw(q), raw(out), scale, m, k,
        q.stride(0), q.stride(1), *strides, tiles, QKIND=kind(q.dtype), OKIND=kind(out.dtype),
        SET_ROWS=set_rows, SET_COLUMNS=set_columns, ROWS=tile_rows, SIZE=size,
    )  # fmt: skip
