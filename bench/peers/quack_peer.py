"""quack-kernels (CuTe DSL) on Pestle's cases: softmax, RMS norm, cross entropy and their backwards.

It needs a GPU of sm_90 or later, and nvidia-cutlass-dsl.
"""

import torch

NAME = "quack"


def unavailable(device):
    if device != "cuda":
        return "runs on GPUs only"
    try:
        import quack  # noqa: F401
    except ImportError as error:
        return f"quack can't be imported: {error}"
    capability = torch.cuda.get_device_capability()
    has = "".join(map(str, capability))
    return "" if capability >= (9, 0) else f"needs sm_90, this GPU has sm_{has}"


def softmax(case):
    from quack.softmax import softmax_fwd

    if not case.only("x") or case.attribute("scale", 1) != 1 or not last(case, "x"):
        return None
    x = case.tensor("x").flatten(0, -2)
    return lambda: softmax_fwd(x)


def softmax_backward(case):
    from quack.softmax import softmax_bwd

    if case.attribute("scale", 1) != 1 or not last(case, "out"):
        return None
    d_out = case.tensor("d_out").flatten(0, -2)
    out = case.tensor("out").flatten(0, -2)
    return lambda: softmax_bwd(d_out, out)


def last(case, name):
    """Whether dim is the last of at least two dimensions."""
    rank = len(case.shape(name))
    return rank > 1 and case.attribute("dim") % rank == rank - 1


def rms_norm(case):
    from quack.rmsnorm import rmsnorm_fwd

    if not case.only("x", "weight") or not case.plain():
        return None
    x = case.tensor("x").flatten(0, -2)
    weight = case.tensor("weight") if case.has("weight") else None
    return lambda: rmsnorm_fwd(x, weight, eps=case.attribute("eps"))


def rms_norm_backward(case):
    from quack.rmsnorm import rmsnorm_bwd

    if not case.only("x", "d_out", "weight"):
        return None
    x, d_out = (case.tensor(n).flatten(0, -2) for n in ("x", "d_out"))
    weight = case.tensor("weight") if case.has("weight") else None
    # What its forward keeps for it.
    inverse = torch.rsqrt(x.float().square().mean(-1) + case.attribute("eps"))
    return lambda: rmsnorm_bwd(x, weight, d_out, inverse)


def cross_entropy(case):
    from quack.cross_entropy import cross_entropy_fwd

    if case.attribute("label_smoothing"):
        return None
    logits, target = case.tensor("logits").flatten(0, -2), case.tensor("target").flatten()
    ignore = case.attribute("ignore_index")
    return lambda: cross_entropy_fwd(logits, target, ignore_index=ignore, return_lse=True)


ADAPTERS = {
    "cross_entropy": cross_entropy,
    "rms_norm": rms_norm,
    "rms_norm_backward": rms_norm_backward,
    "softmax": softmax,
    "softmax_backward": softmax_backward,
}


def calls(case):
    call = ADAPTERS[case.op](case) if case.op in ADAPTERS else None
    return {} if call is None else {NAME: (call, None)}
