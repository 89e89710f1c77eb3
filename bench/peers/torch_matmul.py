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
    names = [name for name in ("bias", "residual") if case.has(name)]

    def chain(a, b, *more):
        given = dict(zip(names, more, strict=True))
        y = multiply(a, b)
        if "bias" in given:
            y = y + given["bias"].to(y.dtype)
        y = act(y)
        return y + given["residual"].to(y.dtype) if "residual" in given else y

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

    tensors = tuple(map(case.tensor, ("d_out", "a", "b")))
    return (with_bias if case.has("bias") else chain), tensors


CHAINS = {"matmul": matmul, "matmul_backward": matmul_backward}
