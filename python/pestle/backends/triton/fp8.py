"""FP8 in Triton: quantize_fp8, dequantize_fp8, stochastic_round_fp8. Numerics: docs/formats/fp8.md.

The kernels of the first two are in _rows.py, which INT8 shares.
Map      stochastic_round_fp8: a program a tile; all is one row where it is contiguous.
Traffic  x and the bytes once, codes once.
Numerics docs/formats/stochastic.md: x to f16 first, u = byte * 256. Exact.
Right on an H200 (docs/performance.md), not timed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..._backends import implements
from . import _device as d
from ._launch import cdiv, finish, flat, fresh, kind, launch, power_of_2, raw, turned
from ._rows import decode, encode, encode_by_scale, scale_shape


@implements("quantize_fp8", backend="triton")
def quantize_fp8(x, scale, *, granularity, rounding, seed, transposed, q_dtype, out=None):
    stochastic = rounding == "stochastic"
    targets = out if isinstance(out, tuple) else (out, None)
    q = fresh(targets[0], x.shape, q_dtype, x)
    made = (q,)
    if scale is not None:
        encode_by_scale(x, scale, q, granularity, 1, stochastic, seed)
    else:
        scale_out = fresh(targets[1], scale_shape(x, granularity), torch.float32, x)
        encode(x, q, scale_out, granularity, 1, stochastic, seed)
        made = (q, scale_out)
    return finish(out, *made, *((turned(q),) if transposed else ()))


@implements("dequantize_fp8", backend="triton")
def dequantize_fp8(q, scale, *, granularity, out_dtype, out=None):
    values = fresh(out, q.shape, out_dtype, q)
    decode(q, scale, values, granularity)
    return finish(out, values)


@triton.jit
def round_by_bytes(x, rng, q, rows_, columns, x_row, x_column, r_row, r_column, q_row, q_column,
                   tiles_in_row, XKIND: tl.constexpr, QKIND: tl.constexpr,
                   ROWS: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    tile = tl.program_id(0)
    row = ((tile // tiles_in_row) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = (tile % tiles_in_row).to(tl.int64) * SIZE + tl.arange(0, SIZE)[None, :]
    inside = (row < rows_) & (column < columns)
    values = d.widen(tl.load(x + row * x_row + column * x_column, mask=inside, other=0), XKIND)
    byte = tl.load(rng + row * r_row + column * r_column, mask=inside, other=0)
    v = values.to(tl.float16).to(tl.float32)
    code = d.fp8_code_stochastic(v, byte.to(tl.int32) << 8, QKIND)
    tl.store(q + row * q_row + column * q_column, code, mask=inside)


@implements("stochastic_round_fp8", backend="triton")
def stochastic_round_fp8(x, rng, *, q_dtype, out=None):
    q = fresh(out, x.shape, q_dtype, x)
    if q.numel() == 0:
        return finish(out, q)
    x, rng, to = flat(x, rng, q)
    m, k = x.shape
    size = min(power_of_2(k), 4096)
    tile_rows = min(power_of_2(m), max(1, 4096 // size))
    tiles = cdiv(k, size)
    launch(
        round_by_bytes, cdiv(m, tile_rows) * tiles, x, raw(x), rng, raw(to), m, k, *x.stride(),
        *rng.stride(), *to.stride(), tiles, XKIND=kind(x.dtype), QKIND=kind(q.dtype),
        ROWS=tile_rows, SIZE=size,
    )  # fmt: skip
    return finish(out, q)
