"""softmax and log_softmax along any dimension, with a mask, and their gradients, in Triton.

Map      a tensor is [outer, n, inner] along the dimension; a program takes a row, or several, in
         its registers: neighbours of inner where there are any. Long rows are read twice, by pieces
         with the largest and the sum kept online.
Traffic  x once and out once; x twice from 32768 elements on.
Numerics f32: exp(t - max t) / sum, t = scale * x + mask; one rounding.
Right on an H200 (docs/performance.md), not timed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..._backends import implements
from . import _device as d
from ._launch import cdiv, kind, launch, power_of_2, raw

LONGEST = 32768  # elements of a row that a program keeps


@triton.jit
def _logits(x, mask, row, i, inside, n, inner, m_outer, m_n, m_inner, scale,
            KIND: tl.constexpr, MASK: tl.constexpr):  # fmt: skip
    """scale * x + mask at element i of rows; -inf outside."""
    outer = row // inner
    place = outer * n * inner + i * inner + row % inner
    t = scale * d.widen(tl.load(x + place, mask=inside, other=0), KIND)
    if MASK >= 0:
        at = mask + outer * m_outer + i * m_n + (row % inner) * m_inner
        t = t + d.widen(tl.load(at, mask=inside, other=0), MASK)
    return tl.where(inside, t, float("-inf")), place


@triton.jit
def forward(x, mask, out, rows, n, inner, m_outer, m_n, m_inner, scale, KIND: tl.constexpr,
            MASK: tl.constexpr, LOG: tl.constexpr, ROWS: tl.constexpr,
            SIZE: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    i = tl.arange(0, SIZE)[None, :]
    inside = (row < rows) & (i < n)
    t, place = _logits(x, mask, row, i, inside, n, inner, m_outer, m_n, m_inner, scale, KIND, MASK)
    largest = tl.max(t, axis=1)[:, None]
    base = tl.where(largest == float("-inf"), 0.0, largest)
    e = tl.exp(t - base)
    total = tl.sum(e, axis=1)[:, None]
    y = (t - base) - tl.log(total) if LOG else tl.div_rn(e, total)
    tl.store(out + place, d.narrow(y, KIND), mask=inside)


@triton.jit
def forward_long(x, mask, out, rows, n, inner, m_outer, m_n, m_inner, scale, KIND: tl.constexpr,
                 MASK: tl.constexpr, LOG: tl.constexpr, ROWS: tl.constexpr,
                 SIZE: tl.constexpr):  # fmt: skip
    """A row a program, in pieces."""
    row = tl.full((1, 1), 0, tl.int64) + tl.program_id(0)
    lane = tl.arange(0, SIZE)[None, :].to(tl.int64)
    largest = tl.full((1, SIZE), float("-inf"), tl.float32)
    total = tl.zeros((1, SIZE), tl.float32)
    for start in range(0, n, SIZE):
        i = start + lane
        t, _ = _logits(x, mask, row, i, i < n, n, inner, m_outer, m_n, m_inner, scale, KIND, MASK)
        more = tl.maximum(largest, t)
        base = tl.where(more == float("-inf"), 0.0, more)
        # Where nothing was seen yet, largest is -inf and its sum 0.
        total = total * tl.exp(largest - base) + tl.exp(t - base)
        largest = more
    most = tl.max(largest, axis=1)[:, None]
    base = tl.where(most == float("-inf"), 0.0, most)
    total = tl.sum(total * tl.exp(largest - base), axis=1)[:, None]
    for start in range(0, n, SIZE):
        i = start + lane
        t, place = _logits(x, mask, row, i, i < n, n, inner, m_outer, m_n, m_inner, scale, KIND,
                           MASK)  # fmt: skip
        y = (t - base) - tl.log(total) if LOG else tl.div_rn(tl.exp(t - base), total)
        tl.store(out + place, d.narrow(y, KIND), mask=i < n)


@triton.jit
def _slope(d_out, out, place, inside, KIND: tl.constexpr, LOG: tl.constexpr):
    """Gradient and result of elements, and what is summed over a row."""
    g = d.widen(tl.load(d_out + place, mask=inside, other=0), KIND)
    y = d.widen(tl.load(out + place, mask=inside, other=0), KIND)
    return g, y, (g if LOG else g * y)


@triton.jit
def backward(d_out, out, d_x, rows, n, inner, scale, KIND: tl.constexpr, LOG: tl.constexpr,
             ROWS: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """scale * out * (d_out - sum(d_out * out)); LOG: scale * (d_out - exp(out) sum(d_out))."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    first = (row // inner) * n * inner + row % inner
    i = tl.arange(0, SIZE)[None, :]
    inside = (row < rows) & (i < n)
    g, y, term = _slope(d_out, out, first + i * inner, inside, KIND, LOG)
    total = tl.sum(term, axis=1)[:, None]
    v = g - tl.exp(y) * total if LOG else y * (g - total)
    tl.store(d_x + first + i * inner, d.narrow(scale * v, KIND), mask=inside)


