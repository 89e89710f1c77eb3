"""Matrix products and their gradients as PyTorch users write them, which is cuBLAS.

CHAINS: op -> function(case) -> (chain, arguments), or None where the case is not for PyTorch.
"""

import torch
import torch.nn.functional as F

ACTIVATIONS = {
    "none": lambda y: y,
    "gelu": F.gelu,
    "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"),
    "silu": F.silu,
}


def operands(case):
    """a and b of one dtype that torch.matmul takes, the result's too; else None."""
    dtype = case.dtype("a")
    if dtype.itemsize == 1 or case.has("alpha") or case.dtype("b") != dtype:
        return None
    return dtype


def product(a, b):
    return torch.matmul(a, b)


def product_tf32(a, b):
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return torch.matmul(a, b)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def matmul(case):
    if "out" not in case.tensors or operands(case) is None or case.dtype("out") != case.dtype("a"):
        return None
    act = ACTIVATIONS[case.attribute("activation", "none")]
    multiply = product_tf32 if case.attribute("precision") == "tf32" else product
    gated = case.attribute("gated", "none")
    names = [name for name in ("bias", "residual", "gate") if case.has(name)]
    if case.has("beta") or ("gate" in names and case.shape("gate")[0] != 1):
        return None

    def ended(y):
        if gated == "none":
            return act(y)
        first, last = y.chunk(2, -1)
        return act(first) * last if gated == "act_first" else first * act(last)

    def chain(a, b, *more):
        given = dict(zip(names, more, strict=True))
        y = multiply(a, b)
        if "bias" in given:
            y = y + given["bias"].to(y.dtype)
        y = ended(y)
        if "gate" in given:
            y = y * given["gate"].to(y.dtype)
        return y + given["residual"].to(y.dtype) if "residual" in given else y

    chain.is_one_call = not names and case.attribute("activation", "none") == "none"
    return chain, tuple(map(case.tensor, ("a", "b", *names)))


def matmul_backward(case):
    """The gradients of a, b and bias; no activation, which autograd would have kept."""
    plain = case.attribute("activation", "none") == "none" and not case.has("residual")
    if not plain or operands(case) is None or case.dtype("d_out") != case.dtype("a"):
        return None

    def chain(d_out, a, b):
        return torch.matmul(d_out, b.mT), torch.matmul(a.mT, d_out)

    def with_bias(d_out, a, b):
        return *chain(d_out, a, b), d_out.flatten(0, -2).sum(0)

    chain.is_one_call = True
    tensors = tuple(map(case.tensor, ("d_out", "a", "b")))
    return (with_bias if case.has("bias") else chain), tensors


SCALES = ("scale_a", "scale_b")


def plain_codes(case):
    """a as rows of codes, b [K, N], and scales that broadcast; None with an epilogue."""
    plain = case.has("out", *SCALES) and case.only("a", "b", *SCALES) and case.plain()
    if not plain or case.attribute("activation", "none") != "none":
        return None
    a, b = case.tensor("a").flatten(0, -2), case.tensor("b").mT
    scale_a, scale_b = map(case.tensor, SCALES)
    row = case.attribute("granularity") == "row"
    return a, b, scale_a.flatten(0, -2) if row else scale_a, scale_b.mT if row else scale_b


def scaled_mm_int8(case):
    made = plain_codes(case)
    if made is None:
        return None
    dtype, shape = case.dtype("out"), case.shape("out")

    def chain(a, b, scale_a, scale_b):
        y = torch._int_mm(a, b).float() * scale_a * scale_b
        return y.to(dtype).view(shape)

    return chain, made


def scaled_mm_fp8(case):
    """torch._scaled_mm; its accurate mode for `accurate`, blocks by blocks."""
    made = plain_codes(case)
    if made is None or case.attribute("accumulation") == "f32":
        return None
    a, b, scale_a, scale_b = made
    if a.shape[1] % 16 or b.shape[1] % 16 or torch.float8_e4m3fn not in (a.dtype, b.dtype):
        return None
    granularity = case.attribute("granularity")
    if a.device.type == "cpu" and (granularity != "tensor" or a.dtype != b.dtype):
        return None
    if granularity == "block":
        scale_a, scale_b = scale_a.mT.contiguous().mT, scale_b.mT
    fast = case.attribute("accumulation") == "fast" and granularity != "block"
    dtype, shape, rows = case.dtype("out"), case.shape("out"), a.shape[0]
    if rows % 16 and a.device.type == "cuda" and granularity == "tensor":  # as its users pad
        a = torch.cat([a.view(torch.uint8), a.view(torch.uint8)[:1].repeat(-rows % 16, 1)])
        a = a.view(made[0].dtype)

    def chain(a, b, scale_a, scale_b):
        y = torch._scaled_mm(
            a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=dtype, use_fast_accum=fast
        )
        return y[:rows].view(shape)

    chain.is_one_call = True
    return chain, (a, b, scale_a, scale_b)


CHAINS = {
    "matmul": matmul,
    "matmul_backward": matmul_backward,
    "scaled_mm_fp8": scaled_mm_fp8,
    "scaled_mm_int8": scaled_mm_int8,
}
