"""Properties that hold for every shape, stride, dtype and scale, tried by Hypothesis."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import (
    BF16,
    E4M3,
    E5M2,
    F16,
    F32,
    FLOATS,
    assert_same_codes,
    assert_same_values,
    dequantize_fp8,
    dequantize_int4,
    dequantize_int8,
    dequantize_mxfp4,
    dequantize_mxfp8,
    dequantize_nvfp4,
    dequantize_w4a8,
    quantize_fp8,
    quantize_int4,
    quantize_int8,
    quantize_mxfp4,
    quantize_mxfp8,
    quantize_nvfp4,
    quantize_w4a8,
)
from pestle_ctypes import call, impls

settings.register_profile(
    "pestle", max_examples=60, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
settings.load_profile("pestle")

seeds = st.integers(0, 2**32 - 1)
rows = st.integers(1, 70)
dtypes = st.sampled_from(FLOATS)
fp8_codes = st.sampled_from((E4M3, E5M2))


def normal(seed: int, shape: tuple[int, ...], dtype=F32, scale: float = 1.0) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal(shape) * scale
    return x.astype(np.float32).astype(dtype)


class Format:
    """quantize(x) gives codes and scales by row, dequantize(them) f32; K is a multiple of block."""

    def __init__(self, op, block, quantize, dequantize, limit):
        self.op, self.block = op, block
        self.quantize, self.dequantize = quantize, dequantize
        self.limit = limit  # of |x - decoded| in units of the block's (or row's) amax

    def __repr__(self):
        return self.op


ONE = np.ones(1, np.float32)
FORMATS = [
    Format("quantize_fp8", 1, lambda x, impl=None: quantize_fp8(x, granularity="row", impl=impl),
           lambda q, s: dequantize_fp8(q, s, granularity="row"), 2.0**-4),
    Format("quantize_nvfp4", 16,
           lambda x, impl=None: quantize_nvfp4(x, ONE / 64, scale_layout="plain", impl=impl)[:2],
           lambda q, s: dequantize_nvfp4(q, s, ONE / 64, scale_layout="plain"), 0.25),
    Format("quantize_mxfp8", 32,
           lambda x, impl=None: quantize_mxfp8(x, scale_layout="plain", impl=impl),
           lambda q, s: dequantize_mxfp8(q, s, scale_layout="plain"), 2.0**-4),
    Format("quantize_mxfp4", 32, lambda x, impl=None: quantize_mxfp4(x, impl=impl),
           lambda q, s: dequantize_mxfp4(q, s), 0.34),
    Format("quantize_int8", 1, lambda x, impl=None: quantize_int8(x, impl=impl),
           lambda q, s: dequantize_int8(q, s), 0.5 / 127 * 1.001),
    Format("quantize_int4", 32, lambda x, impl=None: quantize_int4(x, 32, impl=impl)[:2],
           lambda q, s: dequantize_int4(q, s, group_size=32), 0.5 / 7 * 1.001),
]  # fmt: skip
every_format = pytest.mark.parametrize("format", FORMATS, ids=repr)


@every_format
@given(seed=seeds, rows=rows, blocks=st.integers(1, 9), dtype=dtypes)
def test_rows_are_independent(format, seed, rows, blocks, dtype):
    """Permuting rows permutes codes and scales; so no row sees another."""
    x = normal(seed, (rows, blocks * format.block), dtype)
    order = np.random.default_rng(seed).permutation(rows)
    q, s = format.quantize(x)
    q_moved, s_moved = format.quantize(np.ascontiguousarray(x[order]))
    assert_same_codes(q_moved, q[order])
    assert_same_codes(s_moved, s[order])


@every_format
@given(seed=seeds, rows=rows, blocks=st.integers(1, 9), dtype=dtypes)
def test_error_is_within_half_a_step(format, seed, rows, blocks, dtype):
    x = normal(seed, (rows, blocks * format.block), dtype)
    decoded = format.dequantize(*format.quantize(x)).astype(np.float64)
    wide = x.astype(np.float64)
    size = format.block if format.block > 1 else x.shape[1]
    amax = np.abs(wide).reshape(-1, size).max(1, keepdims=True)
    assert (np.abs(decoded - wide).reshape(-1, size) <= format.limit * amax).all()


@every_format
@given(seed=seeds, rows=rows, blocks=st.integers(1, 5), dtype=dtypes, step=st.integers(1, 3),
       reverse=st.booleans())  # fmt: skip
def test_strided_views_equal_copies(format, seed, rows, blocks, dtype, step, reverse):
    """Any strides in, on every implementation that takes them, the same as a dense copy."""
    k = blocks * format.block
    store = normal(seed, (rows * 2, k * step + 3), dtype)
    view = store[::2, 3 : 3 + k * step : step]
    view = view[::-1] if reverse else view
    q, s = format.quantize(np.ascontiguousarray(view))
    q_view, s_view = format.quantize(view)
    assert_same_codes(q_view, q)
    assert_same_codes(s_view, s)
    columns = np.asfortranarray(np.ascontiguousarray(view))
    q_columns, _ = format.quantize(columns)
    assert_same_codes(q_columns, q)


@every_format
@given(seed=seeds, rows=rows, blocks=st.integers(1, 9), dtype=dtypes)
def test_implementations_agree(format, seed, rows, blocks, dtype):
    x = normal(seed, (rows, blocks * format.block), dtype, 3.0)
    want = format.quantize(x, "reference")
    for impl in impls(format.op):
        for got, right in zip(format.quantize(x, impl), want, strict=True):
            assert_same_codes(got, right)


@given(seed=seeds, rows=rows, k=st.integers(1, 300), code=fp8_codes, exponent=st.integers(-60, 60))
def test_fp8_is_idempotent(seed, rows, k, code, exponent):
    """Quantising what was dequantised, by the same scale, gives the same codes."""
    scale = np.abs(normal(seed, (1,))) * np.float32(2.0**exponent) + np.float32(2.0**-100)
    codes = np.random.default_rng(seed).integers(0, 256, (rows, k), np.uint8)
    nan = np.isnan(codes.view(code).astype(np.float32))
    codes[nan] = 0x7F
    if code == E5M2:
        codes[(codes & 0x7F) == 0x7C] = 0x7B  # Inf is read but never written
    q, _ = quantize_fp8(dequantize_fp8(codes.view(code), scale), code, scale)
    assert_same_codes(q.view(np.uint8), codes)


@given(seed=seeds, rows=rows, k=st.integers(1, 300), exponent=st.integers(-60, 60))
def test_int8_is_idempotent(seed, rows, k, exponent):
    scale = np.abs(normal(seed, (rows, 1))) * np.float32(2.0**exponent) + np.float32(1e-29)
    codes = np.random.default_rng(seed).integers(-128, 128, (rows, k), np.int8)
    q, _ = quantize_int8(dequantize_int8(codes, scale), scale)
    assert_same_codes(q, codes)


@given(seed=seeds, rows=rows, blocks=st.integers(1, 9))
def test_nvfp4_is_idempotent(seed, rows, blocks):
    """When each block holds a 6, its scale is found again, and so are all codes."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (rows, blocks, 16), np.uint8)
    codes[..., 3] = 7
    codes = codes.reshape(rows, -1)
    q = codes[:, 0::2] << 4 | codes[:, 1::2]
    scale = rng.integers(0x08, 0x7F, (rows, blocks), np.uint8).view(E4M3)
    g = np.array([2.0**-7], np.float32)
    x = dequantize_nvfp4(q, scale, g, scale_layout="plain")
    again, scale_again, _ = quantize_nvfp4(x, g, scale_layout="plain")
    assert_same_codes(scale_again, scale)
    assert_same_codes(again, q)


