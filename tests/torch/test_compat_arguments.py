"""What comfy-kitchen 0.2.40's functions take beside the usual, and the class of error for what they
don't: the same here."""

import pestle.compat.comfy_kitchen as ours
import pytest
import torch
from kitchen_cases import relative_error, values

theirs = pytest.importorskip("comfy_kitchen")
pytestmark = pytest.mark.usefixtures("kitchen_eager")


def made(name: str, *args, **options):
    """The results of both, ours first."""
    return tuple(getattr(m, name)(*args, **options) for m in (ours, theirs))


# ---- taken


def products() -> dict:
    """Of each product a call with some bias."""
    x, w = values("cpu", 32, 512), values("cpu", 24, 512, seed=2)
    q, scale = theirs.quantize_int8_rowwise(w)
    rotated = theirs.quantize_convrot_w4a4_weight(w)
    w4a8 = theirs.quantize_w4a8_int8_weight(w)
    loose = theirs.quantize_w4a8_int8_weight(w, group_size=32)
    floats = {"out_dtype": torch.float32}
    one, awq = torch.ones(512), torch.rand(2, 8, 24)
    codes = w[:, :256].mul(40).to(torch.int8)
    return {
        "int8_linear": lambda b: made("int8_linear", x, q, scale, b, **floats),
        "int8_linear_modulated": lambda b: made(
            "int8_linear_modulated", x, one, q, scale, b, **floats
        ),
        "int8_linear_rms_modulated": lambda b: made(
            "int8_linear_rms_modulated", x, one, 1e-5, one, q, scale, b, **floats
        ),
        "convrot_w4a4_linear": lambda b: made("convrot_w4a4_linear", x, *rotated, b),
        "w4a8_int8_linear": lambda b: made(
            "w4a8_int8_linear", x, *w4a8[:3], w4a8[4], bias=b, **floats
        ),
        "w4a8_int8_linear of 32": lambda b: made(
            "w4a8_int8_linear", x, *loose[:3], loose[4], bias=b, group_size=32, **floats
        ),
        "fp16_linear": lambda b: made("fp16_linear", x, w, b),
        "gemv_awq_w4a16": lambda b: made("gemv_awq_w4a16", x, codes, *awq, b),
    }


@pytest.mark.parametrize("name", products())
@pytest.mark.parametrize("shape", [(24,), (1, 24), (1,), ()], ids=str)
def test_a_bias_of_any_shape_that_fits(name, shape):
    mine, other = products()[name](torch.randn(shape))
    assert mine.shape == other.shape and relative_error(mine, other) < 0.03


def test_block_scales_come_flat_too():
    x, g = values("cpu", 40, 96), torch.tensor(1e-3)
    q, s = ours.quantize_nvfp4(x, g, pad_16x=True)
    flat = ours.to_blocked(ours.from_blocked(s, 48, 6))
    assert flat.ndim == 1
    got = ours.dequantize_nvfp4(q, g, flat)
    assert torch.equal(got, ours.dequantize_nvfp4(q, g, s))
    assert relative_error(got, theirs.dequantize_nvfp4(q, g, flat)) < 0.01
    product = ours.scaled_mm_nvfp4(q, q, g, g, flat, flat)
    assert torch.equal(product, ours.scaled_mm_nvfp4(q, q, g, g, s, s))
    m, e = ours.quantize_mxfp8(x, pad_32x=True)
    flat = e.view(torch.uint8).flatten().view(e.dtype)
    assert torch.equal(ours.dequantize_mxfp8(m, flat), ours.dequantize_mxfp8(m, e))
    assert torch.equal(ours.scaled_mm_mxfp8(m, m, flat, flat), ours.scaled_mm_mxfp8(m, m, e, e))


@pytest.mark.parametrize("split", ["", "_split_half"])
def test_ropes_of_heads_without_a_batch(split):
    x, k, f = torch.randn(4, 8, 32), torch.randn(2, 8, 32), torch.randn(1, 1, 8, 16, 2, 2)
    mine, other = made(f"apply_rope{split}", x, k, f)
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a, b)
    first = getattr(ours, f"apply_rope{split}1")(x, f)
    assert torch.equal(first, mine[0])
    a, b = x.clone(), k.clone()
    written = getattr(ours, f"apply_rope{split}_")(a, b, f)
    assert written[0] is a and written[1] is b
    assert torch.equal(a, mine[0]) and torch.equal(b, mine[1])


