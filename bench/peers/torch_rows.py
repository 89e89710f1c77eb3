"""Chains of plain operators for activations, norms with residual, gate or quantised output, group
norms, rotations, and gradients: what torch_eager has no room for.

CHAINS: op -> function(case) -> (chain, arguments), or None where the case is not for PyTorch.
"""

import math

import torch
import torch.nn.functional as F
import torch_matmul
from block_chains import LARGEST, mxfp8_codes, nvfp4_codes

ACTIVATIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def fp8_tensor(y, q_scale):
    limit = LARGEST[torch.float8_e4m3fn]
    return (y.float() / q_scale).clamp(-limit, limit).to(torch.float8_e4m3fn)


def fp8_row(y):
    limit = LARGEST[torch.float8_e4m3fn]
    scale = y.abs().amax(-1, keepdim=True).float() / limit
    return (y.float() / scale).clamp(-limit, limit).to(torch.float8_e4m3fn), scale


def int8_row(y):
    scale = y.abs().amax(-1, keepdim=True).float() / 127
    return (y.float() / scale).round().clamp(-127, 127).to(torch.int8), scale


QUANTISERS = {"fp8_row": fp8_row, "int8_row": int8_row, "fp8_tensor": fp8_tensor,
              "nvfp4": nvfp4_codes, "mxfp8": mxfp8_codes}  # fmt: skip

SCALES = {"fp8_tensor": ["q_scale"], "nvfp4": ["global_scale"]}  # given ones


def quantised(case):
    """What turns the plain result into the case's, with the tensor that it needs; None: can't."""
    form = case.attribute("out_format", "none")
    if case.attribute("hadamard") or case.attribute("keep_out"):
        return None
    if form == "none":
        return (lambda y: y), ()
    usual = case.attribute("nibbles") == "high_first"
    if form not in QUANTISERS or not usual or case.attribute("scale_layout") != "swizzled":
        return None
    names = [n for n in ("q_scale", "global_scale") if case.has(n)]
    if names != SCALES.get(form, []):
        return None
    return QUANTISERS[form], tuple(map(case.tensor, names))


def finished(case, chain, arguments):
    """The chain with the case's quantiser behind it."""
    last = quantised(case)
    if last is None:
        return None
    quantise, more = last
    count = len(arguments)
    return (lambda *a: quantise(chain(*a[:count]), *a[count:])), (*arguments, *more)


def activation(case):
    return finished(case, ACTIVATIONS[case.attribute("act")], (case.tensor("x"),))


def gated_activation(case):
    act, layout = ACTIVATIONS[case.attribute("act")], case.attribute("layout")
    if layout == "pair":
        return finished(case, lambda x, g: act(x) * g, (case.tensor("x"), case.tensor("gate")))
    if layout not in ("act_first", "act_last"):
        return None

    def chain(x):
        a, b = x.chunk(2, -1)
        return act(a) * b if layout == "act_first" else a * act(b)

    return finished(case, chain, (case.tensor("x"),))


# ---- norms


def norm(function):
    """rms_norm and layer_norm: the residual sum, if any, is a second result."""

    def adapter(case):
        names = ("x", "weight", "bias", "residual")
        if not case.only(*names, "q_scale", "global_scale"):
            return None
        eps = case.attribute("eps")
        have = [n for n in names if case.has(n)]

        def chain(*tensors):
            t = dict(zip(have, tensors, strict=True))
            x = t["x"] + t["residual"] if "residual" in t else t["x"]
            affine = [t[n].to(x.dtype) if n in t else None for n in ("weight", "bias")]
            return function(x, affine, eps), x

        return with_sum(case, chain, tuple(map(case.tensor, have)))

    return adapter


