"""The same work as Pestle's ops, as PyTorch users write it: the fastest that we found in plain
operators.

CHAINS: op -> function(case) -> (chain, arguments), or None where the case is not for PyTorch.
"""

import torch
import torch.nn.functional as F
import torch_attention
import torch_linear
import torch_rows
from block_chains import (
    E2M1,
    LARGEST,
    e2m1_codes,
    mx_exponents,
    mxfp8_codes,
    nvfp4_codes,
    pack_low_first,
    swizzle,
    unswizzle,
)

NAME = "torch_eager"


def transposed_too(case, chain):
    """The chain, and its codes transposed where the case asks for both."""
    if not case.attribute("transposed"):
        return chain

    def both(*arguments):
        made = chain(*arguments)
        q, *scale = made if isinstance(made, tuple) else (made,)
        return q, *scale, q.view(torch.uint8).mT.contiguous().view(q.dtype)

    return both


def quantize_fp8(case):
    dtype = case.dtype("q")
    largest = LARGEST[dtype]

    def rows(x):
        scale = x.abs().amax(-1, keepdim=True).float() / largest
        return (x.float() / scale).clamp(-largest, largest).to(dtype), scale

    def whole(x):
        scale = x.abs().amax().float() / largest
        return (x.float() / scale).clamp(-largest, largest).to(dtype), scale

    def with_scale(x, scale):
        return (x.float() / scale).clamp(-largest, largest).to(dtype)

    granularity = case.attribute("granularity")
    if granularity not in ("tensor", "row") or case.attribute("rounding") != "nearest":
        return None
    if case.has("scale"):
        return transposed_too(case, with_scale), (case.tensor("x"), case.tensor("scale"))
    return transposed_too(case, rows if granularity == "row" else whole), (case.tensor("x"),)


def dequantize_scaled(case):
    if case.attribute("granularity") not in ("tensor", "row") or case.attribute("hadamard"):
        return None
    dtype = case.dtype("out")
    return (lambda q, scale: (q.float() * scale).to(dtype)), (
        case.tensor("q"),
        case.tensor("scale"),
    )


def quantize_int8(case):
    def rows(x):
        scale = x.abs().amax(-1, keepdim=True).float() / 127
        return (x.float() / scale).round().clamp(-127, 127).to(torch.int8), scale

    def whole(x):
        scale = x.abs().amax().float() / 127
        return (x.float() / scale).round().clamp(-127, 127).to(torch.int8), scale

    unusual = case.attribute("hadamard") or case.has("scale")
    unusual = unusual or case.attribute("rounding") != "nearest"
    if unusual or case.attribute("granularity") not in ("row", "tensor"):
        return None
    chain = rows if case.attribute("granularity") == "row" else whole
    return transposed_too(case, chain), (case.tensor("x"),)


def is_usual(case):
    """Whether a case of a block format has what the chains below are written for."""
    wanted = {"rounding": "nearest", "nibbles": "high_first", "scale_layout": "swizzled"}
    unusual = any(case.attribute(name, value) != value for name, value in wanted.items())
    return not unusual and not case.attribute("pad")


def quantize_nvfp4(case):
    def chain(x):
        return nvfp4_codes(x, x.abs().amax().float() / (448 * 6))

    if not is_usual(case):
        return None
    if case.has("global_scale"):
        return nvfp4_codes, (case.tensor("x"), case.tensor("global_scale"))
    return chain, (case.tensor("x"),)


def dequantize_nvfp4(case):
    dtype = case.dtype("out")
    values = torch.tensor([*E2M1, *(-v for v in E2M1)], device=case.device)

    def chain(q, scale, g):
        codes = torch.stack((q >> 4, q & 15), -1).view(q.shape[0], -1, 16)
        by = unswizzle(scale)[: q.shape[0], : codes.shape[1]].float() * g
        return (values[codes.int()] * by.unsqueeze(-1)).view(q.shape[0], -1).to(dtype)

    if not is_usual(case):
        return None
    scale = case.codes("scale", torch.float8_e4m3fn)
    return chain, (case.tensor("q"), scale, case.tensor("global_scale"))


def quantize_mxfp8(case):
    dtype = case.dtype("q")
    chain = lambda x: mxfp8_codes(x, dtype)  # noqa: E731  (the format is the case's)
    return (chain, (case.tensor("x"),)) if is_usual(case) else None


