"""Codes and values of every format against ml_dtypes and PyTorch, which share no code with us, and
against docs/formats written again in numpy. Every implementation, every instruction set."""

import numpy as np
import pytest
import torch
from oracles import (
    BF16,
    E2M1,
    E4M3,
    E5M2,
    E8M0,
    F16,
    F32,
    FLOATS,
    LARGEST,
    all_16_bit,
    assert_same_codes,
    assert_same_values,
    dequantize_fp8,
    dequantize_int4,
    dequantize_int8,
    dequantize_mxfp4,
    dequantize_mxfp8,
    dequantize_nvfp4,
    each_variant,
    fp8_scale_shape,
    pack_nibbles,
    quantize_fp8,
    quantize_int4,
    quantize_int8,
    quantize_mxfp4,
    quantize_mxfp8,
    quantize_nvfp4,
    saturated_codes,
    to_numpy,
    to_torch,
    unswizzled,
)
from pestle_ctypes import call

ONE = np.ones(1, np.float32)
FP8 = (E4M3, E5M2)
CANONICAL_NAN = np.float32(np.nan)


def random_f32_bits(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, count, np.uint32).view(np.float32)


def inputs(dtype: np.dtype, columns: int = 256) -> np.ndarray:
    """All values of a 16-bit dtype, or a million f32 bit patterns, as rows in a mixed order."""
    values = random_f32_bits(2**20, 1) if dtype == F32 else all_16_bit(dtype)
    order = np.random.default_rng(2).permutation(values.size)
    return values[order].reshape(-1, columns)


