"""linear_* with input_act or with codes of its output is the ops one after the other, in bits."""

import pestle
import pytest
import torch

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
ACTS = {
    "silu": ("activation", {"act": "silu"}),
    "gelu": ("activation", {"act": "gelu"}),
    "gelu_tanh": ("activation", {"act": "gelu_tanh"}),
    "swiglu": ("gated_activation", {"act": "silu", "layout": "act_first"}),
    "geglu": ("gated_activation", {"act": "gelu", "layout": "act_last"}),
    "geglu_tanh": ("gated_activation", {"act": "gelu_tanh", "layout": "act_first"}),
    "rms_norm": ("rms_norm", {"eps": 1e-5}),
}
M, N, K = 19, 72, 256


def random(*shape, device, dtype=torch.bfloat16, seed=0):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return made.to(device=device, dtype=dtype)


def given(act, device, dtype):
    """x, what linear_* is told of input_act, and the op that it names on x."""
    op, options = ACTS[act]
    x = random(M, K * (2 if op == "gated_activation" else 1), device=device, dtype=dtype)
    told = {"input_act": act, "input_layout": options.get("layout", "act_first")}
    if op != "rms_norm":
        return x, told, lambda **more: getattr(pestle, op)(x, **options, **more)
    weight = random(K, device=device, dtype=torch.float32, seed=1)
    told |= {"eps": options["eps"], "norm_weight": weight}
    return x, told, lambda **more: pestle.rms_norm(x, weight=weight, **options, **more)


def weights(quantize, device, **options):
    return quantize(random(N, K, device=device, seed=2), granularity="row", **options)


same = pytest.mark.parametrize("device", DEVICES)
each = pytest.mark.parametrize("act", ACTS)


@same
@each
@pytest.mark.parametrize("hadamard", [0, 64])
def test_int8(device, act, hadamard):
    x, told, alone = given(act, device, torch.bfloat16)
    weight, scale = weights(pestle.quantize_int8, device, hadamard=hadamard)
    bias = random(N, device=device, seed=3)
    got = pestle.linear_int8(
        x, weight, scale, bias=bias, granularity="row", hadamard=hadamard, activations="row", **told
    )
    if hadamard and device == "cuda" and act != "rms_norm":  # the rotation is the quantiser's
        codes, rows = pestle.quantize_int8(alone(), granularity="row", hadamard=hadamard)
    else:
        codes, rows = alone(out_format="int8_row", hadamard=hadamard)
    want = pestle.scaled_mm_int8(codes, weight, rows, scale, bias=bias, granularity="row")
    assert torch.equal(got, want)


@same
@each
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_fp8(device, act, dtype):
    x, told, alone = given(act, device, torch.float16)
    weight, scale = weights(pestle.quantize_fp8, device, q_dtype=dtype)
    got = pestle.linear_fp8(x, weight, scale, granularity="row", activations="row", **told)
    if dtype == torch.float8_e4m3fn:
        codes, rows = alone(out_format="fp8_row")
    else:
        codes, rows = pestle.quantize_fp8(alone(), granularity="row", q_dtype=dtype)
    options = {"granularity": "row", "out_dtype": x.dtype}
    assert torch.equal(got, pestle.scaled_mm_fp8(codes, weight, rows, scale, **options))


@each
def test_floats(act):
    x, told, alone = given(act, "cpu", torch.float32)
    weight, scale = weights(pestle.quantize_int8, "cpu")
    got = pestle.linear_int8(x, weight, scale, granularity="row", out_dtype=torch.float32, **told)
    want = pestle.linear_int8(alone(), weight, scale, granularity="row", out_dtype=torch.float32)
    assert torch.equal(got, want)


@same
@pytest.mark.parametrize(
    ("out_format", "quantize"),
    [
        ("fp8_row", lambda y: pestle.quantize_fp8(y, granularity="row")),
        ("fp8_block", lambda y: pestle.quantize_fp8(y, granularity="block_1x128")),
        ("int8_row", lambda y: pestle.quantize_int8(y, granularity="row")),
        ("mxfp8", pestle.quantize_mxfp8),
    ],
)
def test_codes_of_the_output(device, out_format, quantize):
    n = 96
    x = random(M, K, device=device)
    weight, scale = pestle.quantize_int8(random(n, K, device=device, seed=2), granularity="row")
    how = {"granularity": "row", "activations": "row", "activation": "gelu_tanh"}
    out, *codes = pestle.linear_int8(x, weight, scale, **how, out_format=out_format, keep_out=True)
    assert torch.equal(out, pestle.linear_int8(x, weight, scale, **how))
    for got, want in zip(codes, quantize(out), strict=True):
        assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))


def test_gradients_are_refused_in_words():
    x = random(M, K, device="cpu").requires_grad_()
    weight, scale = weights(pestle.quantize_int8, "cpu")
    for more in ({"input_act": "silu"}, {"activations": "row"}):
        with pytest.raises(Exception, match="gradient"):
            pestle.linear_int8(x, weight, scale, granularity="row", **more).sum().backward()
