"""Products with quantised operands: both sides decoded to f32, one f32 product, the epilogue."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from ..._backends import implements
from . import _layouts, activations, blocks, fp8, int4, int8, norms, w4a8
from . import _numbers as n
from ._quantised import codes_of

_ACTIVATIONS = {
    "none": lambda y: y,
    "gelu": functional.gelu,
    "gelu_tanh": lambda y: functional.gelu(y, approximate="tanh"),
    "silu": functional.silu,
}


def _gated(y: Tensor, gate: Tensor) -> Tensor:
    """Rows of y times their rows of gate, each of which neighbouring rows share."""
    gates = n.rows(gate).float()
    return (y.reshape(gates.shape[0], -1, y.shape[-1]) * gates[:, None]).reshape(y.shape)


def _epilogue(
    y, shape, alpha, bias, residual, beta, gate, *, activation, gated, out_dtype
) -> Tensor:
    if alpha is not None:
        y = y * alpha
    if bias is not None:
        y = y + bias.float()
    y, act = y.reshape(shape), _ACTIVATIONS[activation]
    if gated == "none":
        y = act(y)
    else:
        first, last = y.chunk(2, -1)
        y = act(first) * last if gated == "act_first" else first * act(last)
    if gate is not None and y.numel():
        y = _gated(y, gate)
    if residual is not None:
        y = y + residual.float() * (1 if beta is None else beta)
    return y.to(out_dtype)


def _linear(
    x, weight: Tensor, hadamard: int, epilogue: tuple, options: dict, factor: Tensor | None = None
) -> Tensor:
    """epilogue(x @ weight^T * factor), x rotated first if the weight was."""
    left = _layouts.rotate(n.rows(x).float(), hadamard)
    shape = (*x.shape[:-1], weight.shape[0])
    y = left @ weight.t()
    return _epilogue(y if factor is None else y * factor, shape, *epilogue, **options)


def _through_codes(x: Tensor, quantize, **options) -> Tensor:
    """x as its codes by rows stand for it, in f32."""
    rows = n.rows(x)
    codes, scale = quantize(rows, **options)
    return (codes.float() * scale).reshape(x.shape)


def _product(a: Tensor, left: Tensor, right: Tensor, epilogue: tuple, options: dict) -> Tensor:
    shape = (*a.shape[:-1], right.shape[0])
    return _epilogue(left @ right.t(), shape, *epilogue, **options)


_GATED = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh"}
_CODES = ("out_format", "keep_out", "out_hadamard", "nibbles", "scale_layout")


def _changed(x: Tensor, norm_weight: Tensor | None, options: dict) -> Tensor:
    """x after input_act, in its own dtype."""
    act, layout, eps = (options.pop(name) for name in ("input_act", "input_layout", "eps"))
    plain = {"out_format": "none", "keep_out": False}
    if act == "none":
        return x
    if act == "rms_norm":
        return norms.rms_norm(x, weight=norm_weight, eps=eps, **plain)[0]
    if act in _GATED:
        return activations.gated_activation(x, act=_GATED[act], layout=layout, **plain)[0]
    return activations.activation(x, act=act, **plain)[0]


def _input(x: Tensor, rest: tuple, options: dict) -> tuple[Tensor, tuple]:
    """x after input_act, and the epilogue's tensors, of what follows the weight."""
    *epilogue, norm_weight = rest
    return _changed(x, norm_weight, options), tuple(epilogue)


def _with_codes(make, q_scale, global_scale, options: dict):
    """What a product returns: make(**options), its codes, or both."""
    how = {name: options.pop(name) for name in _CODES}
    if how["out_format"] == "none":
        return make(**options)
    how["hadamard"] = how["out_hadamard"]
    if not how["keep_out"]:
        options["out_dtype"] = torch.bfloat16
    out = make(**options)
    return ((out,) if how["keep_out"] else ()) + codes_of(out, q_scale, global_scale, how)


@implements("linear_fp8", backend="eager")
def linear_fp8(x, weight, scale, *rest, granularity, activations, accumulation, **options):
    *epilogue, norm_weight, q_scale, global_scale = rest
    x = _changed(x, norm_weight, options)
    if activations == "row":
        x = _through_codes(
            x, fp8.quantize_fp8, granularity="row", rounding="nearest", seed=0, transposed=False,
            q_dtype=weight.dtype,
        )  # fmt: skip
    weight, factor = weight.float(), None
    if activations == "row":  # scales multiply sums of products of codes
        factor = scale.reshape(1, -1)
    else:
        weight = weight * fp8.spread_scale(scale, granularity, *weight.shape)
    return _with_codes(
        lambda **how: _linear(x, weight, 0, epilogue, how, factor), q_scale, global_scale, options
    )


@implements("linear_int8", backend="eager")
def linear_int8(x, weight, scale, *rest, granularity, group_size, hadamard, activations, **options):
    *epilogue, norm_weight, q_scale, global_scale = rest
    x = _changed(x, norm_weight, options)
    if activations == "row":
        x = _through_codes(
            x, int8.quantize_int8, granularity="row", group_size=1, hadamard=hadamard,
            rounding="nearest", seed=0, transposed=False,
        )  # fmt: skip
        hadamard = 0
    decoded = int8.decode(weight, scale, granularity, group_size)
    return _with_codes(
        lambda **how: _linear(x, decoded, hadamard, epilogue, how), q_scale, global_scale, options
    )


@implements("linear_int4", backend="eager")
def linear_int4(x, weight, scale, zero, *rest, group_size, mode, hadamard, decoded, **options):
    x, epilogue = _input(x, rest, options)
    values = int4.decode(weight, scale, zero, group_size)  # exact, so as_x, too
    return _linear(x, values, hadamard, epilogue, options)


