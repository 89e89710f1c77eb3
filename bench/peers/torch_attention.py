"""PyTorch's scaled_dot_product_attention, by each of its kernels on its own.

runs(case): name -> a call, for those that take the case.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = {
    "torch_flash": SDPBackend.FLASH_ATTENTION,
    "torch_cudnn": SDPBackend.CUDNN_ATTENTION,
    "torch_efficient": SDPBackend.EFFICIENT_ATTENTION,
}
OTHER = ("window_left", "window_right")


def is_plain(case):
    """Whether the case has none of the options that the call lacks."""
    return (
        case.only("q", "k", "v", "d_out", "out", "lse")
        and not case.attribute("softcap")
        and all(case.attribute(name, -1) == -1 for name in OTHER)
        and not (case.attribute("causal") and case.attribute("align") == "bottom_right")
    )


def forward(case, inputs, backend):
    options = {
        "is_causal": bool(case.attribute("causal")),
        "scale": case.attribute("scale") or None,
        "enable_gqa": case.shape("q")[1] != case.shape("k")[1],
    }

    def run():
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(*inputs, **options)

    return run


def backward(case, inputs, backend):
    inputs = [t.detach().requires_grad_() for t in inputs]
    out = forward(case, inputs, backend)()
    d_out = case.tensor("d_out").to(out.dtype)
    return lambda: torch.autograd.grad(out, inputs, d_out, retain_graph=True)


def runs(case):
    if not is_plain(case):
        return {}
    make = backward if case.op == "attention_backward" else forward
    backends = KERNELS if case.device == "cuda" else {"torch_sdpa": SDPBackend.FLASH_ATTENTION}
    made = {}
    for name, backend in backends.items():
        run = make(case, [case.tensor(n) for n in ("q", "k", "v")], backend)
        try:
            run()
        except RuntimeError:  # it says so of shapes and dtypes that the kernel does not take
            continue
        made[name] = run
    return made
