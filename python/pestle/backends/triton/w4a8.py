"""W4A8 in Triton: quantize_w4a8, dequantize_w4a8. Numerics: docs/formats/w4a8.md.

Map      the fit: a program a row, some groups of 16 at a time; codes and values: tiles of groups.
         The rotation is hadamard.py's: rotated f32 values go through memory.
Traffic  x twice, a group's fitted scale once out and in, codes and scales once.
Numerics exact: the rule's operations one by one, sums of 16 folded in its order.
Right on an H200 (docs/performance.md), not timed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..._backends import implements
from .._codebook import W4A8
from . import _device as d
from ._launch import cdiv, finish, fresh, kind, launch, power_of_2, raw
from .hadamard import rotate
from .int4 import nibbles, rounded
from .int8 import rotated_f32

ELEMENTS = 65536 if d.INTERPRETED.value else 2048  # of a program; the interpreter likes few


@triton.jit
def _index(v, codebook):
    """How many midpoints of the codebook lie below v."""
    index = tl.zeros(v.shape, tl.int32)
    for i in tl.static_range(15):
        middle = (tl.load(codebook + i) + tl.load(codebook + i + 1)) * 0.5
        index += (v > middle).to(tl.int32)
    return index


@triton.jit
def _fold(terms, GROUPS: tl.constexpr):
    """Sums of 16 terms, [GROUPS, 16] to [GROUPS]: + 8, + 4, + 2, + 1."""
    for half in tl.static_range(3, -1, -1):
        two = tl.reshape(terms, (GROUPS, 2, 1 << half))
        low, high = tl.split(tl.permute(two, (0, 2, 1)))
        terms = low + high
    return tl.reshape(terms, (GROUPS,))


@triton.jit
def _at_least(x, least):
    """The larger of both; NaN stays."""
    return tl.where((x > least) | (x != x), x, least)


@triton.jit
def fit_rows(x, codebook, fitted, channel, groups_in_row, x_row, x_column, XKIND: tl.constexpr,
             GROUPS: tl.constexpr):  # fmt: skip
    """fitted [rows, groups]: scales of groups; channel [rows]."""
    row = tl.program_id(0).to(tl.int64)
    largest = tl.zeros((GROUPS,), tl.int32)
    for start in range(0, groups_in_row, GROUPS):
        group = start + tl.arange(0, GROUPS)
        inside = group < groups_in_row
        column = group[:, None] * 16 + tl.arange(0, 16)[None, :]
        place = row * x_row + column.to(tl.int64) * x_column
        v = d.widen(tl.load(x + place, mask=inside[:, None], other=0), XKIND)
        amax = tl.max(d.abs_bits(v), axis=1)
        scale = _at_least(amax.to(tl.float32, bitcast=True), 1e-8)
        for _ in tl.static_range(2):
            level = tl.load(codebook + _index(tl.div_rn(v, scale[:, None]), codebook))
            size = _at_least(_fold(level * level, GROUPS), 1e-8)
            scale = _at_least(tl.div_rn(_fold(v * level, GROUPS), size), 1e-8)
        level = tl.load(codebook + _index(tl.div_rn(v, scale[:, None]), codebook))
        peak = tl.max(d.abs_bits(level * scale[:, None]), axis=1)
        bad = amax >= 0x7F800000
        bits = tl.where(bad, 0x7FC00000, scale.to(tl.int32, bitcast=True))
        tl.store(fitted + row * groups_in_row + group, bits.to(tl.float32, bitcast=True),
                 mask=inside)  # fmt: skip
        peak = tl.where(bad, 0x7FC00000, peak)
        largest = tl.maximum(largest, tl.where(inside, peak, 0))
    peak = tl.max(largest, axis=0).to(tl.float32, bitcast=True)
    tl.store(channel + row, _at_least(tl.div_rn(peak, 127.0), 1e-8))


@triton.jit
def _level(codebook, i: tl.constexpr, relative):
    """What index i decodes to, as f32; -0 becomes 0."""
    return rounded(tl.load(codebook + i) * relative, -127.0, 127.0).to(tl.float32)


@triton.jit
def codes_of_groups(x, codebook, fitted, channel, q, relative_out, rows_, groups_in_row, x_row,
                    x_column, tiles_in_row, XKIND: tl.constexpr, ROWS: tl.constexpr,
                    GROUPS: tl.constexpr):  # fmt: skip
    """q and relative_out are contiguous."""
    i = tl.arange(0, ROWS * GROUPS)
    row = ((tl.program_id(0) // tiles_in_row) * ROWS + i // GROUPS).to(tl.int64)
    group = (tl.program_id(0) % tiles_in_row) * GROUPS + i % GROUPS
    inside = (row < rows_) & (group < groups_in_row)
    index = row * groups_in_row + group
    s = tl.load(channel + row, mask=inside, other=1.0)
    code = d.fp8_code(tl.div_rn(tl.load(fitted + index, mask=inside, other=0.0), s), d.E4M3, 0)
    tl.store(relative_out + index, code, mask=inside)
    relative = d.fp8_value(code, d.E4M3)[:, None]
    column = group[:, None] * 16 + tl.arange(0, 16)[None, :]
    place = row[:, None] * x_row + column.to(tl.int64) * x_column
    v = tl.div_rn(d.widen(tl.load(x + place, mask=inside[:, None], other=0), XKIND), s[:, None])
    found = tl.zeros((ROWS * GROUPS, 16), tl.int32)
    below = _level(codebook, 0, relative)
    for level in tl.static_range(1, 16):
        above = _level(codebook, level, relative)
        found += (v > (below + above) * 0.5).to(tl.int32)
        below = above
    even, odd = tl.split(tl.reshape(found, (ROWS * GROUPS, 8, 2)))
    at = index[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(q + at, ((odd << 4) | even).to(tl.uint8), mask=inside[:, None])


@triton.jit
def dequantize_indices(q, codebook, relative, channel, out, rows_, groups_in_row, q_row, q_column,
                       s_row, s_column, c_row, tiles_in_row, OKIND: tl.constexpr,
                       ROWS: tl.constexpr, GROUPS: tl.constexpr):  # fmt: skip
    i = tl.arange(0, ROWS * GROUPS)
    row = ((tl.program_id(0) // tiles_in_row) * ROWS + i // GROUPS).to(tl.int64)
    group = ((tl.program_id(0) % tiles_in_row) * GROUPS + i % GROUPS).to(tl.int64)
    inside = (row < rows_) & (group < groups_in_row)
    column = group[:, None] * 16 + tl.arange(0, 16)[None, :]
    code = nibbles(q, row[:, None], column, inside[:, None], q_row, q_column)
    s = tl.load(relative + row * s_row + group * s_column, mask=inside, other=0)
    v = tl.load(codebook + code) * d.fp8_value(s, d.E4M3)[:, None]
    v = rounded(v, -127.0, 127.0).to(tl.float32)
    v = v * tl.load(channel + row * c_row, mask=inside, other=0.0)[:, None]
    to = row[:, None] * (groups_in_row * 16) + column
    tl.store(out + to, d.narrow(v, OKIND), mask=inside[:, None])


# --- host -----------------------------------------------------------------------------------------


def levels(codebook: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """The 16 values of the indices, contiguous, on the device."""
    if codebook is not None:
        return codebook.contiguous()
    if like.device not in _fixed:
        _fixed[like.device] = torch.tensor(W4A8, dtype=torch.float32, device=like.device)
    return _fixed[like.device]


_fixed: dict[torch.device, torch.Tensor] = {}


def _tile(m: int, groups: int) -> tuple[int, int]:
    """Rows and groups in a row of a program."""
    wide = min(power_of_2(groups), ELEMENTS // 16)
    return min(power_of_2(m), max(1, ELEMENTS // (16 * wide))), wide


@implements("quantize_w4a8", backend="triton")
def quantize_w4a8(x, codebook, *, hadamard, out=None):
    m, k = x.shape
    x, table, groups = rotated_f32(x, hadamard), levels(codebook, x), k // 16
    targets = out or (None, None, None)
    q = fresh(targets[0], (m, k // 2), torch.uint8, x)
    relative = fresh(targets[1], (m, groups), torch.float8_e4m3fn, x)
    channel = fresh(targets[2], (m,), torch.float32, x)
    fitted = torch.empty((m, groups), dtype=torch.float32, device=x.device)
    tile_rows, wide = _tile(m, groups)
    launch(
        fit_rows, m, x, raw(x), table, fitted, channel, groups, *x.stride(), XKIND=kind(x.dtype),
        GROUPS=min(power_of_2(groups), ELEMENTS // 16),
    )  # fmt: skip
    tiles = cdiv(groups, wide)
    launch(
        codes_of_groups, cdiv(m, tile_rows) * tiles, x, raw(x), table, fitted, channel, q,
        raw(relative), m, groups, *x.stride(), tiles, XKIND=kind(x.dtype), ROWS=tile_rows,
        GROUPS=wide,
    )  # fmt: skip
    return finish(out, q, relative, channel)


@implements("dequantize_w4a8", backend="triton")
def dequantize_w4a8(q, scale_rel, scale_channel, codebook, *, hadamard, out_dtype, out=None):
    m, k = q.shape[0], q.shape[1] * 2
    values = fresh(out, (m, k), out_dtype, q)
    plain = torch.empty((m, k), dtype=torch.float32, device=q.device) if hadamard else values
    tile_rows, wide = _tile(m, k // 16)
    tiles = cdiv(k // 16, wide)
    launch(
        dequantize_indices, cdiv(m, tile_rows) * tiles, q, q, levels(codebook, q), raw(scale_rel),
        scale_channel, raw(plain), m, k // 16, *q.stride(), *scale_rel.stride(),
        scale_channel.stride(0), tiles, OKIND=kind(plain.dtype), ROWS=tile_rows, GROUPS=wide,
    )  # fmt: skip
    if hadamard:
        rotate(plain, values, hadamard)
    return finish(out, values)