def with_sum(case, chain, arguments):
    """Quantises the first result of the chain; the second is the sum that a case may ask for."""
    last = quantised(case)
    if last is None:
        return None
    quantise, more = last
    count, keeps = len(arguments), case.has("residual_out")

    def whole(*a):
        y, total = chain(*a[:count])
        made = quantise(y, *a[count:])
        codes = made if isinstance(made, tuple) else (made,)
        plain = case.attribute("out_format", "none") == "none"
        if not keeps:
            return made
        return (*codes, total) if plain else (total, *codes)

    return whole, (*arguments, *more)


def modulated(function):
    """adaln and rms_adaln, with gate and residual."""

    def adapter(case):
        names = ("x", "residual", "gate", "scale", "shift")
        if not case.only(*names, "q_scale", "global_scale"):
            return None
        eps = case.attribute("eps")
        have = [n for n in names if case.has(n)]
        groups = math.prod(case.shape("scale")[:-1]) if case.has("scale") else 1

        def chain(*tensors):
            t = dict(zip(have, tensors, strict=True))
            width = t["x"].shape[-1]
            rows = {n: v.view(groups, -1, width) for n, v in t.items()}
            x = rows["x"] * rows["gate"] if "gate" in t else rows["x"]
            x = rows["residual"] + x if "residual" in t else x
            y = function(x, (None, None), eps)
            y = y * (1 + rows["scale"]) if "scale" in t else y
            y = y + rows["shift"] if "shift" in t else y
            return y.view(t["x"].shape), x

        return with_sum(case, chain, tuple(map(case.tensor, have)))

    return adapter


def layer(x, affine, eps):
    return F.layer_norm(x, x.shape[-1:], *affine, eps=eps)


def rms(x, affine, eps):
    y = F.rms_norm(x, x.shape[-1:], affine[0], eps)
    return y if affine[1] is None else y + affine[1]


