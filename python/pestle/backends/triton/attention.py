"""attention in Triton: flash attention with every option of the contract, heads up to 256.

Map      a program takes some rows of one head of k, each a query of one of the heads of q that
         share it, so that few queries fill a tile with heads; it walks over the keys that any of
         its rows sees. Tiles with the most keys begin first.
Traffic  q and out once; k and v once for each tile of rows, from the L2 for neighbours.
Numerics logits in f32 times log2(e), but not under a mask of floats, whose lowest number that would
         make -infinity; the softmax online, sums in f32; exponentials of 16-bit inputs are rounded
         to their dtype, in f16 times 2^15. f32 is multiplied as f32 (slowly), with
         precision="tf32" too. Tiles whose sums are not finite are summed again with the largest
         logits known, and then a key that does not count adds nothing, whatever its value is.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from ..._backends import implements
from . import _device as d
from ._launch import capability_of, cdiv, kind, launch, power_of_2, raw

LARGEST_HEAD = 256
_MOST = 1 << 30  # queries of a group of heads, or keys: places are 32-bit numbers
BOOL = tl.constexpr(9)
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
SMALLEST_WEIGHT = tl.constexpr(1.1754943508222875e-38)  # 2^-126: exponentials below count as 0


@triton.jit
def _within(p, i, step, most, inside):
    """An offset or a length, within [0, most]."""
    value = tl.load(p + i.to(tl.int64) * step, mask=inside, other=0).to(tl.int64)
    return tl.minimum(tl.maximum(value, 0), most).to(tl.int32)


@triton.jit
def _sequence_of(query, inside, q_offsets, q_step, count, queries, STEPS: tl.constexpr):
    """How many sequences begin at a query or before it."""
    low = query * 0
    high = low + count
    for _ in range(STEPS):
        open_ = inside & (low < high)
        middle = (low + high) // 2
        before = _within(q_offsets, middle, q_step, queries, open_) <= query
        low = tl.where(open_ & before, middle + 1, low)
        high = tl.where(open_ & (before == 0), middle, high)
    return low


@triton.jit
def _range(query, inside, batch, lengths, l_step, q_offsets, q_step, k_offsets, k_step, count,
           queries, keys, left, right, LENGTHS: tl.constexpr, PACKED: tl.constexpr,
           STEPS: tl.constexpr, BOTTOM: tl.constexpr):  # fmt: skip
    """First key and end of what each row sees (key_range in ops/attention/attention_args.h);
    left, right: how far, with causality; as far as all there is for no limit."""
    first = query * 0
    last = first + queries
    begin = first
    end = first + keys
    if PACKED:
        found = _sequence_of(query, inside, q_offsets, q_step, count, queries, STEPS)
        inside = inside & (found > 0) & (found < count)
        first = _within(q_offsets, found - 1, q_step, queries, inside)
        last = _within(q_offsets, found, q_step, queries, inside)
        begin = _within(k_offsets, found - 1, k_step, keys, inside)
        end = tl.maximum(begin, _within(k_offsets, found, k_step, keys, inside))
    elif LENGTHS:
        end = _within(lengths, first + batch, l_step, keys, inside)
    place = end - (last - query) if BOTTOM else begin + query - first
    begin = tl.maximum(begin, place - left)
    end = tl.minimum(end, place + right + 1)
    return tl.where(inside, begin, 0), tl.where(inside, end, 0)


@triton.jit
def _tanh(x):
    """Near 0 a polynomial, since 1 - small is not small; coefficients: attention_tile-inl.h"""
    size = tl.abs(x)
    z = x * x
    p = tl.full(x.shape, -5.70498872745e-3, tl.float32)
    p = p * z + 2.06390887954e-2
    p = p * z - 5.37397155531e-2
    p = p * z + 1.33314422036e-1
    p = p * z - 3.33332819422e-1
    e = tl.exp(-2.0 * size)
    large = d.with_sign_of((1.0 - e) / (1.0 + e), x)
    return tl.where(size < 0.625, p * z * x + x, large)


@triton.jit
def _operand(raw_, KIND: tl.constexpr, DOT16: tl.constexpr):
    """What tl.dot gets: loaded bits as 16-bit floats, or f32."""
    if not DOT16:
        return d.widen(raw_, KIND)
    elif KIND == d.BF16:
        return raw_.to(tl.bfloat16, bitcast=True)
    else:
        return raw_.to(tl.float16, bitcast=True)


@triton.jit
def _weights(p, KIND: tl.constexpr, DOT16: tl.constexpr):
    """Exponentials for tl.dot; those of f16 times 2^15, as _unit says, to keep small ones."""
    if not DOT16:
        return p
    elif KIND == d.BF16:
        return p.to(tl.bfloat16)
    else:
        return (p * 32768.0).to(tl.float16)


@triton.jit
def _logits(q, k, mask, start, keys, begin, end, k_s, k_d, m_row, m_key, inner, outer,
            KIND: tl.constexpr, DOT16: tl.constexpr, MASK: tl.constexpr, SOFTCAP: tl.constexpr,
            BN: tl.constexpr, BD: tl.constexpr, D: tl.constexpr):  # fmt: skip
    """Logits of a tile in the unit of inner and outer; -inf where a key does not count."""
    j = start + tl.arange(0, BN)
    c = tl.arange(0, BD)[:, None]
    at = k + j.to(tl.int64)[None, :] * k_s + c * k_d
    tile = _operand(tl.load(at, mask=(j < keys)[None, :] & (c < D), other=0), KIND, DOT16)
    t = tl.dot(q, tile, input_precision="ieee")
    t = _tanh(t * inner) * outer if SOFTCAP else t * inner
    seen = (j[None, :] >= begin[:, None]) & (j[None, :] < end[:, None])
    if MASK >= 0:
        added = tl.load(m_row + j.to(tl.int64)[None, :] * m_key, mask=seen, other=0)
        if MASK == BOOL:
            seen = seen & (added != 0)
        else:
            t += d.widen(added, MASK)
    return tl.where(seen, t, float("-inf"))


@triton.jit
def _values(v, start, keys, v_s, v_d, BN: tl.constexpr, BV: tl.constexpr, DV: tl.constexpr):
    j = start + tl.arange(0, BN)
    c = tl.arange(0, BV)[None, :]
    at = v + j.to(tl.int64)[:, None] * v_s + c * v_d
    return tl.load(at, mask=(j < keys)[:, None] & (c < DV), other=0)


@triton.jit
def _power(t, NATURAL: tl.constexpr):
    """e^t, of a t that is times log2(e) already unless NATURAL."""
    return tl.exp2(t * LOG2E) if NATURAL else tl.exp2(t)


@triton.jit
def _base(largest):
    return tl.where(largest == float("-inf"), 0.0, largest)


@triton.jit
def forward(q, k, v, mask, sinks, lengths, q_offsets, k_offsets, out, lse,
            heads, key_heads, queries, keys, count, tiles, left, right, inner, outer,
            q_b, q_h, q_s, q_d, k_b, k_h, k_s, k_d, v_b, v_h, v_s, v_d, m_b, m_h, m_s, m_key,
            sink_step, l_step, qo_step, ko_step, o_b, o_h, o_s, o_d, lse_b, lse_h, lse_s,
            KIND: tl.constexpr, OKIND: tl.constexpr, DOT16: tl.constexpr, MASK: tl.constexpr,
            SINKS: tl.constexpr, SOFTCAP: tl.constexpr, LENGTHS: tl.constexpr,
            PACKED: tl.constexpr, STEPS: tl.constexpr, BOTTOM: tl.constexpr, D: tl.constexpr,
            DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
            BV: tl.constexpr):  # fmt: skip
    """MASK, SINKS: kinds, -1 for none. STEPS: of a search among the sequences."""
    NATURAL: tl.constexpr = MASK >= 0 and MASK != BOOL
    group = heads // key_heads
    tile = tiles - 1 - tl.program_id(0) % tiles
    key_head = tl.program_id(0) // tiles % key_heads
    batch = tl.program_id(0) // tiles // key_heads
    row = tile * BM + tl.arange(0, BM)
    inside = row < queries * group
    query = row // group
    head = (key_head * group + row % group).to(tl.int64)
    begin, end = _range(query, inside, batch, lengths, l_step, q_offsets, qo_step, k_offsets,
                        ko_step, count, queries, keys, left, right, LENGTHS, PACKED, STEPS,
                        BOTTOM)  # fmt: skip
    lo = tl.min(tl.where(begin < end, begin, keys), axis=0)
    hi = tl.max(tl.where(begin < end, end, 0), axis=0)

    far = batch.to(tl.int64)
    query = query.to(tl.int64)
    k += far * k_b + key_head.to(tl.int64) * k_h
    v += far * v_b + key_head.to(tl.int64) * v_h
    c = tl.arange(0, BD)[None, :]
    at = q + (far * q_b + head * q_h + query * q_s)[:, None] + c * q_d
    x = _operand(tl.load(at, mask=inside[:, None] & (c < D), other=0), KIND, DOT16)
    m_row = mask + (far * m_b + head * m_h + query * m_s)[:, None]

    largest = tl.full((BM,), float("-inf"), tl.float32)
    if SINKS >= 0:
        sink = tl.load(sinks + head * sink_step, mask=inside, other=0)
        largest = d.widen(sink, SINKS) * (1.0 if NATURAL else LOG2E)
    total = _power(largest - _base(largest), NATURAL)
    if SINKS < 0:
        total = tl.zeros((BM,), tl.float32)
    sums = tl.zeros((BM, BV), tl.float32)
    for start in range(lo, hi, BN):
        t = _logits(x, k, mask, start, keys, begin, end, k_s, k_d, m_row, m_key, inner, outer,
                    KIND, DOT16, MASK, SOFTCAP, BN, BD, D)  # fmt: skip
        above = tl.maximum(largest, tl.max(t, axis=1))
        base = _base(above)
        p = _power(t - base[:, None], NATURAL)
        shrunk = _power(largest - base, NATURAL)
        total = total * shrunk + tl.sum(p, axis=1)
        values = _operand(_values(v, start, keys, v_s, v_d, BN, BV, DV), KIND, DOT16)
        sums = sums * shrunk[:, None]
        sums = tl.dot(_weights(p, KIND, DOT16), values, sums, input_precision="ieee")
        largest = above
    base = _base(largest)

    bad = tl.sum(tl.sum((d.abs_bits(sums) >= d.F32_INF).to(tl.int32), axis=1), axis=0)
    if bad > 0:
        sums = tl.zeros((BM, BV), tl.float32)
        for start in range(lo, hi, BN):
            t = _logits(x, k, mask, start, keys, begin, end, k_s, k_d, m_row, m_key, inner, outer,
                        KIND, DOT16, MASK, SOFTCAP, BN, BD, D)  # fmt: skip
            p = _power(t - base[:, None], NATURAL)
            p = tl.where(p < SMALLEST_WEIGHT, 0.0, p)
            values = d.widen(_values(v, start, keys, v_s, v_d, BN, BV, DV), KIND)
            is_number = d.abs_bits(values) < d.F32_INF
            number = tl.where(is_number, values, 0.0).to(x.dtype)
            sums = tl.dot(_weights(p, KIND, DOT16), number, sums, input_precision="ieee")
            # Of the others each that goes up counts 1, each that goes down 128; NaN does both.
            others = tl.where(values == float("-inf"), 128.0, tl.where(values > 0, 1.0, 129.0))
            others = tl.where(is_number, 0.0, others).to(x.dtype)
            count_of = tl.dot((p > 0).to(x.dtype), others, input_precision="ieee").to(tl.int32)
            sums += tl.where((count_of & 127) > 0, float("inf"), 0.0)
            sums += tl.where(count_of > 127, float("-inf"), 0.0)

    unit = 32768.0 if DOT16 and KIND == d.F16 else 1.0
    y = tl.div_rn(sums, total[:, None] * unit + tl.zeros((BM, BV), tl.float32))
    y = tl.where((total == 0)[:, None], 0.0, y)
    c = tl.arange(0, BV)[None, :]
    at = out + (far * o_b + head * o_h + query * o_s)[:, None] + c * o_d
    tl.store(at, d.narrow(y, OKIND), mask=inside[:, None] & (c < DV))
    at = lse + far * lse_b + head * lse_h + query * lse_s
    tl.store(at, base * (1.0 if NATURAL else LN2) + tl.log2(total) * LN2, mask=inside)


def _refuses(q, k, v, mask, *others, **options):
    largest = max(q.shape[3], v.shape[3])
    if largest > LARGEST_HEAD:
        return f"has heads of {LARGEST_HEAD} elements at most, not of {largest}"
    if max(q.shape[2] * q.shape[1] // k.shape[1], k.shape[2]) >= _MOST:
        return f"has less than {_MOST} keys, and queries of the heads that share them"
    return None


def _tile(q: torch.Tensor, rows: int, value_depth: int) -> dict:
    """Sizes that registers hold (found by compiling), and for f32, whose products are unrolled,
    code that compiles in seconds."""
    deep, wide = (max(16, power_of_2(n)) for n in (q.shape[3], value_depth))
    widest = max(deep, wide)
    if q.dtype != torch.float32:
        # Rows of v no shorter than k's, up to the 128 bytes of a swizzle: where they are shorter,
        # ptxas 12.8 (Triton 3.6 has it for Hopper) makes wgmma's descriptors of v from registers
        # that hold other things, and the product reads outside of shared memory.
        wide = max(wide, min(deep, 64))
    if q.dtype == torch.float32:
        high, across, warps = 32, 32 if widest <= 64 else 16, 8
    elif widest > 128:
        high, across, warps = 64, 32, 8
    elif capability_of(q) >= (9, 0):
        high, across, warps = 128, 64, 8
    else:
        high, across, warps = 64, 32, 4
    high = max(16, min(high, power_of_2(rows)))
    return {"BM": high, "BN": across, "BD": deep, "BV": wide, "warps": warps if high > 16 else 4,
            "num_stages": 1 if q.dtype == torch.float32 else 2}  # fmt: skip


def _strides(t: torch.Tensor | None, count: int) -> list[int]:
    """A dimension of 1 stands still."""
    if t is None:
        return [0] * count
    return [0 if n == 1 else s for n, s in zip(t.shape, t.stride(), strict=True)]


@implements("attention", backend="triton", refuses=_refuses)
def attention(
    q, k, v, mask, sinks, key_lengths, q_offsets, k_offsets, *, scale, softcap, causal,
    window_left, window_right, align, precision, deterministic, out_dtype=None, out=None,
):  # fmt: skip
    if out is None:
        shape = (*q.shape[:3], v.shape[3])
        out = (q.new_empty(shape, dtype=out_dtype or q.dtype),
               q.new_empty(shape[:3], dtype=torch.float32))  # fmt: skip
    made, lse = out
    batches, heads, queries, depth = q.shape
    key_heads, keys, value_depth = k.shape[1], k.shape[2], v.shape[3]
    most = queries + keys
    left = most if window_left < 0 else min(window_left, most)
    right = most if window_right < 0 else min(window_right, most)
    scale = scale or 1 / math.sqrt(max(depth, 1))
    unit = 1.0 if mask is not None and mask.dtype != torch.bool else LOG2E.value
    inner, outer = (scale / softcap, softcap * unit) if softcap else (scale * unit, 0.0)
    rows = queries * (heads // key_heads)
    tile = _tile(q, rows, value_depth)
    tiles = cdiv(rows, tile["BM"])
    # The interpreter multiplies bf16 as integers.
    dot16 = q.dtype == torch.float16 or (q.dtype == torch.bfloat16 and not d.INTERPRETED.value)
    nothing = lse
    launch(
        forward, tiles * key_heads * batches if lse.numel() else 0, q, raw(q), raw(k), raw(v),
        *(nothing if t is None else raw(t) for t in (mask, sinks, key_lengths, q_offsets,
                                                     k_offsets)),
        raw(made), lse, heads, key_heads, queries, keys,
        0 if q_offsets is None else q_offsets.shape[0], tiles, left, 0 if causal else right,
        inner, outer, *q.stride(), *k.stride(), *v.stride(), *_strides(mask, 4),
        *(0 if t is None else t.stride(0) for t in (sinks, key_lengths, q_offsets, k_offsets)),
        *made.stride(), *lse.stride(), KIND=kind(q.dtype), OKIND=kind(made.dtype), DOT16=dot16,
        MASK=-1 if mask is None else BOOL.value if mask.dtype == torch.bool else kind(mask.dtype),
        SINKS=-1 if sinks is None else kind(sinks.dtype), SOFTCAP=softcap != 0,
        LENGTHS=key_lengths is not None, PACKED=q_offsets is not None,
        STEPS=0 if q_offsets is None else q_offsets.shape[0].bit_length(),
        BOTTOM=align == "bottom_right", D=depth, DV=value_depth, **tile,
    )  # fmt: skip
    return out
