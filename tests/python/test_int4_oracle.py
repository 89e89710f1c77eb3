"""INT4 packings against bits placed by hand, as AWQ's and GPTQ's readers take them, and edges of
W4A8's codebook that random data do not reach."""

import ml_dtypes
import numpy as np
import pytest
from pestle_ctypes import PestleError, call, impls

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # column in each nibble of a word, from the lowest


def words(codes: np.ndarray, order=range(8)) -> np.ndarray:
    """Eight codes of the last axis a word: nibble i holds column order[i]."""
    grouped = codes.astype(np.uint32).reshape(*codes.shape[:-1], -1, 8)
    packed = np.zeros(grouped.shape[:-1], np.uint32)
    for nibble, column in enumerate(order):
        packed |= grouped[..., column] << np.uint32(4 * nibble)
    return packed


def pack(signed: np.ndarray, packing: str) -> np.ndarray:
    """[N, K] values -8..7, each packing by its own definition."""
    unsigned = (signed + 8).astype(np.uint8)
    if packing in ("plain", "plain_unsigned"):
        nibbles = (signed & 15 if packing == "plain" else unsigned).astype(np.uint8)
        return nibbles[:, 0::2] | nibbles[:, 1::2] << 4
    if packing == "kaio":
        return words(signed & 15)
    if packing == "gptq":
        return np.ascontiguousarray(words(unsigned).T).view(np.int32)
    return words(np.ascontiguousarray(unsigned.T), AWQ_ORDER).view(np.int32)


PACKINGS = ("plain", "plain_unsigned", "kaio", "gptq", "awq")


@pytest.mark.parametrize("impl", impls("repack_int4"))
@pytest.mark.parametrize("to_packing", PACKINGS)
@pytest.mark.parametrize("from_packing", PACKINGS)
def test_repack_matches_the_bit_table(from_packing, to_packing, impl):
    signed = np.random.default_rng(1).integers(-8, 8, (136, 152)).astype(np.int64)
    want = pack(signed, to_packing)
    out = np.zeros_like(want)
    call("repack_int4", impl, q=pack(signed, from_packing), out=out,
         from_packing=from_packing, to_packing=to_packing)  # fmt: skip
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("packing", ("gptq", "gptq_v2", "awq"))
def test_zero_points_match_the_bit_table(packing):
    zero = np.random.default_rng(2).integers(0, 16, (24, 5), dtype=np.uint8)
    stored = (zero - 1) & 15 if packing == "gptq" else zero
    order = AWQ_ORDER if packing == "awq" else range(8)
    want = words(np.ascontiguousarray(stored.T), order).view(np.int32)
    out = np.zeros_like(want)
    call("repack_zeros", zero=zero, zero_out=out, to_packing=packing)
    np.testing.assert_array_equal(out, want)
    back = np.zeros_like(zero)
    call("repack_zeros", zero=out, zero_out=back, from_packing=packing)
    np.testing.assert_array_equal(back, zero)


@pytest.mark.parametrize("hadamard", (0, 256))
def test_hostile_codebooks_decode_as_the_reference_does(hadamard):
    random = np.random.default_rng(3)
    codebook = random.normal(0, 1, 16).astype(np.float32)
    codebook[:6] = (np.nan, np.inf, -np.inf, 3e38, -0.0, 1e-45)
    values = {
        "q": random.integers(0, 256, (7, 128), dtype=np.uint8),
        "scale_rel": random.integers(0, 256, (7, 16), dtype=np.uint8).view(ml_dtypes.float8_e4m3fn),
        "scale_channel": random.normal(0, 1, 7).astype(np.float32),
        "codebook": codebook,
        "hadamard": hadamard,
    }
    outs = []
    for impl in impls("dequantize_w4a8"):
        outs.append(np.empty((7, 256), np.float32))
        call("dequantize_w4a8", impl, out=outs[-1], **values)
    # Rotated values are promised within a bound; a group's magnitudes sum up to 16 * 127 scales.
    allowed = (2.0**-20 * 16 * 127 if hadamard else 0) * np.abs(values["scale_channel"])[:, None]
    for out in outs:
        assert (np.abs(out - outs[-1]) <= allowed).all()


@pytest.mark.parametrize("impl", impls("quantize_w4a8"))
def test_a_codebook_must_ascend(impl):
    codebook = np.linspace(-1, 1, 16, dtype=np.float32)
    codebook[[3, 4]] = codebook[[4, 3]]
    with pytest.raises(PestleError, match="must ascend"):
        call("quantize_w4a8", impl, x=np.ones((2, 256), np.float32), codebook=codebook,
             q=np.empty((2, 128), np.uint8), scale_channel=np.empty(2, np.float32),
             scale_rel=np.empty((2, 16), ml_dtypes.float8_e4m3fn))  # fmt: skip