def dequantize_mxfp8(case):
    dtype = case.dtype("out")

    def chain(q, scale):
        blocks = q.float().view(q.shape[0], -1, 32)
        by = unswizzle(scale)[: q.shape[0], : blocks.shape[1]].float()
        return (blocks * by.unsqueeze(-1)).view(q.shape).to(dtype)

    if not is_usual(case):
        return None
    return chain, (case.tensor("q"), case.codes("scale", torch.float8_e8m0fnu))


def quantize_mxfp4(case):
    def chain(x):
        blocks = x.float().view(x.shape[0], -1, 32)
        exponent = mx_exponents(blocks, 6.0)
        values = blocks * torch.exp2(-exponent).unsqueeze(-1)
        return pack_low_first(e2m1_codes(values).view(x.shape)), (exponent + 127).to(torch.uint8)

    unusual = case.attribute("pad") or case.attribute("nibbles") != "low_first"
    unusual = unusual or case.attribute("rounding") != "nearest"
    return None if unusual else (chain, (case.tensor("x"),))


def quantize_int4(case):
    group = case.attribute("group_size")

    def symmetric(x):
        groups = x.float().view(x.shape[0], -1, group)
        scale = groups.abs().amax(-1, keepdim=True) / 7
        codes = (groups / scale).round().clamp(-8, 7).to(torch.int8).view(torch.uint8) & 15
        return pack_low_first(codes.view(x.shape)), scale

    def asymmetric(x):
        groups = x.float().view(x.shape[0], -1, group)
        low, high = groups.aminmax(dim=-1, keepdim=True)
        scale = (high - low) / 15
        zero = (-low / scale).round().clamp(0, 15)
        codes = ((groups / scale).round() + zero).clamp(0, 15).to(torch.uint8)
        return pack_low_first(codes.view(x.shape)), scale, zero

    if case.attribute("hadamard") or not group or case.attribute("rounding") != "nearest":
        return None
    if case.shape("x")[-1] % group:
        return None
    chain = asymmetric if case.attribute("mode") == "asymmetric" else symmetric
    return chain, (case.tensor("x"),)


# ---- rows: norms, softmax, reductions


def along_dim(function):
    def adapter(case):
        if not case.only("x") or case.attribute("scale", 1) != 1:
            return None
        dim = case.attribute("dim")
        return (lambda x: function(x, dim)), (case.tensor("x"),)

    return adapter


def softmax_backward(case):
    if case.attribute("scale", 1) != 1:
        return None
    dim = case.attribute("dim")

    def chain(d_out, out):
        return torch._softmax_backward_data(d_out, out, dim % d_out.ndim, d_out.dtype)

    return chain, (case.tensor("d_out"), case.tensor("out"))


def cross_entropy(case):
    ignore, smooth = case.attribute("ignore_index"), case.attribute("label_smoothing")

    def chain(logits, target):
        return F.cross_entropy(logits, target, reduction="none", ignore_index=ignore,
                               label_smoothing=smooth)  # fmt: skip

    return chain, (case.tensor("logits").flatten(0, -2), case.tensor("target").flatten().long())


REDUCTIONS = {"sum": torch.sum, "mean": torch.mean, "amax": torch.amax, "max": torch.amax,
              "amin": torch.amin, "min": torch.amin, "logsumexp": torch.logsumexp,
              "norm": torch.linalg.vector_norm}  # fmt: skip


def reduce(case):
    rank, dims = len(case.shape("x")), case.attribute("dims")
    function = REDUCTIONS.get(case.attribute("op"))
    if function is None or case.attribute("out_type") != "as_x":
        return None
    axes = tuple(axis for axis in range(rank) if dims >> axis & 1)
    keep = {"keepdim": bool(case.attribute("keepdim"))}
    if function is torch.linalg.vector_norm:
        return (lambda x: function(x, dim=axes, **keep)), (case.tensor("x"),)
    return (lambda x: function(x, axes, **keep)), (case.tensor("x"),)


