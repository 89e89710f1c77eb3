"""activation and gated_activation in Triton, with quantised output.

Map      a program takes a tile of rows and columns, part of one row where all is contiguous.
Traffic  each operand once, out once; codes are made of the stored out, its bytes once more.
Numerics f32 (matmul.activate), then the gate, one rounding; codes are exactly the quantiser's.
Right on an H200 (docs/performance.md), not timed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..._backends import implements
from . import _device as d
from ._launch import cdiv, flat, kind, launch, power_of_2, raw
from .matmul import ACTIVATIONS, activate
from .norms import quantized


@triton.jit
def gated(x, gate, out, rows_, columns, x_row, x_column, g_row, g_column, o_row, o_column,
          tiles_in_row, KIND: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr,
          ROWS: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    tile = tl.program_id(0)
    row = ((tile // tiles_in_row) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = (tile % tiles_in_row).to(tl.int64) * SIZE + tl.arange(0, SIZE)[None, :]
    inside = (row < rows_) & (column < columns)
    v = d.widen(tl.load(x + row * x_row + column * x_column, mask=inside, other=0), KIND)
    y = activate(v, ACT)
    if GATED:
        at = gate + row * g_row + column * g_column
        y = y * d.widen(tl.load(at, mask=inside, other=0), KIND)
    tl.store(out + row * o_row + column * o_column, d.narrow(y, KIND), mask=inside)


def _apply(x, gate, out, act: str) -> None:
    """out (contiguous) = act(x) * gate, all [*M, K]."""
    if out.numel() == 0:
        return
    gated_by = gate is not None
    x, gate, out = flat(x, gate if gated_by else x, out)
    m, k = x.shape
    size = min(power_of_2(k), 4096)
    together = min(power_of_2(m), max(1, 4096 // size))
    tiles = cdiv(k, size)
    launch(
        gated, cdiv(m, together) * tiles, x, raw(x), raw(gate), raw(out), m, k,
        *x.stride(), *gate.stride(), *out.stride(), tiles,
        KIND=kind(x.dtype), ACT=ACTIVATIONS[act], GATED=gated_by, ROWS=together, SIZE=size,
    )  # fmt: skip


def _results(y, q_scale, global_scale, *, out_format, keep_out, hadamard, nibbles, scale_layout,
             **dtypes):  # fmt: skip
    """What the op returns: the outputs that exist, in the contract's order."""
    if out_format == "none":
        return y
    codes = quantized(y, q_scale, global_scale, out_format, hadamard, nibbles, scale_layout)
    made = (y, *codes) if keep_out else codes
    return made if len(made) > 1 else made[0]


@implements("activation", backend="triton")
def activation(x, q_scale, global_scale, *, act, **options):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _apply(x, None, y, act)
    return _results(y, q_scale, global_scale, **options)


@implements("gated_activation", backend="triton")
def gated_activation(x, gate, q_scale, global_scale, *, act, layout, **options):
    if layout != "pair":
        half = x.shape[-1] // 2
        first, second = x[..., :half], x[..., half:]
        x, gate = (first, second) if layout == "act_first" else (second, first)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _apply(x, gate, y, act)
    return _results(y, q_scale, global_scale, **options)
