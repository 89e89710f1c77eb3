"""dequantize_gguf against the PyPI package gguf, an independent reader of the same blocks."""

import gguf
import numpy as np
import pytest
from pestle_ctypes import call, impls

TYPES = {
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_k": gguf.GGMLQuantizationType.Q4_K,
    "q6_k": gguf.GGMLQuantizationType.Q6_K,
}
# Where the f16 scales lie in a block.
SCALES = {"q8_0": (0,), "q4_0": (0,), "q4_k": (0, 2), "q6_k": (208,)}


def blocks(name: str, rows: int, per_row: int) -> np.ndarray:
    """Random blocks with finite scales: every code, sub-scale and sign occurs."""
    random = np.random.default_rng(7)
    _, size = gguf.GGML_QUANT_SIZES[TYPES[name]]
    data = random.integers(0, 256, (rows, per_row, size), dtype=np.uint8)
    for at in SCALES[name]:
        scale = random.normal(0, 0.05, (rows, per_row, 1)).astype(np.float16)
        data[:, :, at : at + 2] = scale.view(np.uint8)
    return data.reshape(rows, per_row * size)


@pytest.mark.parametrize("impl", impls("dequantize_gguf"))
@pytest.mark.parametrize("name", TYPES)
def test_values_are_those_of_the_gguf_package(name, impl):
    q = blocks(name, 37, 5)
    want = gguf.quants.dequantize(q, TYPES[name]).astype(np.float32)
    out = np.full(want.shape, np.nan, np.float32)
    call("dequantize_gguf", impl, q=q, out=out, type=name)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("name", ("q8_0", "q4_0"))
def test_blocks_that_the_gguf_package_wrote(name):
    x = np.random.default_rng(8).normal(0, 1, (16, 256)).astype(np.float32)
    q = gguf.quants.quantize(x, TYPES[name])
    out = np.empty_like(x)
    call("dequantize_gguf", q=q, out=out, type=name)
    error = np.linalg.norm(out - x) / np.linalg.norm(x)
    assert error < (0.01 if name == "q8_0" else 0.12)