@implements("linear_w4a8", backend="eager")
def linear_w4a8(x, weight, scale_rel, scale_channel, codebook, *rest, hadamard, **options):
    x, epilogue = _input(x, rest, options)
    decoded = w4a8.decode(weight, scale_rel, scale_channel, codebook)
    return _linear(x, decoded, hadamard, epilogue, options)


@implements("linear_nvfp4", backend="eager")
def linear_nvfp4(x, weight, scale, global_scale, *rest, nibbles, scale_layout, **options):
    x, epilogue = _input(x, rest, options)
    decoded = blocks.decode_nvfp4(weight, scale, global_scale, nibbles, scale_layout)
    return _linear(x, decoded, 0, epilogue, options)


@implements("linear_mxfp8", backend="eager")
def linear_mxfp8(x, weight, scale, *rest, scale_layout, **options):
    x, epilogue = _input(x, rest, options)
    return _linear(x, blocks.decode_mxfp8(weight, scale, scale_layout), 0, epilogue, options)


@implements("linear_mxfp4", backend="eager")
def linear_mxfp4(x, weight, scale, *rest, nibbles, scale_layout, **options):
    x, epilogue = _input(x, rest, options)
    decoded = blocks.decode_mxfp4(weight, scale, nibbles, scale_layout)
    return _linear(x, decoded, 0, epilogue, options)


@implements("scaled_mm_fp8", backend="eager")
def scaled_mm_fp8(a, b, scale_a, scale_b, *rest, granularity, accumulation, **options):
    *epilogue, q_scale, global_scale = rest
    # Codes are decoded to f32, so every accumulation is as exact as the strictest.
    left, right = n.rows(a).float(), b.float()
    if granularity == "block":
        left = left * fp8.spread_scale(scale_a, "block_1x128", *left.shape)
        right = right * fp8.spread_scale(scale_b, "block_128x128", *right.shape)
        sums = left @ right.t()
    else:
        sums = left @ right.t() * scale_a.reshape(-1, 1) * scale_b.reshape(1, -1)
    shape = (*a.shape[:-1], b.shape[0])
    return _with_codes(
        lambda **how: _epilogue(sums, shape, *epilogue, **how), q_scale, global_scale, options
    )


@implements("scaled_mm_int8", backend="eager")
def scaled_mm_int8(a, b, scale_a, scale_b, *rest, granularity, host_scale, **options):
    *epilogue, q_scale, global_scale = rest
    # float64 holds the integer sums exactly; no integer product exists on CUDA.
    sums = (n.rows(a).double() @ b.double().t()).float()
    m = math.prod(a.shape[:-1])
    if granularity == "host":
        scale_a, scale_b = sums.new_full((1, 1), host_scale), 1
    elif granularity == "tensor":
        scale_a, scale_b = scale_a.reshape(1, 1), scale_b.reshape(1, 1)
    else:
        scale_a, scale_b = scale_a.reshape(m, 1), scale_b.reshape(1, b.shape[0])
    shape = (*a.shape[:-1], b.shape[0])
    return _with_codes(
        lambda **how: _epilogue(sums * scale_a * scale_b, shape, *epilogue, **how),
        q_scale, global_scale, options,
    )  # fmt: skip


@implements("scaled_mm_nvfp4", backend="eager")
def scaled_mm_nvfp4(
    a, b, scale_a, scale_b, global_scale_a, global_scale_b, *epilogue,
    nibbles, scale_layout, **options,
):  # fmt: skip
    left = blocks.decode_nvfp4(n.rows(a), scale_a, global_scale_a, nibbles, scale_layout)
    right = blocks.decode_nvfp4(b, scale_b, global_scale_b, nibbles, scale_layout)
    return _product(a, left, right, epilogue, options)


@implements("scaled_mm_mxfp8", backend="eager")
def scaled_mm_mxfp8(a, b, scale_a, scale_b, *epilogue, scale_layout, **options):
    left = blocks.decode_mxfp8(n.rows(a), scale_a, scale_layout)
    right = blocks.decode_mxfp8(b, scale_b, scale_layout)
    return _product(a, left, right, epilogue, options)


@implements("matmul", backend="eager")
def matmul(a, b, alpha, bias, residual, beta, gate, q_scale, global_scale, *, activation, gated,
           precision, out_dtype, **how):  # fmt: skip
    del precision  # torch has a switch of its own for how f32 is multiplied
    shape = (*a.shape[:-1], b.shape[-1])
    keeps = how["out_format"] == "none" or how["keep_out"]
    dtype = out_dtype if keeps else torch.bfloat16
    out = _epilogue(
        a.float() @ b.float(), shape, alpha, bias, residual, beta, gate,
        activation=activation, gated=gated, out_dtype=dtype,
    )  # fmt: skip
    if how["out_format"] == "none":
        return out
    how["hadamard"] = how["out_hadamard"]
    return ((out,) if keeps else ()) + codes_of(out, q_scale, global_scale, how)


@implements("matmul_backward", backend="eager")
def matmul_backward(d_out, a, b, alpha, bias, residual, *, activation):
    left, right, d_pre = a.float(), b.float(), d_out.float()
    factor = 1 if alpha is None else alpha
    if activation != "none":
        pre = left @ right * factor + (0 if bias is None else bias.float())
        d_pre = d_pre * activations.slope_of(pre, activation)
    d_a = (d_pre @ right.mT * factor).to(a.dtype)
    d_b = (left.mT @ d_pre * factor).to(b.dtype)
    d_bias = () if bias is None else (d_pre.sum(tuple(range(d_pre.dim() - 1))).to(bias.dtype),)
    d_residual = () if residual is None else (d_out.to(residual.dtype, copy=True),)
    return (d_a, d_b, *d_bias, *d_residual)
