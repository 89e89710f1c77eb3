"""FP8 in Triton: quantize_fp8, dequantize_fp8, stochastic_round_fp8. Numerics: docs/formats/fp8.md.

The kernels of the first two are in rows.py, which INT8 shares.
Map      stochastic_round_fp8: a program a tile of rows and columns, one row where all is contiguous.
Traffic  x and the bytes once, codes once.
Numerics docs/formats/stochastic.md: x to f16 first, u = byte * 256. Exact.
Measured not yet run on a GPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import device as d
from .launch import cdiv, flat, kind, launch, power_of_2, raw
from .rows import decode, encode, encode_by_scale, scale_shape


def quantize_fp8(x, scale=None, *, granularity="tensor", rounding="nearest", seed=0, q_dtype=None):
    q = torch.empty(x.shape, dtype=q_dtype or torch.float8_e4m3fn, device=x.device)
    stochastic = rounding == "stochastic"
    if scale is not None:
        encode_by_scale(x, scale, q, granularity, 1, stochastic, seed)
        return q
    scale_out = torch.empty(scale_shape(x, granularity), dtype=torch.float32, device=x.device)
    encode(x, q, scale_out, granularity, 1, stochastic, seed)
    return q, scale_out


def dequantize_fp8(q, scale, *, granularity="tensor", out_dtype=None):
    out = torch.empty(q.shape, dtype=out_dtype or torch.bfloat16, device=q.device)
    decode(q, scale, out, granularity)
    return out


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


def _round(x, rng, q) -> None:
    if q.numel() == 0:
        return
    x, rng, q = flat(x, rng, q)
    m, k = x.shape
    size = min(power_of_2(k), 4096)
    tile_rows = min(power_of_2(m), max(1, 4096 // size))
    tiles = cdiv(k, size)
    launch(
        round_by_bytes, cdiv(m, tile_rows) * tiles, x, raw(x), rng, raw(q), m, k, *x.stride(),
        *rng.stride(), *q.stride(), tiles, XKIND=kind(x.dtype), QKIND=kind(q.dtype), ROWS=tile_rows,
        SIZE=size,
    )  # fmt: skip


def stochastic_round_fp8(x, rng, *, q_dtype=None):
    q = torch.empty(x.shape, dtype=q_dtype or torch.float8_e4m3fn, device=x.device)
    _round(x, rng, q)
    return q


def stochastic_round_fp8_(x, rng, *, q_dtype=None):
    """The codes into rng's memory."""
    q = rng.view(q_dtype or torch.float8_e4m3fn)
    if rng.ndim > 2 and not rng.is_contiguous():  # rows() may copy: the result goes back
        codes = stochastic_round_fp8(x, rng, q_dtype=q_dtype)
        rng.copy_(codes.view(torch.uint8))
    else:
        _round(x, rng, q)
    return q