def torch_codes(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """saturated_codes, by PyTorch."""
    kind = {E4M3: torch.float8_e4m3fn, E5M2: torch.float8_e5m2}[dtype]
    clamped = torch.from_numpy(values).clamp(-LARGEST[dtype], LARGEST[dtype])
    codes = clamped.to(kind).view(torch.uint8).numpy()
    return np.where(np.isnan(values), 0x7F, codes).astype(np.uint8)


# ---- FP8


@pytest.mark.parametrize("code", FP8, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fp8_codes_of_every_input(dtype, code):
    x = inputs(dtype)
    values = x.astype(np.float32)
    want = saturated_codes(values, code)
    assert_same_codes(torch_codes(values, code), want)  # the oracles agree with each other
    for impl in each_variant("quantize_fp8"):
        q, _ = quantize_fp8(x, code, ONE, impl=impl)
        assert_same_codes(q.view(np.uint8), want)


def test_oracles_do_not_saturate():
    """Why saturated_codes clamps: an overflow is NaN in E4M3, Inf in E5M2, in both libraries."""
    for values, code, want in (
        ([465, np.inf], E4M3, [0x7F] * 2),
        ([61441, np.inf], E5M2, [0x7C] * 2),
    ):
        x = np.array(values, np.float32)
        assert x.astype(code).view(np.uint8).tolist() == want
        kind = {E4M3: torch.float8_e4m3fn, E5M2: torch.float8_e5m2}[code]
        assert torch.from_numpy(x).to(kind).view(torch.uint8).tolist() == want
        q, _ = quantize_fp8(x.reshape(1, 2), code, ONE)
        assert q.astype(np.float32).tolist() == [[LARGEST[code]] * 2]


@pytest.mark.parametrize("code", FP8, ids=str)
@pytest.mark.parametrize("scale", [0.37, 3e-39, 1e30, 0.0, np.inf, np.nan])
def test_fp8_codes_under_a_given_scale(scale, code):
    x = inputs(BF16)
    s = np.array([scale], np.float32)
    with np.errstate(all="ignore"):
        want = saturated_codes(x.astype(np.float32) / s, code)
    for impl in each_variant("quantize_fp8"):
        q, _ = quantize_fp8(x, code, s, impl=impl)
        assert_same_codes(q.view(np.uint8), want)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("code", FP8, ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.37, 2.0**-120])
def test_fp8_values_of_every_code(code, dtype, scale):
    q = np.arange(256, dtype=np.uint8).view(code).reshape(1, 256)
    s = np.array([scale], np.float32)
    by_ml_dtypes = (q.astype(np.float32) * s).astype(dtype)
    by_torch = to_numpy(
        (to_torch(q).float() * torch.from_numpy(s)).to(to_torch(by_ml_dtypes).dtype)
    )
    assert_same_values(by_torch, by_ml_dtypes)
    for impl in each_variant("dequantize_fp8"):
        assert_same_values(dequantize_fp8(q, s, dtype, impl=impl), by_ml_dtypes)


def spread(small: np.ndarray, granularity: str, shape: tuple[int, int]) -> np.ndarray:
    """One scale for each element."""
    down = {"block_128x128": 128}.get(granularity, 1)
    right = {"block_128x128": 128, "block_1x128": 128}.get(granularity, 1)
    grown = small.repeat(down, 0).repeat(right, 1) if small.ndim == 2 else small.reshape(1, 1)
    if granularity in ("tensor", "row", "column"):
        return np.broadcast_to(grown, shape)
    return grown[: shape[0], : shape[1]]


@pytest.mark.parametrize("granularity", ["tensor", "row", "column", "block_1x128", "block_128x128"])
@pytest.mark.parametrize("code", FP8, ids=str)
def test_fp8_computed_scales(granularity, code):
    x = np.random.default_rng(3).standard_normal((130, 257)).astype(np.float32)
    x[3] = 0
    x[5, 7] = 1e-44  # alone in nothing, but a row of it needs the floor
    x[6] = 1e-44
    down = {"block_128x128": 128, "tensor": 130, "column": 130}.get(granularity, 1)
    right = {"tensor": 257, "row": 257, "column": 1}.get(granularity, 128)
    amax = np.array([[np.abs(x[i : i + down, j : j + right]).max() for j in range(0, 257, right)]
                     for i in range(0, 130, down)], np.float32)  # fmt: skip
    want_scale = np.maximum(amax / np.float32(LARGEST[code]), np.float32(2.0**-126))
    want_scale = want_scale.reshape(fp8_scale_shape(x.shape, granularity))
    want = saturated_codes(x / spread(want_scale, granularity, x.shape), code)
    for impl in each_variant("quantize_fp8"):
        q, scale = quantize_fp8(x, code, granularity=granularity, impl=impl)
        assert_same_codes(scale, want_scale)
        assert_same_codes(q.view(np.uint8), want)


# ---- NVFP4


def nvfp4_of(x: np.ndarray, g: np.float32):
    """docs/formats/nvfp4.md for x in f32: E2M1 codes, E4M3 scale codes."""
    blocks = x.reshape(-1, 16)
    amax = np.abs(blocks).max(1)  # keeps NaN
    with np.errstate(all="ignore"):
        t = (amax / np.float32(6)) / g
        s = saturated_codes(np.where(t > 448, np.float32(448), t), E4M3)
        zero = (amax == 0) | (g == 0)
        s = np.where(zero, 0, s).astype(np.uint8)
        d = s.view(E4M3).astype(np.float32) * g
        codes = saturated_codes(blocks / d[:, None], E2M1)
    codes[zero | (d == 0)] = 0
    return codes.reshape(x.shape), s.reshape(x.shape[0], -1)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("g", [1.0, 0.0137, 1e-38, 0.0, np.nan])
def test_nvfp4_codes_of_every_input(dtype, g):
    x = inputs(dtype)
    scale = np.array([g], np.float32)
    codes, scales = nvfp4_of(x.astype(np.float32), scale[0])
    for impl in each_variant("quantize_nvfp4"):
        for nibbles in ("high_first", "low_first"):
            q, s, _ = quantize_nvfp4(x, scale, nibbles, "plain", impl=impl)
            assert_same_codes(s.view(np.uint8), scales)
            assert_same_codes(q, pack_nibbles(codes, nibbles == "high_first"))
        q, s, _ = quantize_nvfp4(x, scale, impl=impl)
        assert_same_codes(unswizzled(s.view(np.uint8), *scales.shape), scales)


def test_nvfp4_rounds_every_16_bit_input_as_ml_dtypes_does():
    """A 6 in each block makes its scale 1, so the other codes are ml_dtypes' conversion alone."""
    for dtype in (BF16, F16):
        values = all_16_bit(dtype)
        values = values[np.abs(values.astype(np.float32)) <= 6]
        blocks = np.full((-(-values.size // 15), 16), 6, dtype)
        blocks[:, 1:].flat[: values.size] = values
        want = blocks.astype(np.float32).astype(E2M1).view(np.uint8)
        for impl in each_variant("quantize_nvfp4"):
            q, s, _ = quantize_nvfp4(blocks, ONE, scale_layout="plain", impl=impl)
            assert (s.astype(np.float32) == 1).all()
            assert_same_codes(q, pack_nibbles(want, True))


def test_nvfp4_computed_global_scale():
    for dtype in FLOATS:
        x = np.random.default_rng(4).standard_normal((33, 64)).astype(dtype)
        want = np.abs(x).max().astype(np.float32) / np.float32(2688)
        for impl in each_variant("quantize_nvfp4"):
            _, _, g = quantize_nvfp4(x, impl=impl)
            assert g[0] == want


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nvfp4_values_of_every_code_and_scale(dtype):
    q = np.tile(np.arange(16, dtype=np.uint8), (256, 1))
    scale = np.arange(256, dtype=np.uint8).view(E4M3).reshape(256, 1)
    for g in (1.0, 0.0137, 3e-39):
        factor = scale.astype(np.float32) * np.float32(g)
        want = (q.view(E2M1).astype(np.float32) * factor).astype(dtype)
        for impl in each_variant("dequantize_nvfp4"):
            for nibbles in ("high_first", "low_first"):
                got = dequantize_nvfp4(pack_nibbles(q, nibbles == "high_first"), scale,
                                       np.array([g], np.float32), dtype, nibbles, "plain",
                                       impl)  # fmt: skip
                assert_same_values(got, want)


# ---- MX


def e8m0_of(amax: np.ndarray, largest: float) -> np.ndarray:
    """The smallest e with amax <= largest * 2^(e-127), found by trying all 255 in f64."""
    e = np.arange(255)
    amax = amax.astype(np.float64)
    fits = amax[:, None] <= largest * 2.0 ** (e - 127)
    code = np.where(amax == 0, 0, np.argmax(fits, 1))
    # An infinite block takes the exponent that follows f32's largest.
    infinite = 127 + 128 - int(np.floor(np.log2(largest)))
    code = np.where(np.isinf(amax), infinite, code)
    return np.where(np.isnan(amax), 255, code).astype(np.uint8)


def mx_of(x: np.ndarray, code: np.dtype):
    blocks = x.reshape(-1, 32)
    e = e8m0_of(np.abs(blocks).max(1), LARGEST[code])
    with np.errstate(all="ignore"):
        # In f64, where the product by a power of two is exact, then to f32 as the rule says.
        scaled = blocks.astype(np.float64) * 2.0 ** (127.0 - e.astype(np.float64))[:, None]
        codes = saturated_codes(scaled.astype(np.float32), code)
    codes[np.isnan(blocks).any(1)] = 0x07 if code == E2M1 else 0x7F
    codes[(np.abs(blocks) == 0).all(1)] = 0
    return codes.reshape(x.shape), e.reshape(x.shape[0], -1)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("code", FP8, ids=str)
def test_mxfp8_codes_of_every_input(dtype, code):
    x = inputs(dtype)
    codes, scales = mx_of(x.astype(np.float32), code)
    for impl in each_variant("quantize_mxfp8"):
        q, s = quantize_mxfp8(x, code, "plain", impl=impl)
        assert_same_codes(s.view(np.uint8), scales)
        assert_same_codes(q.view(np.uint8), codes)
        q, s = quantize_mxfp8(x, code, impl=impl)
        assert_same_codes(q.view(np.uint8), codes)
        assert_same_codes(unswizzled(s.view(np.uint8), *scales.shape), scales)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_mxfp4_codes_of_every_input(dtype):
    x = inputs(dtype)
    codes, scales = mx_of(x.astype(np.float32), E2M1)
    for impl in each_variant("quantize_mxfp4"):
        for nibbles in ("high_first", "low_first"):
            q, s = quantize_mxfp4(x, nibbles, impl=impl)
            assert_same_codes(s.view(np.uint8), scales)
            assert_same_codes(q, pack_nibbles(codes, nibbles == "high_first"))


@pytest.mark.parametrize("dtype", (BF16, F16), ids=str)
def test_mx_scale_of_every_amax(dtype):
    """Each 16-bit value alone in a block of zeros decides its scale."""
    x = np.zeros((65536, 32), dtype)
    x[:, 5] = all_16_bit(dtype)
    amax = np.abs(x[:, 5].astype(np.float32))
    for op, quantize, largest in (
        ("quantize_mxfp8", quantize_mxfp8, 448.0),
        ("quantize_mxfp4", quantize_mxfp4, 6.0),
    ):
        want = e8m0_of(amax, largest)
        for impl in each_variant(op):
            _, s = quantize(x, scale_layout="plain", impl=impl)
            assert_same_codes(s.view(np.uint8)[:, 0], want)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("code", FP8, ids=str)
def test_mxfp8_values_of_every_code_and_scale(dtype, code):
    q = np.tile(np.arange(256, dtype=np.uint8), (256, 1)).view(code)
    scale = np.tile(np.arange(256, dtype=np.uint8)[:, None], (1, 8)).view(E8M0)
    factor = scale.astype(np.float32)
    assert_same_values(to_numpy(to_torch(scale).float()), factor)
    with np.errstate(all="ignore"):
        want = (q.astype(np.float32) * factor.repeat(32, 1)).astype(dtype)
    for impl in each_variant("dequantize_mxfp8"):
        assert_same_values(dequantize_mxfp8(q, scale, dtype, "plain", impl), want)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_mxfp4_values_of_every_code_and_scale(dtype):
    q = np.tile(np.arange(16, dtype=np.uint8), (256, 2))
    scale = np.arange(256, dtype=np.uint8).reshape(256, 1).view(E8M0)
    with np.errstate(all="ignore"):
        want = (q.view(E2M1).astype(np.float32) * scale.astype(np.float32)).astype(dtype)
    for impl in each_variant("dequantize_mxfp4"):
        assert_same_values(dequantize_mxfp4(pack_nibbles(q, False), scale, dtype, impl=impl), want)


# ---- integers


def integer_scale(amax: np.ndarray, steps: int) -> np.ndarray:
    scale = np.maximum(amax / np.float32(steps), np.float32(1e-30))
    return np.where(np.isnan(amax), CANONICAL_NAN, scale).astype(np.float32)


def integer_codes(values: np.ndarray, low: int, high: int) -> np.ndarray:
    return np.nan_to_num(np.clip(np.rint(values), low, high), nan=0).astype(np.int8)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("granularity", ["tensor", "row", "group"])
def test_int8_codes_of_every_input(dtype, granularity):
    x = inputs(dtype)
    if granularity == "tensor":  # one NaN or Inf would decide everything
        x = np.where(np.isfinite(x.astype(np.float32)), x, dtype.type(0))
    values = x.astype(np.float32)
    size = {"tensor": x.size, "row": x.shape[1], "group": 32}[granularity]
    sets = values.reshape(-1, size)
    with np.errstate(all="ignore"):
        want_scale = integer_scale(np.abs(sets).max(1), 127)
        want = integer_codes(sets / want_scale[:, None], -128, 127).reshape(x.shape)
    for impl in each_variant("quantize_int8"):
        q, s = quantize_int8(x, granularity=granularity, group_size=32, impl=impl)
        assert_same_values(s.reshape(-1), want_scale)
        assert_same_codes(q, want)


@pytest.mark.parametrize("scale", [1.0, 0.03, 0.0, np.inf, np.nan])
def test_int8_codes_under_a_given_scale(scale):
    for dtype in (BF16, F16):
        x = inputs(dtype)
        s = np.array([scale], np.float32)
        with np.errstate(all="ignore"):
            want = integer_codes(x.astype(np.float32) / s, -128, 127)
        for impl in each_variant("quantize_int8"):
            q, _ = quantize_int8(x, s, granularity="tensor", impl=impl)
            assert_same_codes(q, want)


def test_int8_values_of_every_code():
    q = np.arange(256, dtype=np.uint8).view(np.int8).reshape(1, 256)
    for scale in (0.03, 1e-39, 3e38):
        s = np.array([[scale]], np.float32)
        for dtype in FLOATS:
            with np.errstate(all="ignore"):
                want = (q.astype(np.float32) * s).astype(dtype)
            for impl in each_variant("dequantize_int8"):
                assert_same_values(dequantize_int8(q, s, dtype, impl=impl), want)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("group", [32, 64, 128, 0])
def test_int4_symmetric_codes_of_every_input(dtype, group):
    x = inputs(dtype)
    sets = x.astype(np.float32).reshape(-1, group or x.shape[1])
    with np.errstate(all="ignore"):
        want_scale = integer_scale(np.abs(sets).max(1), 7)
        want = integer_codes(sets / want_scale[:, None], -8, 7).reshape(x.shape)
    for impl in each_variant("quantize_int4"):
        q, s, _ = quantize_int4(x, group, impl=impl)
        assert_same_values(s.reshape(-1), want_scale)
        assert_same_codes(q, pack_nibbles(want.view(np.uint8) & 15, False))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_int4_asymmetric_codes_of_every_input(dtype):
    x = inputs(dtype)
    sets = x.astype(np.float32).reshape(-1, 32)
    with np.errstate(all="ignore"):
        low = np.minimum(sets.min(1), np.float32(0))
        high = np.maximum(sets.max(1), np.float32(0))
        scale = np.maximum((high - low) / np.float32(15), np.float32(1e-30))
        bad = np.isnan(scale)
        scale = np.where(bad, CANONICAL_NAN, scale).astype(np.float32)
        zero = integer_codes(-low / scale, 0, 15)
        steps = np.rint(sets / scale[:, None])
        codes = np.nan_to_num(np.clip(steps + zero[:, None], 0, 15), nan=0).astype(np.uint8)
        lost = bad | np.isinf(scale)
    codes[lost], zero[lost] = 0, 0
    for impl in each_variant("quantize_int4"):
        q, s, z = quantize_int4(x, 32, "asymmetric", impl=impl)
        assert_same_values(s.reshape(-1), scale)
        assert_same_codes(z.reshape(-1), zero.view(np.uint8))
        assert_same_codes(q, pack_nibbles(codes.reshape(x.shape), False))


def test_int4_values_of_every_code_and_zero_point():
    codes = np.tile(np.arange(16, dtype=np.uint8), (16, 2))
    zero = np.arange(16, dtype=np.uint8).reshape(16, 1)
    scale = np.random.default_rng(5).random((16, 1), np.float32) + np.float32(0.1)
    signed = ((codes ^ 8).astype(np.int8) - 8).astype(np.float32)
    shifted = codes.astype(np.float32) - zero.astype(np.float32)
    for dtype in FLOATS:
        for impl in each_variant("dequantize_int4"):
            packed = pack_nibbles(codes, False)
            got = dequantize_int4(packed, scale, dtype=dtype, impl=impl)
            assert_same_values(got, (signed * scale).astype(dtype))
            got = dequantize_int4(packed, scale, zero, dtype, impl=impl)
            assert_same_values(got, (shifted * scale).astype(dtype))


# ---- rotation


@pytest.mark.parametrize("group", [4, 16, 64, 256, 1024])
def test_rotation_is_the_matrix(group):
    h4 = np.array([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]], np.float64)
    h = h4
    while h.shape[0] < group:
        h = np.kron(h, h4)
    h /= np.sqrt(group)
    x = np.random.default_rng(6).standard_normal((7, 2048)).astype(np.float32)
    exact = (x.astype(np.float64).reshape(7, -1, group) @ h).reshape(x.shape)
    size = (np.abs(x.astype(np.float64)).reshape(7, -1, group) @ np.abs(h)).reshape(x.shape)
    for impl in each_variant("hadamard"):
        out = np.empty_like(x)
        call("hadamard", impl, x=x, out=out, hadamard=group)
        # Each of log4(group) stages rounds three sums.
        assert (np.abs(out - exact) <= 3 * np.log2(group) / 2 * 2.0**-24 * size).all()
        back = np.empty_like(x)
        call("hadamard", impl, x=out, out=back, hadamard=group)
        assert np.abs(back - x).max() < 1e-5