def test_random_bytes_for_every_row():
    x, rng = values("cpu", 3, 5, 32), torch.randint(0, 256, (32,), dtype=torch.uint8)
    got, want = made("stochastic_rounding_fp8", x, rng.expand(3, 5, 32))
    assert torch.equal(got.float(), want.float())
    assert torch.equal(ours.stochastic_rounding_fp8(x, rng).float(), got.float())


def test_svdquant_of_no_rows():
    x, smooth, down = torch.empty(0, 128), torch.ones(128), torch.randn(128, 16)
    for a, b in zip(*made("quantize_svdquant_w4a4", x, smooth, down), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)


# ---- refused


def refused() -> dict:
    x = values("cpu", 16, 512)
    qf = x.to(torch.float8_e4m3fn)
    one, g = torch.tensor(0.01), torch.tensor(1e-3)
    q4, s4 = theirs.quantize_nvfp4(x, g)
    q, scale = theirs.quantize_int8_rowwise(x)
    c, cs = theirs.quantize_convrot_w4a4_weight(x)
    w, rel, channel, _, table = theirs.quantize_w4a8_int8_weight(x)
    heads, freqs, weight = torch.randn(1, 2, 8, 32), torch.randn(1, 1, 8, 16, 2, 2), torch.rand(32)
    seven = freqs.unsqueeze(0)
    empty = torch.empty(0, dtype=torch.float8_e4m3fn)
    return {
        "x of f64": ("quantize_per_tensor_fp8", x.double(), one),
        "scale of bf16": ("quantize_per_tensor_fp8", x, one.bfloat16()),
        "codes of f32": ("dequantize_per_tensor_fp8", x, one),
        "x of three dimensions": ("quantize_nvfp4", x[None], g),
        "codes of int8": ("dequantize_nvfp4", q4.view(torch.int8), g, s4),
        "weight of f32": ("int8_linear", x, x, scale),
        "a scale for each column": ("int8_linear", x, q, torch.rand(512)),
        "x of another width": ("int8_linear", x[:, :256], q, scale),
        "an unknown activation": ("int8_linear", x, q, scale, None, None, False, 256, "relu"),
        "modulation of another width": ("int8_linear_modulated", x, weight, q, scale),
        "INT4 groups of 32": ("quantize_convrot_w4a4_weight", x, 256, 32),
        "INT4 groups of 32, decoded": ("dequantize_convrot_w4a4_weight", c, cs, 256, 32),
        "INT4 groups of 32, multiplied": ("convrot_w4a4_linear", x, c, cs, None, 256, 32),
        "rotations that don't fit": ("quantize_convrot_w4a4_weight", x[:, :320]),
        "one INT4 scale": ("dequantize_convrot_w4a4_weight", c, one),
        "another linear_dtype": ("convrot_w4a4_linear", x, c, cs, None, 256, 64, "fp8"),
        "W4A8 of a batch": ("quantize_w4a8_int8_weight", x[None]),
        "W4A8 of 5 bits": ("quantize_w4a8_int8_weight", x, 16, 256, True, torch.float32, True,
                           None, 0, 5),
        "one channel scale": ("dequantize_w4a8_int8_weight", w, rel, one, table),
        "a codebook of two dimensions": ("w4a8_int8_linear", x, w, rel, channel, table[None]),
        "records as rows": ("w4a8_int8_linear", x, w.flatten(), empty, channel, table),
        "a correction of one dimension": ("w4a8_int8_linear", x, w, rel, channel, table, weight),
        "frequencies of seven dimensions": ("rms_rope1", heads, seven, weight),
        "heads of three dimensions": ("rms_rope1", heads[0], freqs, weight),
        "a window of two axes": ("na3d", *[heads[None, None]] * 3, [3, 3]),
        "smooth of two dimensions": ("quantize_svdquant_w4a4", x, x[:1] + 1, torch.rand(512, 16)),
        "codes of FP8 as a weight": ("int8_linear", x, qf, scale),
    }  # fmt: skip


@pytest.mark.parametrize("case", refused())
def test_what_is_refused_is_refused_by_the_same_class(case):
    name, *args = refused()[case]
    with pytest.raises(Exception) as theirs_raised:
        getattr(theirs, name)(*args)
    wanted = getattr(ours, type(theirs_raised.value).__name__, type(theirs_raised.value))
    with pytest.raises(wanted):
        getattr(ours, name)(*args)
