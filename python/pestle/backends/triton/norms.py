"""rms_norm, layer_norm, adaln, rms_adaln in Triton, with residual, gate and quantised output.

  s = residual + gate * x     y = (s - mean(s)) / sqrt(mean((s - mean(s))^2) + eps)
  out = (y * weight + bias) * (1 + scale) + shift                 rms: mean(s) is 0 in both places

Map      rows in the registers of a program, several if they are short; longer ones are read again
         for each sum.
Traffic  x, residual, gate, scale, shift once, out and residual_out once. Codes are made of the
         stored out by the quantisers' kernels: its bytes once more.
Numerics f32; the variance from differences to the mean; one rounding. Codes are exactly the
         quantiser's of the rounded out.
Right on an H200 (docs/performance.md), not timed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..._backends import implements
from . import _device as d
from ._launch import cdiv, kind, launch, power_of_2, raw, rows
from .fp8 import quantize_fp8
from .int8 import quantize_int8
from .mx import quantize_mxfp8
from .nvfp4 import quantize_nvfp4

LONGEST = 32768  # elements of a row that a program keeps


@triton.jit
def _factor(t, row, column, inside, t_row, t_column, group, KIND: tl.constexpr):
    """Values of gate, scale or shift [G, K]: `group` rows share one of its rows."""
    at = (row // group) * t_row + column * t_column
    return d.widen(tl.load(t + at, mask=inside, other=0), KIND)


@triton.jit
def _summed(x, residual, gate, row, column, inside, x_row, x_column, r_row, r_column, g_row,
            g_column, g_group, XKIND: tl.constexpr, RESIDUAL: tl.constexpr,
            GATE: tl.constexpr):  # fmt: skip
    s = d.widen(tl.load(x + row * x_row + column * x_column, mask=inside, other=0), XKIND)
    if GATE >= 0:
        s = s * _factor(gate, row, column, inside, g_row, g_column, g_group, GATE)
    if RESIDUAL:
        at = residual + row * r_row + column * r_column
        s = s + d.widen(tl.load(at, mask=inside, other=0), XKIND)
    return s


@triton.jit
def _modulated(y, weight, bias, scale, shift, row, column, inside, w_column, b_column, s_row,
               s_column, s_group, h_row, h_column, h_group, WEIGHT: tl.constexpr,
               BIAS: tl.constexpr, SCALE: tl.constexpr, SHIFT: tl.constexpr):  # fmt: skip
    here = tl.max(inside.to(tl.int32), axis=0)[None, :] > 0
    if WEIGHT >= 0:
        y = y * d.widen(tl.load(weight + column * w_column, mask=here, other=0), WEIGHT)
    if BIAS >= 0:
        y = y + d.widen(tl.load(bias + column * b_column, mask=here, other=0), BIAS)
    if SCALE >= 0:
        y = y * (1.0 + _factor(scale, row, column, inside, s_row, s_column, s_group, SCALE))
        y = y + _factor(shift, row, column, inside, h_row, h_column, h_group, SHIFT)
    return y


@triton.jit
def norm(x, residual, gate, weight, bias, scale, shift, out, residual_out, rows_, columns, eps,
         x_row, x_column, r_row, r_column, g_row, g_column, g_group, w_column, b_column,
         s_row, s_column, s_group, h_row, h_column, h_group, XKIND: tl.constexpr,
         RESIDUAL: tl.constexpr, GATE: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr,
         SCALE: tl.constexpr, SHIFT: tl.constexpr, MEAN: tl.constexpr, ROWS: tl.constexpr,
         SIZE: tl.constexpr):  # fmt: skip
    """ROWS rows of up to SIZE elements; out and residual_out are contiguous."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, SIZE)[None, :]
    inside = (row < rows_) & (column < columns)
    s = _summed(x, residual, gate, row, column, inside, x_row, x_column, r_row, r_column, g_row,
                g_column, g_group, XKIND, RESIDUAL, GATE)  # fmt: skip
    if RESIDUAL:
        tl.store(residual_out + row * columns + column, d.narrow(s, XKIND), mask=inside)
    count = tl.cast(columns, tl.float32)
    if MEAN:
        s = s - tl.div_rn(tl.sum(s, axis=1), count)[:, None]
        s = tl.where(inside, s, 0.0)
    variance = tl.div_rn(tl.sum(s * s, axis=1), count)
    y = s * tl.div_rn(1.0, tl.sqrt_rn(variance + eps))[:, None]
    y = _modulated(y, weight, bias, scale, shift, row, column, inside, w_column, b_column, s_row,
                   s_column, s_group, h_row, h_column, h_group, WEIGHT, BIAS, SCALE,
                   SHIFT)  # fmt: skip
    tl.store(out + row * columns + column, d.narrow(y, XKIND), mask=inside)