def group_norm(case):
    names = ("x", "weight", "bias", "residual", "gate", "scale", "shift")
    if not case.only(*names, "q_scale", "global_scale"):
        return None
    groups, eps = case.attribute("groups"), case.attribute("eps")
    after = F.silu if case.attribute("activation") == "silu" else (lambda y: y)
    have = [n for n in names if case.has(n)]
    batch, *planes = case.shape("x")[:1] + [1] * len(case.shape("x")[2:])

    def chain(*tensors):
        t = dict(zip(have, tensors, strict=True))
        rows = {
            n: t[n].repeat_interleave(batch // t[n].shape[0], 0).view(batch, -1, *planes)
            for n in ("gate", "scale", "shift")
            if n in t
        }
        x = t["x"] * rows["gate"] if "gate" in t else t["x"]
        x = t["residual"] + x if "residual" in t else x
        given = {n: t[n].to(x.dtype) for n in ("weight", "bias") if n in t}
        y = F.group_norm(x, groups, **given, eps=eps)
        y = y * (1 + rows["scale"]) if "scale" in t else y
        y = y + rows["shift"] if "shift" in t else y
        return after(y), x

    return with_sum(case, chain, tuple(map(case.tensor, have)))


REGULAR = ((1.0, 1, 1, -1), (1, 1, -1, 1), (1, -1, 1, 1), (-1, 1, 1, 1))


def hadamard(case):
    group = case.attribute("hadamard")
    four = torch.tensor(REGULAR, device=case.device)
    matrix = torch.ones(1, 1, device=case.device)
    while matrix.shape[0] < group:
        matrix = torch.kron(matrix, four)
    matrix = (matrix.T / math.sqrt(group)).to(case.dtype("x")).contiguous()

    def chain(x, by):
        return (x.view(-1, group) @ by).view(x.shape)

    return chain, (case.tensor("x"), matrix)


# ---- gradients


def activation_slope(case, d_out, x):
    act = case.attribute("act")
    if act == "silu":
        return torch.ops.aten.silu_backward(d_out, x)
    how = "tanh" if act == "gelu_tanh" else "none"
    return torch.ops.aten.gelu_backward(d_out, x, approximate=how)


def activation_backward(case):
    names = ("d_out", "x")
    return (lambda d, x: activation_slope(case, d, x)), tuple(map(case.tensor, names))


def gated_activation_backward(case):
    act, layout = ACTIVATIONS[case.attribute("act")], case.attribute("layout")

    def slopes(d, a, b):
        return activation_slope(case, d * b, a), d * act(a)

    if layout == "pair":
        return slopes, tuple(map(case.tensor, ("d_out", "x", "gate")))
    if layout not in ("act_first", "act_last"):
        return None

    def chain(d, x):
        first, last = x.chunk(2, -1)
        if layout == "act_first":
            return torch.cat(slopes(d, first, last), -1)
        d_act, d_plain = slopes(d, last, first)
        return torch.cat((d_plain, d_act), -1)

    return chain, tuple(map(case.tensor, ("d_out", "x")))


def rms_norm_backward(case):
    if not case.only("x", "d_out", "weight"):
        return None
    eps = case.attribute("eps")
    names = [n for n in ("x", "d_out", "weight") if case.has(n)]

    def chain(x, d_out, weight=None):
        xf, d = x.float(), d_out.float()
        inverse = torch.rsqrt(xf.square().mean(-1, keepdim=True) + eps)
        y = xf * inverse
        by = d if weight is None else d * weight
        d_x = ((by - y * (by * y).mean(-1, keepdim=True)) * inverse).to(x.dtype)
        return d_x if weight is None else (d_x, (d * y).flatten(0, -2).sum(0).to(weight.dtype))

    return chain, tuple(map(case.tensor, names))


def layer_norm_backward(case):
    if not case.only("x", "d_out", "weight", "bias"):
        return None
    eps = case.attribute("eps")
    names = [n for n in ("weight", "bias") if case.has(n)]

    def chain(x, d_out, *affine):
        given = dict(zip(names, affine, strict=True))
        xf, d = x.float(), d_out.float()
        centred = xf - xf.mean(-1, keepdim=True)
        inverse = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
        y = centred * inverse
        by = d * given["weight"] if "weight" in given else d
        d_x = by - by.mean(-1, keepdim=True) - y * (by * y).mean(-1, keepdim=True)
        sums = {"weight": d * y, "bias": d}
        parts = [sums[n].flatten(0, -2).sum(0).to(t.dtype) for n, t in given.items()]
        return ((d_x * inverse).to(x.dtype), *parts)

    return chain, tuple(map(case.tensor, ("x", "d_out", *names)))


def log_softmax_backward(case):
    if case.attribute("scale", 1) != 1:
        return None
    dim = case.attribute("dim")

    def chain(d_out, out):
        return torch._log_softmax_backward_data(d_out, out, dim % d_out.ndim, d_out.dtype)

    return chain, (case.tensor("d_out"), case.tensor("out"))


def cross_entropy_backward(case):
    if case.attribute("label_smoothing"):
        return None
    ignore = case.attribute("ignore_index")

    def chain(d_loss, logits, target, lse):
        by = torch.where(target == ignore, 0.0, d_loss).unsqueeze(-1)
        p = torch.exp(logits.float() - lse.unsqueeze(-1))
        places = torch.arange(logits.shape[-1], device=logits.device)
        return ((p - (places == target.unsqueeze(-1)).float()) * by).to(logits.dtype)

    inputs = map(case.tensor, ("d_loss", "logits", "target"))
    return chain, (*inputs, case.tensor("lse").float())


CHAINS = torch_matmul.CHAINS | {
    "activation": activation,
    "activation_backward": activation_backward,
    "adaln": modulated(layer),
    "cross_entropy_backward": cross_entropy_backward,
    "gated_activation": gated_activation,
    "gated_activation_backward": gated_activation_backward,
    "group_norm": group_norm,
    "hadamard": hadamard,
    "layer_norm": norm(layer),
    "layer_norm_backward": layer_norm_backward,
    "log_softmax_backward": log_softmax_backward,
    "rms_adaln": modulated(rms),
    "rms_norm": norm(rms),
    "rms_norm_backward": rms_norm_backward,
}