@given(seed=seeds, rows=rows, k=st.integers(1, 200), code=fp8_codes, exponent=st.integers(-40, 40))
def test_power_of_two_moves_into_f32_scales(seed, rows, k, code, exponent):
    x = normal(seed, (rows, k))
    factor = np.float32(2.0**exponent)
    for granularity in ("tensor", "row", "column", "block_1x128", "block_128x128"):
        q, s = quantize_fp8(x, code, granularity=granularity)
        q_moved, s_moved = quantize_fp8(x * factor, code, granularity=granularity)
        assert_same_codes(q_moved, q)
        assert_same_values(s_moved, s * factor)
    for granularity in ("tensor", "row", "group"):
        q, s = quantize_int8(x, granularity=granularity, group_size=32)
        q_moved, s_moved = quantize_int8(x * factor, granularity=granularity, group_size=32)
        assert_same_codes(q_moved, q)
        assert_same_values(s_moved, s * factor)


@given(seed=seeds, rows=rows, blocks=st.integers(1, 6), exponent=st.integers(-30, 30))
def test_power_of_two_moves_into_block_scales(seed, rows, blocks, exponent):
    x = normal(seed, (rows, blocks * 32))
    factor = np.float32(2.0**exponent)
    for quantize in (quantize_mxfp8, quantize_mxfp4):
        q, e = quantize(x, scale_layout="plain")
        q_moved, e_moved = quantize(x * factor, scale_layout="plain")
        assert_same_codes(q_moved, q)
        assert (e_moved.view(np.uint8).astype(int) == e.view(np.uint8).astype(int) + exponent).all()
    q, s, g = quantize_nvfp4(x, scale_layout="plain")
    q_moved, s_moved, g_moved = quantize_nvfp4(x * factor, scale_layout="plain")
    assert_same_codes(q_moved, q)
    assert_same_codes(s_moved, s)
    assert_same_values(g_moved, g * factor)


