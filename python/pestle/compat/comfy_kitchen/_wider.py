"""Functions of which eager takes more calls than Pestle's ops do: every form of W4A8."""

from __future__ import annotations

import torch

from . import _linears, _quantizers, _w4a8
from ._quantizers import W4A8_MAKING, W4A8_STORED
from ._serve import E4M3, F32, FLOATS, INT8, ONE, ROWWISE, TWO, ValidationResult, adapter, of

_BF16 = torch.bfloat16
_STORED = {
    "qdata": of(INT8, TWO),
    "s_rel": of(E4M3 | F32, TWO),
    "s_channel": of(F32, ROWWISE),
    "codebook": of(F32, ONE),
    "correction": of(FLOATS, TWO),
}


def _usual(rules, values: dict) -> bool:
    return all(rule(values).success for rule in rules)


def _usual_weight(qdata, s_rel, codebook, correction, group_size) -> bool:
    """Whether Pestle's ops have this form."""
    values = {"qdata": qdata, "s_rel": s_rel, "codebook": codebook, "correction": correction}
    return s_rel.dtype in E4M3 and _usual(W4A8_STORED, values | {"group_size": group_size})


@adapter("quantize_w4a8", "hadamard", only="eager", weight=of(FLOATS, TWO), codebook_tensor=of(F32))
def quantize_w4a8_int8_weight(
    p,
    weight,
    group_size=16,
    convrot_groupsize=256,
    symmetric=True,
    scale_dtype=torch.float8_e4m3fn,
    codebook=True,
    codebook_tensor=None,
    stochastic_rounding=0,
    bits=4,
    scale_search=True,
):
    how = {"group_size": group_size, "symmetric": symmetric, "scale_dtype": scale_dtype}
    how |= {"codebook": codebook, "stochastic_rounding": stochastic_rounding, "bits": bits}
    _w4a8.check_making(weight, group_size, convrot_groupsize, bits, symmetric, scale_dtype)
    if _usual(W4A8_MAKING, how):
        usual = {"convrot_groupsize": convrot_groupsize, "codebook_tensor": codebook_tensor}
        return _quantizers.quantize_w4a8_int8_weight(p, weight, **usual)
    rotated = p.hadamard(weight, hadamard=convrot_groupsize, out_dtype=torch.float32)
    return _w4a8.made(
        weight, rotated, group_size, symmetric, scale_dtype, codebook, codebook_tensor,
        stochastic_rounding or 0, bits, scale_search,
    )  # fmt: skip


@adapter("dequantize_w4a8", "hadamard", only="eager", output_dtype=of(FLOATS), **_STORED)
def dequantize_w4a8_int8_weight(
    p,
    qdata,
    s_rel,
    s_channel,
    codebook=None,
    correction=None,
    group_size=16,
    convrot_groupsize=256,
    output_dtype=_BF16,
):
    stored = (qdata, s_rel, s_channel, codebook, correction)
    _w4a8.check_stored(*stored, group_size, convrot_groupsize)
    if _usual_weight(qdata, s_rel, codebook, correction, group_size):
        how = {"convrot_groupsize": convrot_groupsize, "output_dtype": output_dtype}
        return _quantizers.dequantize_w4a8_int8_weight(p, *stored, **how)
    rotated = _w4a8.rotated_weight(*stored, group_size)
    return p.hadamard(rotated, hadamard=convrot_groupsize, out_dtype=output_dtype)


def _storage(kwargs) -> ValidationResult:
    """Records have one dimension, rows two."""
    wanted = ONE if kwargs.get("mma_packed") else TWO
    for name in ("qdata", "s_rel"):
        if not wanted.check(kwargs[name]):
            rule = f"shape {list(kwargs[name].shape)} fails: {wanted.describe()}"
            return ValidationResult.fail(name, rule)
    return ValidationResult.ok()


@adapter(
    "linear_w4a8", "hadamard", only="eager", x=of(FLOATS), bias=of(FLOATS), out_dtype=of(FLOATS),
    rules=(_storage,), **_STORED | {"qdata": of(INT8), "s_rel": of(E4M3 | F32)},
)  # fmt: skip
def w4a8_int8_linear(
    p,
    x,
    qdata,
    s_rel,
    s_channel,
    codebook=None,
    correction=None,
    bias=None,
    group_size=16,
    convrot_groupsize=256,
    out_dtype=_BF16,
    mma_packed=False,
    input_act=None,
    input_act_weight=None,
    input_act_eps=0.0,
    residual=None,
    residual_scale=None,
):
    x = _linears.activated(x, input_act, input_act_weight, input_act_eps)
    if mma_packed:
        qdata, s_rel = _w4a8.unpack_records(qdata, s_channel.numel(), x.shape[-1])
    stored = (qdata, s_rel, s_channel, codebook, correction)
    _, columns, _ = _w4a8.check_stored(*stored, group_size, convrot_groupsize)
    if x.shape[-1] != columns:
        raise ValueError(f"x has {x.shape[-1]} columns and the weight {columns}: they must agree")
    if _usual_weight(qdata, s_rel, codebook, correction, group_size):
        how = {"convrot_groupsize": convrot_groupsize, "out_dtype": out_dtype, "bias": bias}
        out = _linears.w4a8_int8_linear(p, x, *stored, **how)
    else:
        rotated = p.hadamard(x, hadamard=convrot_groupsize, out_dtype=torch.float32)
        weight = _w4a8.rotated_weight(*stored, group_size)
        bias = _linears.flat(bias, weight.shape[0])
        out = _w4a8.float_product(rotated, weight, bias, out_dtype)
    return _linears.added(out, residual, residual_scale)