def extreme(function):
    def adapter(case):
        rank, dims = len(case.shape("x")), case.attribute("dims")
        axes = [axis for axis in range(rank) if dims >> axis & 1]
        if len(axes) != 1 and dims != -1:
            return None  # torch takes one dimension, or all of them
        axis = None if dims == -1 else axes[0]
        return (lambda x: function(x, axis, bool(case.attribute("keepdim")))), (case.tensor("x"),)

    return adapter


def copy(case):
    to = case.dtype("out")
    if to == torch.uint8 and case.dtype("x").is_floating_point:
        return None  # torch wraps negative values, Pestle saturates
    if to == case.dtype("x"):
        return (lambda x: x.clone()), (case.tensor("x"),)
    return (lambda x: x.to(to)), (case.tensor("x"),)


def copy_transpose(case):
    return (lambda x: x.transpose(-1, -2).contiguous()), (case.tensor("x"),)


# ---- RoPE


def rotated(x, freqs):
    pairs = x.float().view(*x.shape[:-1], -1, 1, 2)
    f = freqs[:, :, : x.shape[2]]
    return (f[..., 0] * pairs[..., 0] + f[..., 1] * pairs[..., 1]).view(x.shape).to(x.dtype)


def is_plain_rope(case, *extra):
    unusual = case.attribute("pairs") != "interleaved" or case.attribute("rot_dim")
    return case.only("x", "x2", "freqs", *extra) and not unusual


def apply_rope(case):
    if not is_plain_rope(case) or case.attribute("inverse"):
        return None
    names = [n for n in ("x", "x2") if case.has(n)]

    def chain(freqs, *tensors):
        return tuple(rotated(x, freqs) for x in tensors)

    return chain, (case.tensor("freqs"), *map(case.tensor, names))


def rms_rope(case):
    if not is_plain_rope(case, "weight"):
        return None
    eps = case.attribute("eps")
    names = [n for n in ("x", "x2") if case.has(n)]

    def chain(freqs, weight, *tensors):
        return tuple(
            rotated(F.rms_norm(x, x.shape[-1:], weight.to(x.dtype), eps), freqs) for x in tensors
        )

    return chain, (case.tensor("freqs"), case.tensor("weight"), *map(case.tensor, names))


def swizzled(case):
    dtype = case.dtype("scale")
    return (lambda s: swizzle(s).view(dtype)), (case.codes("scale", torch.uint8),)


def unswizzled(case):
    rows, columns = case.attribute("rows"), case.attribute("columns")
    dtype = case.dtype("scale")

    def chain(scale):
        return unswizzle(scale)[:rows, :columns].contiguous().view(dtype)

    return chain, (case.codes("scale", torch.uint8),)


CHAINS = torch_rows.CHAINS | {
    "apply_rope": apply_rope,
    "argmax": extreme(torch.argmax),
    "argmin": extreme(torch.argmin),
    "copy": copy,
    "copy_transpose": copy_transpose,
    "cross_entropy": cross_entropy,
    "dequantize_fp8": dequantize_scaled,
    "dequantize_int8": dequantize_scaled,
    "dequantize_mxfp8": dequantize_mxfp8,
    "dequantize_nvfp4": dequantize_nvfp4,
    "log_softmax": along_dim(torch.log_softmax),
    "quantize_fp8": quantize_fp8,
    "quantize_int4": quantize_int4,
    "quantize_int8": quantize_int8,
    "quantize_mxfp4": quantize_mxfp4,
    "quantize_mxfp8": quantize_mxfp8,
    "quantize_nvfp4": quantize_nvfp4,
    "reduce": reduce,
    "rms_rope": rms_rope,
    "softmax": along_dim(torch.softmax),
    "softmax_backward": softmax_backward,
    "swizzle_scales": swizzled,
    "unswizzle_scales": unswizzled,
}


def unavailable(device):
    return ""


def calls(case):
    """{peer: (callable, bytes moved)}; None as bytes means the case's own."""
    if case.op.startswith("linear_"):
        made = {"torch_bf16_linear": torch_linear.bf16(case)}
        run = torch_linear.fp8_rows(case)
        return made if run is None else made | {"torch_fp8_linear": (run, None)}
    if case.op.startswith("attention"):
        return {name: (run, None) for name, run in torch_attention.runs(case).items()}
    made = CHAINS[case.op](case) if case.op in CHAINS else None
    if made is None:
        return {}
    chain, arguments = made
    return {NAME: (lambda: chain(*arguments), None)}