@given(seed=seeds, rows=rows, k=st.integers(1, 200), code=fp8_codes, dtype=dtypes)
def test_sign_is_only_a_sign(seed, rows, k, code, dtype):
    x = normal(seed, (rows, k), dtype)
    q, s = quantize_fp8(x, code)
    q_negative, s_negative = quantize_fp8(-x, code)
    assert_same_codes(s_negative, s)
    assert_same_codes(q_negative.view(np.uint8), q.view(np.uint8) ^ 0x80)
    q, _ = quantize_int8(x)
    q_negative, _ = quantize_int8(-x)
    assert (q_negative == -q).all()


@given(seed=seeds, rows=st.integers(1, 40), k=st.integers(1, 100), code=fp8_codes)
def test_padding_adds_zeros_only(seed, rows, k, code):
    """pad=true equals quantising a matrix that was padded with zeros by hand."""
    x = normal(seed, (rows, k))
    wide16 = np.zeros((-(-rows // 16) * 16, -(-k // 16) * 16), np.float32)
    wide32 = np.zeros((-(-rows // 32) * 32, -(-k // 32) * 32), np.float32)
    wide16[:rows, :k], wide32[:rows, :k] = x, x
    for layout in ("plain", "swizzled"):
        for got, want in (
            (quantize_nvfp4(x, pad=True, scale_layout=layout),
             quantize_nvfp4(wide16, scale_layout=layout)),
            (quantize_mxfp8(x, code, pad=True, scale_layout=layout),
             quantize_mxfp8(wide32, code, scale_layout=layout)),
            (quantize_mxfp4(x, pad=True, scale_layout=layout),
             quantize_mxfp4(wide32, scale_layout=layout)),
        ):  # fmt: skip
            for one, other in zip(got, want, strict=True):
                assert_same_codes(one, other)


@given(seed=seeds, rows=st.integers(1, 40), columns=st.integers(1, 300),
       dtype=st.sampled_from((E4M3, np.dtype(np.uint8))))  # fmt: skip
def test_swizzle_comes_back(seed, rows, columns, dtype):
    scale = np.random.default_rng(seed).integers(0, 256, (rows, columns), np.uint8).view(dtype)
    there = np.empty((-(-rows // 128) * 128, -(-columns // 4) * 4), dtype)
    call("swizzle_scales", scale=scale, out=there)
    back = np.empty_like(scale)
    call("unswizzle_scales", scale=there, out=back, rows=rows, columns=columns)
    assert_same_codes(back, scale)
    # What the tiles add is zeros: every byte of the scales is there once.
    assert np.bincount(there.view(np.uint8).ravel(), minlength=256)[1:].tolist() == \
        np.bincount(scale.view(np.uint8).ravel(), minlength=256)[1:].tolist()  # fmt: skip


@given(seed=seeds, n=st.integers(1, 5), k=st.integers(1, 6), first=st.sampled_from(
    ("plain", "plain_unsigned", "kaio", "gptq", "awq")))  # fmt: skip
def test_repacking_comes_back_by_any_way(seed, n, k, first):
    n, k = n * 8, k * 8
    shapes = {
        "plain": ((n, k // 2), np.uint8),
        "plain_unsigned": ((n, k // 2), np.uint8),
        "kaio": ((n, k // 8), np.uint32),
        "gptq": ((k // 8, n), np.int32),
        "awq": ((k, n // 8), np.int32),
    }
    start = np.random.default_rng(seed).integers(0, 256, (n, k // 2), np.uint8)
    steps = ["plain", first, *np.random.default_rng(seed).permutation(list(shapes)), "plain"]
    q = start
    for before, after in pairwise(steps):
        shape, dtype = shapes[after]
        out = np.empty(shape, dtype)
        call("repack_int4", q=q, out=out, from_packing=str(before), to_packing=str(after))
        q = out
    assert_same_codes(q, start)


@given(
    seed=seeds,
    rows=st.integers(1, 20),
    groups=st.integers(1, 4),
    size=st.sampled_from((4, 16, 64, 256)),
)
def test_rotation_keeps_what_a_linear_computes(seed, rows, groups, size):
    """Quantised, dequantised and rotated back, int8-convrot is near the weight, as int8 is."""
    x = normal(seed, (rows, groups * size))
    q, s = quantize_int8(x, hadamard=size)
    decoded = dequantize_int8(q, s, hadamard=size)
    norms = np.linalg.norm(decoded - x, axis=1), np.linalg.norm(x, axis=1)
    assert (norms[0] <= 0.05 * norms[1] + 1e-6).all()


@given(seed=seeds, rows=st.integers(1, 30), groups=st.integers(1, 12), dtype=dtypes)
def test_w4a8_rows_and_error(seed, rows, groups, dtype):
    x = normal(seed, (rows, groups * 16), dtype)
    order = np.random.default_rng(seed).permutation(rows)
    coded = quantize_w4a8(x)
    for one, other in zip(quantize_w4a8(np.ascontiguousarray(x[order])), coded, strict=True):
        assert_same_codes(one, other[order])
    wide = x.astype(np.float64)
    error = np.linalg.norm(dequantize_w4a8(*coded) - wide, axis=1)
    assert (error <= 0.2 * np.linalg.norm(wide, axis=1)).all()


@given(seed=seeds, shape=st.lists(st.integers(0, 5), min_size=1, max_size=5), dtype=dtypes)
def test_any_rank_and_emptiness(seed, shape, dtype):
    """Leading dimensions are rows, whatever their number; empty tensors are fine."""
    x = normal(seed, tuple(shape), dtype)
    flat = x.reshape(int(np.prod(shape[:-1])), shape[-1])
    q, s = quantize_int8(x)
    q_flat, s_flat = quantize_int8(flat)
    assert_same_codes(q.reshape(flat.shape), q_flat)
    assert_same_codes(s.reshape(-1), s_flat.reshape(-1))
    q, s = quantize_fp8(x)
    q_flat, s_flat = quantize_fp8(flat)
    assert_same_codes(q.reshape(flat.shape), q_flat)
    assert_same_codes(s, s_flat)


@given(seed=seeds, offset=st.integers(0, 15), dtype=st.sampled_from((BF16, F16, F32)))
def test_any_alignment(seed, offset, dtype):
    """Memory that starts at any byte."""
    want = normal(seed, (5, 67), dtype)
    store = np.zeros(want.nbytes + 16, np.uint8)
    store[offset : offset + want.nbytes] = want.view(np.uint8).ravel()
    x = np.ndarray(want.shape, dtype, store, offset)
    for got, right in zip(quantize_fp8(x), quantize_fp8(want), strict=True):
        assert_same_codes(got, right)
    for got, right in zip(quantize_int8(x), quantize_int8(want), strict=True):
        assert_same_codes(got, right)
