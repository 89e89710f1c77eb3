"""Norms by comfy-kitchen's names, over Pestle's ops."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ._serve import FLOATS, ExactDims, adapter, of

_RULES = {"x": of(FLOATS), "scale": of(FLOATS), "shift": of(FLOATS)}


def grouped(x: Tensor, *modulations: Tensor) -> list[Tensor]:
    """Tensors that broadcast to x as [G, K]: M/G neighbouring rows of x share a row of them.

    What changes along an inner dimension of x but not along an outer one has no such form, and is
    written out, a row for each of x's.
    """
    lead = x.ndim - 1
    full = [(1,) * (x.ndim - t.ndim) + tuple(t.shape) for t in modulations]
    kept = max([0, *[axis + 1 for shape in full for axis in range(lead) if shape[axis] != 1]])
    return [
        t.expand(*x.shape[:kept], *(1,) * (lead - kept), x.shape[-1]).reshape(-1, x.shape[-1])
        for t in modulations
    ]


@adapter("adaln", **_RULES)
def adaln(p, x, scale, shift, eps=1e-6):
    scale, shift = grouped(x, scale, shift)
    return p.adaln(x, scale=scale, shift=shift, eps=eps)


@adapter("rms_adaln", **_RULES)
def rms_adaln(p, x, scale, shift, eps=1e-6):
    scale, shift = grouped(x, scale, shift)
    return p.rms_adaln(x, scale=scale, shift=shift, eps=eps)


# What is asked of eager by name is rounded after each step, as there.


@adapter("adaln", only="eager", **_RULES)
def adaln(p, x, scale, shift, eps=1e-6):  # noqa: F811
    return modulated(functional.layer_norm(x, x.shape[-1:], eps=eps), scale, shift)


@adapter("rms_adaln", only="eager", **_RULES)
def rms_adaln(p, x, scale, shift, eps=1e-6):  # noqa: F811
    return modulated(functional.rms_norm(x, x.shape[-1:], eps=eps), scale, shift)


def modulated(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return (x * (1 + scale) + shift).to(x.dtype)


@adapter(
    "rms_norm",
    activation=of(FLOATS),
    norm_weight=of(FLOATS),
    residual=of(FLOATS),
    gate=of(FLOATS),
)
def rms_gated_residual(p, activation, norm_weight, residual, gate, eps=1e-5):
    return residual + gate * p.rms_norm(activation, weight=norm_weight, eps=eps)


# ---- frames of videos


def frames_of(x: Tensor) -> Tensor:
    """[B, C, T, H, W] as [B*T, C, H, W]."""
    batch, channels, frames, height, width = x.shape
    return x.permute(0, 2, 1, 3, 4).reshape(batch * frames, channels, height, width)


@adapter("reduce", x=of(FLOATS, ExactDims(5)))
def group_norm_stats3d(p, x, num_groups=32, eps=1e-6):
    frames = frames_of(x)
    groups = frames.reshape(frames.shape[0], num_groups, -1)
    mean = p.reduce(groups, op="mean", dims=1 << 2, keepdim=True, out_type="f32")
    variance = p.reduce((groups - mean).square(), op="mean", dims=1 << 2)
    return torch.stack((mean[..., 0], torch.rsqrt(variance + eps)), -1)


def normalised_by(x: Tensor, stats: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Frames by the statistics of group_norm_stats3d, in f32."""
    if stats.ndim != 3 or stats.shape[0] != x.shape[0] or stats.shape[2] != 2:
        raise ValueError(f"stats is {list(stats.shape)}: give [{x.shape[0]}, groups, 2]")
    each = stats.repeat_interleave(x.shape[1] // stats.shape[1], 1)
    scale = each[..., 1] * weight.float()
    shift = -each[..., 0] * scale
    shift = shift if bias is None else shift + bias.float()
    return torch.addcmul(shift[..., None, None], x.float(), scale[..., None, None])


@adapter("group_norm", "activation", x=of(FLOATS, ExactDims(5)), weight=of(FLOATS), bias=of(FLOATS))
def group_norm_silu_pad3d(
    p,
    x,
    weight=None,
    bias=None,
    num_groups=32,
    eps=1e-6,
    pad=(0, 0, 0, 0, 0),
    silu=True,
    zero_pad=False,
    out=None,
    stats=None,
):
    if min(pad) < 0:
        raise ValueError(f"pad is {tuple(pad)}: none may be negative")
    made = x
    if weight is not None:
        frames = frames_of(x)
        if stats is None:
            act = "silu" if silu else "none"
            options = {"groups": num_groups, "eps": eps, "activation": act}
            frames = p.group_norm(frames, weight=weight, bias=bias, **options)
        else:
            frames = normalised_by(frames, stats, weight, bias).to(x.dtype)
            frames = p.activation(frames, act="silu") if silu else frames
        made = frames.view(x.shape[0], x.shape[2], *frames.shape[1:]).permute(0, 2, 1, 3, 4)
    elif silu:
        made = p.activation(x, act="silu")
    *border, front = pad
    if any(border):
        mode = "constant" if zero_pad else "reflect"
        made = functional.pad(made, (*border, 0, 0), mode=mode)
    if front:
        made = functional.pad(made, (0, 0, 0, 0, front, 0))
    if out is not None:
        return into(out, made)
    made = made.contiguous(memory_format=torch.channels_last_3d)
    return made.clone() if made is x else made


@adapter(
    only="eager",
    x=of(FLOATS, ExactDims(5)),
    weight=of(FLOATS, ExactDims(5)),
    bias=of(FLOATS),
    residual=of(FLOATS),
)
def fp16_conv3d(p, x, weight, bias=None, residual=None, stride=1, out=None):
    made = functional.conv3d(x, weight, bias, stride=stride)
    made = made if residual is None else made + residual
    if out is None:
        return made.contiguous(memory_format=torch.channels_last_3d)
    return into(out, made)


def into(out: Tensor, made: Tensor) -> Tensor:
    """Where the caller wants it."""
    if (out.shape, out.dtype, out.device) != (made.shape, made.dtype, made.device):
        raise ValueError(f"out must be {list(made.shape)} of {made.dtype} on {made.device}")
    return out.copy_(made)