@triton.jit
def norm_long(x, residual, gate, weight, bias, scale, shift, out, residual_out, rows_, columns, eps,
              x_row, x_column, r_row, r_column, g_row, g_column, g_group, w_column, b_column,
              s_row, s_column, s_group, h_row, h_column, h_group, XKIND: tl.constexpr,
              RESIDUAL: tl.constexpr, GATE: tl.constexpr, WEIGHT: tl.constexpr,
              BIAS: tl.constexpr, SCALE: tl.constexpr, SHIFT: tl.constexpr,
              MEAN: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """A row a program, in pieces of SIZE."""
    row = tl.full((1, 1), 0, tl.int64) + tl.program_id(0)
    lane = tl.arange(0, SIZE)[None, :].to(tl.int64)
    count = tl.cast(columns, tl.float32)
    mean = tl.zeros((1, 1), tl.float32)
    if MEAN:
        total = tl.zeros((1, SIZE), tl.float32)
        for start in range(0, columns, SIZE):
            column = start + lane
            total += _summed(x, residual, gate, row, column, column < columns, x_row, x_column,
                             r_row, r_column, g_row, g_column, g_group, XKIND, RESIDUAL,
                             GATE)  # fmt: skip
        mean = tl.div_rn(tl.sum(total, axis=1), count)[:, None]
    total = tl.zeros((1, SIZE), tl.float32)
    for start in range(0, columns, SIZE):
        column = start + lane
        s = _summed(x, residual, gate, row, column, column < columns, x_row, x_column, r_row,
                    r_column, g_row, g_column, g_group, XKIND, RESIDUAL, GATE)  # fmt: skip
        s = tl.where(column < columns, s - mean, 0.0)
        total += s * s
    variance = tl.div_rn(tl.sum(total, axis=1), count)
    root = tl.div_rn(1.0, tl.sqrt_rn(variance + eps))[:, None]
    for start in range(0, columns, SIZE):
        column = start + lane
        inside = column < columns
        s = _summed(x, residual, gate, row, column, inside, x_row, x_column, r_row, r_column,
                    g_row, g_column, g_group, XKIND, RESIDUAL, GATE)  # fmt: skip
        if RESIDUAL:
            tl.store(residual_out + row * columns + column, d.narrow(s, XKIND), mask=inside)
        y = _modulated((s - mean) * root, weight, bias, scale, shift, row, column, inside,
                       w_column, b_column, s_row, s_column, s_group, h_row, h_column, h_group,
                       WEIGHT, BIAS, SCALE, SHIFT)  # fmt: skip
        tl.store(out + row * columns + column, d.narrow(y, XKIND), mask=inside)


# --- host -----------------------------------------------------------------------------------------


def _part(t: torch.Tensor | None, m: int) -> tuple:
    """Strides of gate, scale or shift, and how many rows share one of theirs."""
    if t is None:
        return 0, 0, 1
    return t.stride(0), t.stride(1), m // t.shape[0]


def _norm(x, residual, gate, weight, bias, scale, shift, eps, mean) -> tuple:
    """(out, residual_out or None), contiguous."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    summed = torch.empty_like(out) if residual is not None else None
    if x.numel() == 0:
        return out, summed
    flat = [None if t is None else rows(t) for t in (x, residual, gate, scale, shift)]
    x, residual, gate, scale, shift = flat
    m, k = x.shape
    kinds = [-1 if t is None else kind(t.dtype) for t in (gate, weight, bias, scale, shift)]
    size = power_of_2(k)
    long = size > LONGEST
    together = 1 if long else min(max(1, 2048 // size), power_of_2(m))
    warps = 8 if long else min(16, max(4, size // 1024))
    tensors = (x, residual, gate, weight, bias, scale, shift, out, summed)
    launch(
        norm_long if long else norm, cdiv(m, together), x,
        *(raw(x if t is None else t) for t in tensors), m, k, eps, *x.stride(),
        *((0, 0) if residual is None else residual.stride()), *_part(gate, m),
        0 if weight is None else weight.stride(0), 0 if bias is None else bias.stride(0),
        *_part(scale, m), *_part(shift, m), XKIND=kind(x.dtype), RESIDUAL=residual is not None,
        GATE=kinds[0], WEIGHT=kinds[1], BIAS=kinds[2], SCALE=kinds[3], SHIFT=kinds[4], MEAN=mean,
        ROWS=together, SIZE=8192 if long else size, warps=warps,
    )  # fmt: skip
    return out, summed


def quantized(out, q_scale, global_scale, out_format, hadamard, nibbles, scale_layout) -> tuple:
    """(codes, scales if they were computed) of out [*M, K], as the quantisers make them."""
    plain = {"rounding": "nearest", "seed": 0}
    in_rows = plain | {"transposed": False}
    if out_format in ("fp8_tensor", "fp8_row", "fp8_block"):
        granularity = "block_1x128" if out_format == "fp8_block" else out_format[4:]
        made = quantize_fp8(out, q_scale, granularity=granularity, q_dtype=torch.float8_e4m3fn,
                            **in_rows)  # fmt: skip
    elif out_format == "int8_row":
        made = quantize_int8(out, q_scale, granularity="row", group_size=128, hadamard=hadamard,
                             **in_rows)  # fmt: skip
    else:
        flat = rows(out)
        blocks = {"scale_layout": scale_layout, "pad": False, **plain}
        if out_format == "nvfp4":
            q, scales = quantize_nvfp4(flat, global_scale, nibbles=nibbles, **blocks)
        else:
            q, scales = quantize_mxfp8(flat, q_dtype=torch.float8_e4m3fn, **blocks)
        made = q.view(*out.shape[:-1], q.shape[1]), scales
    return made if isinstance(made, tuple) else (made,)


def _results(x, residual, gate, weight, bias, scale, shift, q_scale, global_scale, mean, *, eps,
             out_format, keep_out, hadamard, nibbles, scale_layout, **dtypes):  # fmt: skip
    """What the op returns: the outputs that exist, in the contract's order."""
    out, summed = _norm(x, residual, gate, weight, bias, scale, shift, eps, mean)
    made = [out] if out_format == "none" or keep_out else []
    made += [] if summed is None else [summed]
    if out_format != "none":
        made += quantized(out, q_scale, global_scale, out_format, hadamard, nibbles, scale_layout)
    return tuple(made) if len(made) > 1 else made[0]


@implements("rms_norm", backend="triton")
def rms_norm(x, residual, gate, weight, bias, q_scale, global_scale, **options):
    return _results(x, residual, gate, weight, bias, None, None, q_scale, global_scale, False,
                    **options)  # fmt: skip


@implements("layer_norm", backend="triton")
def layer_norm(x, residual, gate, weight, bias, q_scale, global_scale, **options):
    return _results(x, residual, gate, weight, bias, None, None, q_scale, global_scale, True,
                    **options)  # fmt: skip


@implements("adaln", backend="triton")
def adaln(x, scale, shift, residual, gate, weight, q_scale, global_scale, **options):
    return _results(x, residual, gate, weight, None, scale, shift, q_scale, global_scale, True,
                    **options)  # fmt: skip


@implements("rms_adaln", backend="triton")
def rms_adaln(x, scale, shift, residual, gate, weight, q_scale, global_scale, **options):
    return _results(x, residual, gate, weight, None, scale, shift, q_scale, global_scale, False,
                    **options)  # fmt: skip