@triton.jit
def backward_long(d_out, out, d_x, rows, n, inner, scale, KIND: tl.constexpr, LOG: tl.constexpr,
                  ROWS: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """A row a program, in pieces."""
    row = tl.full((1, 1), 0, tl.int64) + tl.program_id(0)
    first = (row // inner) * n * inner + row % inner
    lane = tl.arange(0, SIZE)[None, :].to(tl.int64)
    sums = tl.zeros((1, SIZE), tl.float32)
    for start in range(0, n, SIZE):
        i = start + lane
        _, _, term = _slope(d_out, out, first + i * inner, i < n, KIND, LOG)
        sums += term
    total = tl.sum(sums, axis=1)[:, None]
    for start in range(0, n, SIZE):
        i = start + lane
        g, y, _ = _slope(d_out, out, first + i * inner, i < n, KIND, LOG)
        v = g - tl.exp(y) * total if LOG else y * (g - total)
        tl.store(d_x + first + i * inner, d.narrow(scale * v, KIND), mask=i < n)


def _split(shape, dim: int) -> tuple[int, int, int]:
    """(outer, n, inner) of a shape along dim."""
    dim %= len(shape)
    return shape[:dim].numel(), shape[dim], shape[dim + 1 :].numel()


def _tile(rows: int, n: int, inner: int) -> dict:
    size = power_of_2(n)
    together = max(1, 2048 // size)
    if inner > 1:  # neighbouring rows are neighbours in memory
        together = max(together, min(32, max(1, 16384 // size)))
    warps = min(16, max(4, together * size // 1024))
    if size > LONGEST:
        return {"ROWS": 1, "SIZE": 8192, "warps": 8}
    return {"ROWS": min(together, power_of_2(rows)), "SIZE": size, "warps": warps}


def _softmax(x, mask, dim, scale, log) -> torch.Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel() == 0:
        return out
    outer, n, inner = _split(x.shape, dim)
    strides = (0, 0, 0)
    if mask is not None:
        mask = mask.expand(x.shape).reshape(outer, n, inner)
        strides = mask.stride()
    rows = outer * inner
    tile = _tile(rows, n, inner)
    launch(
        forward if n <= tile["SIZE"] else forward_long, cdiv(rows, tile["ROWS"]), x, raw(x),
        raw(x if mask is None else mask), raw(out), rows, n, inner, *strides, scale,
        KIND=kind(x.dtype), MASK=-1 if mask is None else kind(mask.dtype), LOG=log, **tile,
    )  # fmt: skip
    return out


def _gradient(d_out, out, dim, scale, log) -> torch.Tensor:
    d_out, out = d_out.contiguous(), out.contiguous()
    d_x = torch.empty_like(out)
    if out.numel() == 0:
        return d_x
    outer, n, inner = _split(out.shape, dim)
    tile = _tile(outer * inner, n, inner)
    kernel = backward if n <= tile["SIZE"] else backward_long
    launch(kernel, cdiv(outer * inner, tile["ROWS"]), out, raw(d_out), raw(out), raw(d_x),
           outer * inner, n, inner, scale, KIND=kind(out.dtype), LOG=log, **tile)  # fmt: skip
    return d_x


@implements("softmax", backend="triton")
def softmax(x, mask, *, dim, scale):
    return _softmax(x, mask, dim, scale, False)


@implements("log_softmax", backend="triton")
def log_softmax(x, mask, *, dim, scale):
    return _softmax(x, mask, dim, scale, True)


@implements("softmax_backward", backend="triton")
def softmax_backward(d_out, out, *, dim, scale):
    return _gradient(d_out, out, dim, scale, False)


@implements("log_softmax_backward", backend="triton")
def log_softmax_backward(d_out, out, *, dim, scale):
    return _gradient(d_out, out, dim, scale, True)
