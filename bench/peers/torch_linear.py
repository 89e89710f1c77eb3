"""Linear layers as PyTorch users write them: bf16, and FP8 with activations quantised by rows."""

import itertools

import torch
import torch.nn.functional as F

GATED = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh"}


def changed(case, x):
    """x after the case's input_act, as a chain of PyTorch's functions."""
    act = case.attribute("input_act", "none")
    plain = {
        "none": lambda v: v,
        "silu": F.silu,
        "gelu": F.gelu,
        "gelu_tanh": lambda v: F.gelu(v, approximate="tanh"),
    }
    if act in plain:
        return plain[act](x)
    if act == "rms_norm":
        weight = case.tensor("norm_weight").to(x.dtype) if case.has("norm_weight") else None
        return F.rms_norm(x, x.shape[-1:], weight, case.attribute("eps"))
    first, last = x.chunk(2, -1)
    if case.attribute("input_layout") == "act_last":
        first, last = last, first
    return plain[GATED[act]](first) * last


def columns(case):
    """K: those of x, or half of them where input_act joins pairs."""
    return case.shape("x")[-1] // (2 if case.attribute("input_act", "none") in GATED else 1)


def rotated(weight):
    """Copies of a weight of more than a gigabyte, and which is next."""
    count = min(256, max(2, -(-(1 << 30) // (weight.itemsize * weight.numel()))))
    return [weight.clone() for _ in range(count)], itertools.count()


def bf16(case):
    """bf16 linear of the same M, N, K."""
    shape, n = case.shape("x"), case.shape("weight")[0]
    k = columns(case)
    rows = shape[0] if len(shape) > 1 else 1
    x = torch.randn(*shape[:-1], k, device=case.device).bfloat16()
    weights, turn = rotated(torch.randn(n, k, device=case.device).bfloat16())
    run = lambda: F.linear(x, weights[next(turn) % len(weights)])  # noqa: E731
    return run, 2 * (n * k + rows * (n + k))


def row_codes(x):
    scale = x.abs().amax(-1, keepdim=True).float().clamp_min(1e-12) / 448
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def fp8_rows(case):
    """torch.compile's quantiser by rows (with the activation or norm before it), then
    torch._scaled_mm; None where it has no such product."""
    fits = (
        case.op == "linear_fp8"
        and case.device == "cuda"
        and case.attribute("activations") == "row"
        and case.attribute("granularity") == "row"
        and case.attribute("activation", "none") == "none"
        and case.dtype("x") == torch.bfloat16
        and case.dtype("weight") == torch.float8_e4m3fn
        and case.has("out")
        and not case.has("residual")
        and not case.has("bias")
        and not case.has("alpha")
        and len(case.shape("x")) == 2
    )
    if not fits:
        return None
    quantize = torch.compile(lambda v: row_codes(changed(case, v)), dynamic=False)
    x, dtype = case.tensor("x"), case.dtype("out")
    scale = case.tensor("scale").view(1, -1)
    weights, turn = rotated(case.tensor("weight"))

    def run():
        q, of_rows = quantize(x)
        return torch._scaled_mm(
            q, weights[next(turn) % len(weights)].t(), of_rows, scale, out_dtype=dtype,
            use_fast_accum=True,
        )  # fmt: skip

    return run
