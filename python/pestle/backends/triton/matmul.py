"""Products in Triton: scaled_mm_* of two matrices of codes, linear_* of activations and codes.

Map      a program makes a tile of out; both operands are decoded on their way to the tensor cores.
Traffic  codes and scales of each operand once per tile of the other; out once.
Numerics products are exact: codes, and codes times the scales of NVFP4 and MX, are bf16 or f16
         numbers; INT8 sums are integers. Scales of 128 columns or of groups multiply partial sums
         in f32, those of rows and tensors the whole sum. What has no such place (scales of
         columns, odd groups, f32 activations) is multiplied in f32 without tensor cores.
Right on an H200 (docs/performance.md), not timed.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from ..._backends import implements
from . import _device as d
from ._blocks import scale_offset
from ._launch import cdiv, finish, fresh, kind, launch, power_of_2, raw, rows
from .int4 import rounded
from .int8 import rotated_f32
from .w4a8 import levels

INT8 = tl.constexpr(5)
E2M1 = tl.constexpr(6)
NIBBLE = tl.constexpr(7)  # an integer of 4 bits, two's complement or with a zero point
INDEX = tl.constexpr(8)  # into a codebook
# Where an operand's scale goes.
NONE = tl.constexpr(0)
TENSOR = tl.constexpr(1)  # the whole sum
ROW = tl.constexpr(2)
CHUNK = tl.constexpr(3)  # each partial sum
ELEMENT = tl.constexpr(4)  # each element, in f32
NVFP4 = tl.constexpr(5)  # each element, exactly
MX = tl.constexpr(6)
RELATIVE = tl.constexpr(7)  # each 16 elements, which are rounded to integers then; and the sum
# What the tensor cores get.
DOT_F32 = tl.constexpr(0)
DOT_BF16 = tl.constexpr(1)
DOT_F16 = tl.constexpr(2)
DOT_INT8 = tl.constexpr(3)
LONGEST_INT8 = tl.constexpr(131072)  # products of 8-bit integers that an int32 holds


@triton.jit
def _value(code, KIND: tl.constexpr):
    if KIND == INT8:
        return code.to(tl.float32)
    elif KIND == d.E4M3 or KIND == d.E5M2:
        return d.fp8_value(code, KIND)
    else:
        return d.widen(code, KIND)


@triton.jit
def _codes(p, row, start, rows_, columns, p_row, p_column, KIND: tl.constexpr,
           HIGH_FIRST: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """f32 values of codes [rows, BK] (integers as they are), 0 outside."""
    from_row = p + row.to(tl.int64)[:, None] * p_row
    if KIND >= E2M1:
        byte_at = start // 2 + tl.arange(0, BK // 2)[None, :]
        inside = (row < rows_)[:, None] & (byte_at < columns // 2)
        byte = tl.load(from_row + byte_at * p_column, mask=inside, other=0).to(tl.int32)
        if KIND == E2M1:
            low, high = d.e2m1_value(byte), d.e2m1_value(byte >> 4)
        else:
            low, high = byte & 15, byte >> 4
        two = tl.join(high, low) if HIGH_FIRST else tl.join(low, high)
        return tl.reshape(two, (row.shape[0], BK))
    else:
        column = start + tl.arange(0, BK)[None, :]
        inside = (row < rows_)[:, None] & (column < columns)
        return tl.load(from_row + column * p_column, mask=inside, other=0)


@triton.jit
def _block_scales(scale, row, start, rows_, columns, s_row, SCALE: tl.constexpr,
                  SWIZZLED: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Values of the block scales of [rows, BK / block]; contiguous scales of s_row columns."""
    BLOCK: tl.constexpr = 16 if SCALE == NVFP4 else 32
    block = start // BLOCK + tl.arange(0, BK // BLOCK)[None, :]
    inside = (row < rows_)[:, None] & (block < columns // BLOCK)
    code = tl.load(scale + scale_offset(row[:, None], block, s_row, SWIZZLED), mask=inside, other=0)
    if SCALE == NVFP4:
        return d.fp8_value(code, d.E4M3)
    else:
        return d.e8m0_value(code.to(tl.int32))


@triton.jit
def _without_zero(code, zero, row, start, rows_, columns, z_row, z_column, HAS_ZERO: tl.constexpr,
                  GROUP: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """4-bit codes as integers, in f32."""
    if HAS_ZERO:
        column = start + tl.arange(0, BK)[None, :]
        inside = (row < rows_)[:, None] & (column < columns)
        at = row.to(tl.int64)[:, None] * z_row + (column // GROUP) * z_column
        return (code - tl.load(zero + at, mask=inside, other=0).to(tl.int32)).to(tl.float32)
    else:
        return ((code ^ 8) - 8).to(tl.float32)


@triton.jit
def _of_codebook(index, codebook, scale, row, start, rows_, columns, s_row, s_column,
                 BK: tl.constexpr):  # fmt: skip
    """Integers of -127 to 127 that indices stand for under their relative scales, in f32."""
    block = start // 16 + tl.arange(0, BK // 16)[None, :]
    inside = (row < rows_)[:, None] & (block < columns // 16)
    at = row.to(tl.int64)[:, None] * s_row + block * s_column
    s = d.fp8_value(tl.load(scale + at, mask=inside, other=0), d.E4M3)
    v = tl.reshape(tl.load(codebook + index), (row.shape[0], BK // 16, 16)) * s[:, :, None]
    return rounded(tl.reshape(v, (row.shape[0], BK)), -127.0, 127.0).to(tl.float32)


@triton.jit
def _operand(p, scale, extra, row, start, rows_, columns, p_row, p_column, s_row, s_column, e_row,
             e_column, KIND: tl.constexpr, SCALE: tl.constexpr, GROUP_ROWS: tl.constexpr,
             GROUP: tl.constexpr, HIGH_FIRST: tl.constexpr, SWIZZLED: tl.constexpr,
             HAS_ZERO: tl.constexpr, DOT: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """[rows, BK] as the product takes it; f32 where it is still to be split or rounded exactly.
    `extra`: zero points, or the codebook."""
    v = _codes(p, row, start, rows_, columns, p_row, p_column, KIND, HIGH_FIRST, BK)
    if DOT == DOT_INT8:
        return v
    elif KIND == INDEX:
        return _of_codebook(v, extra, scale, row, start, rows_, columns, s_row, s_column, BK)
    else:
        if KIND == NIBBLE:
            v = _without_zero(v, extra, row, start, rows_, columns, e_row, e_column, HAS_ZERO,
                              GROUP, BK)  # fmt: skip
        elif KIND != E2M1:
            v = _value(v, KIND)
        if SCALE >= NVFP4:
            BLOCK: tl.constexpr = 16 if SCALE == NVFP4 else 32
            s = _block_scales(scale, row, start, rows_, columns, s_row, SCALE, SWIZZLED, BK)
            v = tl.reshape(v, (row.shape[0], BK // BLOCK, BLOCK)) * s[:, :, None]
            v = tl.reshape(v, (row.shape[0], BK))
        elif SCALE == ELEMENT:
            column = start + tl.arange(0, BK)[None, :]
            at = (row // GROUP_ROWS).to(tl.int64)[:, None] * s_row + (column // GROUP) * s_column
            inside = (row < rows_)[:, None] & (column < columns)
            v = v * tl.load(scale + at, mask=inside, other=0.0)
        return v


@triton.jit
def _chunk_scale(scale, row, start, rows_, s_row, s_column, SCALE: tl.constexpr,
                 GROUP_ROWS: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    at = (row // GROUP_ROWS).to(tl.int64) * s_row + (start // GROUP) * s_column
    return tl.load(scale + at, mask=row < rows_, other=0.0)


@triton.jit
def _product(a, b, DOT: tl.constexpr, SPLIT: tl.constexpr):
    """a @ b^T in f32; SPLIT: a has more bits than bf16, and is the sum of two."""
    b = tl.trans(b)
    if DOT == DOT_F32:
        return tl.dot(a, b, input_precision="ieee")
    elif DOT == DOT_F16:
        return tl.dot(a.to(tl.float16), b.to(tl.float16))
    else:
        b = b.to(tl.bfloat16)
        high = a.to(tl.bfloat16)
        y = tl.dot(high, b)
        if SPLIT:
            y = tl.dot((a - high.to(tl.float32)).to(tl.bfloat16), b, y)
        return y


@triton.jit
def _end_scale(scale, row, rows_, s_row, SCALE: tl.constexpr, OF_SUM: tl.constexpr):
    """Of decoded elements an infinite scale is NaN: it stands beside codes that are 0, and 0 * Inf
    is NaN. OF_SUM: it multiplies the sum of products of codes."""
    at = row.to(tl.int64) * (s_row if SCALE == ROW else 0)
    s = tl.load(scale + at, mask=row < rows_, other=0.0)
    return s if OF_SUM else tl.where(d.abs_bits(s) >= 0x7F800000, float("nan"), s)


@triton.jit
def activate(y, ACTIVATION: tl.constexpr):
    if ACTIVATION == 1:
        return 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    elif ACTIVATION == 2:
        u = 0.7978845608028654 * (y + 0.044715 * y * y * y)
        return 0.5 * y * (1.0 + (1.0 - 2.0 / (tl.exp(2.0 * u) + 1.0)))
    elif ACTIVATION == 3:
        return y / (1.0 + tl.exp(-y))
    else:
        return y


@triton.jit
def _epilogue(y, out, alpha, bias, residual, m, n, rows_, columns, bias_stride, r_row, r_column,
              HAS_ALPHA: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
              ACTIVATION: tl.constexpr, OKIND: tl.constexpr):  # fmt: skip
    inside = (m < rows_)[:, None] & (n < columns)[None, :]
    if HAS_ALPHA:
        y = y * tl.load(alpha)
    if BIAS >= 0:
        found = tl.load(bias + n * bias_stride, mask=n < columns, other=0)
        y = y + d.widen(found, BIAS)[None, :]
    y = activate(y, ACTIVATION)
    m = m.to(tl.int64)[:, None]
    if RESIDUAL >= 0:
        found = tl.load(residual + m * r_row + n[None, :] * r_column, mask=inside, other=0)
        y = y + d.widen(found, RESIDUAL)
    tl.store(out + m * columns + n[None, :], d.narrow(y, OKIND), mask=inside)


@triton.jit
def matmul(a, b, scale_a, scale_b, global_a, global_b, extra, out, alpha, bias, residual, M, N, K,
           a_row, a_column, b_row, b_column, sa_row, sa_column, sb_row, sb_column, e_row, e_column,
           bias_stride, r_row, r_column, AKIND: tl.constexpr, BKIND: tl.constexpr,
           ASCALE: tl.constexpr, BSCALE: tl.constexpr, GROUP_ROWS: tl.constexpr,
           GROUP: tl.constexpr, HIGH_FIRST: tl.constexpr, SWIZZLED: tl.constexpr,
           HAS_ZERO: tl.constexpr, DOT: tl.constexpr, SPLIT: tl.constexpr, LONG: tl.constexpr,
           HAS_ALPHA: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
           ACTIVATION: tl.constexpr, OKIND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
           BK: tl.constexpr):  # fmt: skip
    """epilogue(a [M, K] @ b [N, K]^T), both decoded. BIAS, RESIDUAL: kinds, -1 for none."""
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    # Eight tiles of rows go together along the columns: they meet the same columns in the L2.
    band = tl.program_id(0) // (8 * tiles_n)
    height = tl.minimum(tiles_m - band * 8, 8)
    place = tl.program_id(0) % (8 * tiles_n)
    m = (band * 8 + place % height) * BM + tl.arange(0, BM)
    n = (place // height) * BN + tl.arange(0, BN)
    if DOT == DOT_INT8:
        total = tl.zeros((BM, BN), tl.int32)
        far = tl.zeros((BM, BN), tl.int64 if LONG else tl.int32)
    else:
        total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        x = _operand(a, scale_a, extra, m, start, M, K, a_row, a_column, sa_row, sa_column, e_row,
                     e_column, AKIND, ASCALE, 1, GROUP, HIGH_FIRST, SWIZZLED, HAS_ZERO, DOT,
                     BK)  # fmt: skip
        w = _operand(b, scale_b, extra, n, start, N, K, b_row, b_column, sb_row, sb_column, e_row,
                     e_column, BKIND, BSCALE, GROUP_ROWS, GROUP, HIGH_FIRST, SWIZZLED, HAS_ZERO,
                     DOT, BK)  # fmt: skip
        if DOT == DOT_INT8:
            total = tl.dot(x, tl.trans(w), total, out_dtype=tl.int32)
            if LONG and start % 131072 >= 131072 - BK:
                far += total.to(tl.int64)
                total = tl.zeros((BM, BN), tl.int32)
        else:
            y = _product(x, w, DOT, SPLIT)
            if ASCALE == CHUNK:
                s = _chunk_scale(scale_a, m, start, M, sa_row, sa_column, ASCALE, 1, GROUP)
                y = y * s[:, None]
            if BSCALE == CHUNK:
                s = _chunk_scale(scale_b, n, start, N, sb_row, sb_column, BSCALE, GROUP_ROWS,
                                 GROUP)  # fmt: skip
                y = y * s[None, :]
            total += y
    if DOT == DOT_INT8 and LONG:
        y = (far + total.to(tl.int64)).to(tl.float32)
    else:
        y = total.to(tl.float32)
    INTEGERS: tl.constexpr = DOT == DOT_INT8
    if ASCALE > NONE and ASCALE < CHUNK:
        y = y * _end_scale(scale_a, m, M, sa_row, ASCALE, True)[:, None]
    if BSCALE > NONE and BSCALE < CHUNK:
        CODES: tl.constexpr = INTEGERS or ASCALE > NONE
        y = y * _end_scale(scale_b, n, N, sb_row, BSCALE, CODES)[None, :]
    if ASCALE == NVFP4:
        y = y * _end_scale(global_a, m, M, 0, TENSOR, False)[:, None]
    if BSCALE == NVFP4:
        y = y * _end_scale(global_b, n, N, 0, TENSOR, False)[None, :]
    if BSCALE == RELATIVE:
        y = y * _end_scale(global_b, n, N, 1, ROW, INTEGERS)[None, :]
    _epilogue(y, out, alpha, bias, residual, m, n, M, N, bias_stride, r_row, r_column, HAS_ALPHA,
              BIAS, RESIDUAL, ACTIVATION, OKIND)  # fmt: skip


# --- host -----------------------------------------------------------------------------------------

ACTIVATIONS = {"none": 0, "gelu": 1, "gelu_tanh": 2, "silu": 3}


def _tile(m: int, n: int, dot: int, chunk: int) -> dict:
    """Tile and warps: wide for a few rows, where reading b is all; square for many."""
    if d.INTERPRETED.value:
        return {"BM": 16 if m <= 16 else 64, "BN": 64, "BK": min(1024, chunk), "warps": 4}
    if dot == DOT_F32.value:
        return {"BM": 16 if m <= 16 else 32, "BN": 64, "BK": 32, "warps": 4}
    if m <= 16:
        return {"BM": 16, "BN": 32, "BK": min(256, chunk), "warps": 4, "num_stages": 4}
    if m <= 64:
        return {"BM": 64, "BN": 64, "BK": min(128, chunk), "warps": 4, "num_stages": 3}
    return {"BM": 128, "BN": 128, "BK": min(64, chunk), "warps": 8, "num_stages": 3}


class _Operand:
    """Codes or activations [rows, ...], and how they are scaled."""

    def __init__(self, t, kind_of, scale=None, how=NONE, global_scale=None, extra=None):
        self.t, self.kind, self.scale, self.how = t, kind_of, scale, how.value
        self.global_scale = global_scale  # or the scales of rows, with relative ones
        self.extra = extra  # zero points or the codebook

    def scale_strides(self) -> tuple[int, int]:
        if self.scale is None:
            return 0, 0
        if self.how in (NVFP4.value, MX.value):
            return self.scale.shape[-1], 1
        if self.scale.ndim < 2:
            return 0, 0
        strides = self.scale.stride()
        return tuple(0 if n == 1 else s for n, s in zip(self.scale.shape, strides, strict=True))


def _multiply(a: _Operand, b: _Operand, k, out_shape, out_dtype, out, epilogue, dot, *,
              split=False, group_rows=1, group=1, high_first=False, swizzled=False):  # fmt: skip
    alpha, bias, residual, activation = epilogue
    made = fresh(out, out_shape, out_dtype, a.t)
    if made.numel() == 0:
        return finish(out, made)
    chunked = CHUNK.value in (a.how, b.how)
    n, m = out_shape[-1], a.t.shape[0]
    tile = _tile(m, n, dot.value, group if chunked else 1 << 20)
    if residual is not None:
        residual = rows(residual)
    nothing = raw(a.t)
    zeros = b.extra is not None and b.kind == NIBBLE.value
    strides = residual.stride() if residual is not None else (0, 0)
    interpreted = d.INTERPRETED.value and dot.value != DOT_INT8.value
    launch(
        matmul, cdiv(m, tile["BM"]) * cdiv(n, tile["BN"]), a.t, raw(a.t), raw(b.t),
        *(nothing if o.scale is None else raw(o.scale) for o in (a, b)),
        *(nothing if o.global_scale is None else o.global_scale for o in (a, b)),
        nothing if b.extra is None else b.extra, raw(made),
        *(nothing if t is None else raw(t) for t in (alpha, bias, residual)), m, n, k,
        *a.t.stride(), *b.t.stride(), *a.scale_strides(), *b.scale_strides(),
        *(b.extra.stride() if zeros else (0, 0)),
        bias.stride(0) if bias is not None else 0, *strides, AKIND=a.kind, BKIND=b.kind,
        ASCALE=a.how, BSCALE=b.how, GROUP_ROWS=group_rows, GROUP=group, HIGH_FIRST=high_first,
        SWIZZLED=swizzled, HAS_ZERO=zeros, DOT=DOT_F32.value if interpreted else dot.value,
        SPLIT=split and not interpreted, LONG=k > LONGEST_INT8.value - 256,
        HAS_ALPHA=alpha is not None, BIAS=-1 if bias is None else kind(bias.dtype),
        RESIDUAL=-1 if residual is None else kind(residual.dtype),
        ACTIVATION=ACTIVATIONS[activation], OKIND=kind(made.dtype), **tile,
    )  # fmt: skip
    return finish(out, made)


def _implements(op, *, after=0, refuses=None):
    """Of a product whose epilogue has no pairs, gate or beta, which its function does not see.

    `after`: inputs behind beta and gate.
    """

    def made(function):
        def parts(tensors):
            at = len(tensors) - after - 2
            return tensors[:at] + tensors[at + 2 :], tensors[at : at + 2]

        @functools.wraps(function)
        def called(*tensors, gated, **options):
            return function(*parts(tensors)[0], **options)

        def refused(*tensors, gated, **options):
            others, late = parts(tensors)
            if gated != "none" or any(t is not None for t in late):
                return "has no pairs, gate or beta in its epilogue"
            return refuses(*others, **options) if refuses else None

        return implements(op, backend="triton", refuses=refused)(called)

    return made


_PER = {"tensor": TENSOR, "row": ROW}


_GATED = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh"}
_PLAIN = {"out_format": "none", "keep_out": False, "hadamard": 0, "nibbles": "high_first",
          "scale_layout": "swizzled"}  # fmt: skip


def _changed(x, norm_weight, input_act, input_layout, eps):
    """x after input_act, in its own dtype."""
    from . import activations, norms  # which import this module

    if input_act == "none":
        return x
    if input_act == "rms_norm":
        return norms.rms_norm(x, None, None, norm_weight, None, None, None, eps=eps, **_PLAIN)
    if input_act in _GATED:
        return activations.gated_activation(
            x, None, None, None, act=_GATED[input_act], layout=input_layout, **_PLAIN
        )
    return activations.activation(x, None, None, act=input_act, **_PLAIN)


def _with_codes(make, out, out_dtype, q_scale, global_scale, *, out_format, keep_out, out_hadamard,
                nibbles, scale_layout):  # fmt: skip
    """What a product returns: make(out_dtype, out), its codes, or both."""
    from .norms import quantized

    if out_format == "none":
        return make(out_dtype, out)
    y = make(out_dtype if keep_out else torch.bfloat16, None)
    codes = quantized(y, q_scale, global_scale, out_format, out_hadamard, nibbles, scale_layout)
    return finish(out, *((y,) if keep_out else ()), *codes)


@_implements("scaled_mm_fp8", after=2)
def scaled_mm_fp8(a, b, scale_a, scale_b, alpha, bias, residual, q_scale, global_scale, *,
                  granularity, accumulation, activation, out_dtype=None, out=None,
                  **codes):  # fmt: skip
    # Products of f16, which holds all codes, so every accumulation is as exact as the strictest.
    how = _PER.get(granularity, CHUNK)
    x = _Operand(rows(a), kind(a.dtype), _grid(scale_a, granularity), how)
    w = _Operand(b, kind(b.dtype), _grid(scale_b, granularity), how)

    def make(dtype, into):
        return _multiply(x, w, a.shape[-1], (*a.shape[:-1], b.shape[0]), dtype, into,
                         (alpha, bias, residual, activation), DOT_F16, group_rows=128,
                         group=128)  # fmt: skip

    return _with_codes(make, out, out_dtype, q_scale, global_scale, **codes)


@_implements("scaled_mm_int8", after=2)
def scaled_mm_int8(a, b, scale_a, scale_b, alpha, bias, residual, q_scale, global_scale, *,
                   granularity, host_scale, activation, out_dtype=None, out=None,
                   **codes):  # fmt: skip
    if granularity == "host":
        scale_a = torch.full((1,), host_scale, device=a.device)
        scale_b, granularity = torch.ones_like(scale_a), "tensor"
    how = _PER[granularity]
    x = _Operand(rows(a), INT8.value, _grid(scale_a, granularity), how)
    w = _Operand(b, INT8.value, _grid(scale_b, granularity), how)

    def make(dtype, into):
        return _multiply(x, w, a.shape[-1], (*a.shape[:-1], b.shape[0]), dtype, into,
                         (alpha, bias, residual, activation), DOT_INT8)  # fmt: skip

    return _with_codes(make, out, out_dtype, q_scale, global_scale, **codes)


def _grid(scale: torch.Tensor, granularity: str) -> torch.Tensor:
    """Scales as [rows, columns], or [1]."""
    return scale if granularity == "tensor" else rows(scale)


@_implements("scaled_mm_nvfp4")
def scaled_mm_nvfp4(a, b, scale_a, scale_b, global_scale_a, global_scale_b, alpha, bias, residual,
                    *, nibbles, scale_layout, activation, out_dtype, out=None):  # fmt: skip
    x = _Operand(rows(a), E2M1.value, rows(scale_a).contiguous(), NVFP4, global_scale_a)
    w = _Operand(b, E2M1.value, scale_b.contiguous(), NVFP4, global_scale_b)
    return _multiply(x, w, a.shape[-1] * 2, (*a.shape[:-1], b.shape[0]), out_dtype, out,
                     (alpha, bias, residual, activation), DOT_BF16,
                     high_first=nibbles == "high_first",
                     swizzled=scale_layout == "swizzled")  # fmt: skip


@_implements("scaled_mm_mxfp8")
def scaled_mm_mxfp8(a, b, scale_a, scale_b, alpha, bias, residual, *, scale_layout, activation,
                    out_dtype, out=None):  # fmt: skip
    x = _Operand(rows(a), kind(a.dtype), rows(scale_a).contiguous(), MX)
    w = _Operand(b, kind(b.dtype), scale_b.contiguous(), MX)
    return _multiply(x, w, a.shape[-1], (*a.shape[:-1], b.shape[0]), out_dtype, out,
                     (alpha, bias, residual, activation), DOT_BF16,
                     swizzled=scale_layout == "swizzled")  # fmt: skip


def _dot_for(x: torch.Tensor, how) -> tuple:
    """(product, split) for activations of x's dtype with weights that bf16 holds."""
    if x.dtype == torch.float32 or how is ELEMENT:
        return DOT_F32, False
    if x.dtype == torch.bfloat16:
        return DOT_BF16, False
    return (DOT_BF16, True) if how is MX else (DOT_F16, False)


def _linear(x, w: _Operand, how, out_dtype, out, epilogue, **options):
    dot, split = _dot_for(x, how)
    a = _Operand(rows(x), kind(x.dtype))
    return _multiply(a, w, x.shape[-1], (*x.shape[:-1], w.t.shape[0]), out_dtype, out, epilogue,
                     dot, split=split, **options)  # fmt: skip


def _refuses_codes(*tensors, activations, **options):
    return None if activations == "float" else "activations=row: activations stay floats here"


@_implements("linear_fp8", after=3, refuses=_refuses_codes)
def linear_fp8(x, weight, scale, alpha, bias, residual, norm_weight, q_scale, global_scale, *,
               granularity, activations, accumulation, activation, input_act, input_layout, eps,
               out_dtype=None, out=None, **codes):  # fmt: skip
    x = _changed(x, norm_weight, input_act, input_layout, eps)
    how = _PER.get(granularity, ELEMENT if granularity == "column" else CHUNK)
    group_rows = {"block_128x128": 128, "column": 1 << 30}.get(granularity, 1)
    w = _Operand(weight, kind(weight.dtype), scale, how)

    def make(dtype, into):
        return _linear(x, w, how, dtype, into, (alpha, bias, residual, activation),
                       group_rows=group_rows, group=128 if how is CHUNK else 1)  # fmt: skip

    return _with_codes(make, out, out_dtype, q_scale, global_scale, **codes)


@_implements("linear_int8", after=3, refuses=_refuses_codes)
def linear_int8(x, weight, scale, alpha, bias, residual, norm_weight, q_scale, global_scale, *,
                granularity, group_size, hadamard, activations, activation, input_act,
                input_layout, eps, out_dtype=None, out=None, **codes):  # fmt: skip
    x = rotated_f32(_changed(x, norm_weight, input_act, input_layout, eps), hadamard)
    whole = group_size >= 64 and group_size % 64 == 0 and power_of_2(group_size) == group_size
    how = _PER.get(granularity, CHUNK if whole else ELEMENT)
    w = _Operand(weight, INT8.value, scale, how)

    def make(dtype, into):
        return _linear(x, w, how, dtype, into, (alpha, bias, residual, activation),
                       group=group_size)  # fmt: skip

    return _with_codes(make, out, out_dtype, q_scale, global_scale, **codes)


def _implements_linear(op):
    """Of a linear layer of floats: its function gets x after input_act, the weight's tensors and
    the product's `end`, what _linear() takes last."""

    def made(function):
        def called(x, *tensors, activation, input_act, input_layout, eps, out_dtype, out=None,
                   **options):  # fmt: skip
            *weight, alpha, bias, residual, norm_weight = tensors
            x = _changed(x, norm_weight, input_act, input_layout, eps)
            end = (out_dtype, out, (alpha, bias, residual, activation))
            return function(x, *weight, end, **options)

        called.__name__ = op
        return _implements(op, after=1)(called)

    return made


@_implements_linear("linear_nvfp4")
def linear_nvfp4(x, weight, scale, global_scale, end, *, nibbles, scale_layout):
    w = _Operand(weight, E2M1.value, scale.contiguous(), NVFP4, global_scale)
    return _linear(x, w, NVFP4, *end, high_first=nibbles == "high_first",
                   swizzled=scale_layout == "swizzled")  # fmt: skip


@_implements_linear("linear_mxfp8")
def linear_mxfp8(x, weight, scale, end, *, scale_layout):
    w = _Operand(weight, kind(weight.dtype), scale.contiguous(), MX)
    return _linear(x, w, MX, *end, swizzled=scale_layout == "swizzled")


@_implements_linear("linear_mxfp4")
def linear_mxfp4(x, weight, scale, end, *, nibbles, scale_layout):
    w = _Operand(weight, E2M1.value, scale.contiguous(), MX)
    return _linear(x, w, MX, *end, high_first=nibbles == "high_first",
                   swizzled=scale_layout == "swizzled")  # fmt: skip


@_implements_linear("linear_int4")
def linear_int4(x, weight, scale, zero, end, *, group_size, mode, hadamard, decoded):
    whole = group_size >= 32 and power_of_2(group_size) == group_size
    how = ROW if group_size == 0 else CHUNK if whole else ELEMENT
    how = how if scale.numel() else NONE  # an empty row has no scale
    w = _Operand(weight, NIBBLE.value, scale, how, extra=zero)
    return _linear(rotated_f32(x, hadamard), w, how, *end, group=group_size or 1 << 30)


@_implements_linear("linear_w4a8")
def linear_w4a8(x, weight, scale_rel, scale_channel, codebook, end, *, hadamard):
    w = _Operand(weight, INDEX.value, scale_rel, RELATIVE, scale_channel.contiguous(),
                 levels(codebook, x))  # fmt: skip
    return _linear(rotated_f32(x, hadamard), w, RELATIVE, *end)
