"""Attention over Pestle's op, in the inputs' precision whatever the name says, and neighbourhood
attention over PyTorch's: Pestle has no op for that yet."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ._serve import FLOATS, FOUR, ExactDims, ParamConstraint, adapter, of
from .constraints import axes_of, na3d_common_call_rule

_GATHERED = 1 << 26  # elements of keys that are gathered at a time


def neighbours(length: int, size: int, causal: bool, device) -> tuple[Tensor, Tensor]:
    """Of each position of an axis: where the keys of its window lie, and which of them there are.
    The window is centred and moved inward at the borders; a causal one ends at the position."""
    size = min(size, length)
    at = torch.arange(length, device=device)
    first = at - size + 1 if causal else (at - size // 2).clamp(0, length - size)
    keys = first[:, None] + torch.arange(size, device=device)
    return keys.clamp_min(0), keys >= 0


def seen_by(length: int, size: int, causal: bool, device) -> Tensor:
    """[queries, keys]: the same along an axis whose keys are all there."""
    keys, there = neighbours(length, size, causal, device)
    seen = torch.zeros(length, length + 1, dtype=torch.bool, device=device)
    seen.scatter_(1, torch.where(there, keys, length), True)
    return seen[:, :length]


def attended(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
    """Rows of queries [B, rows, W, heads, D] against keys [B, rows, T', H', W, heads, D] of each
    row, where `seen` is [rows, W, T', H', W]."""
    batch, rows, width, heads, depth = q.shape
    mask = seen.reshape(1, rows, 1, width, -1).expand(batch, -1, -1, -1, -1).flatten(0, 1)
    query = q.flatten(0, 1).transpose(1, 2)
    key, value = (t.flatten(0, 1).flatten(1, 3).transpose(1, 2) for t in (k, v))
    out = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    return out.transpose(1, 2).reshape(batch, rows, width, heads, depth)


@adapter(
    only="eager",
    rules=(na3d_common_call_rule,),
    q=of(FLOATS, ExactDims(6)),
    k=of(FLOATS, ExactDims(6)),
    v=of(FLOATS, ExactDims(6)),
)
def na3d(p, q, k, v, kernel_size, is_causal=None, scale=None):
    _, frames, height, width, _, depth = q.shape
    sizes, causal = axes_of(kernel_size, 3), axes_of(is_causal, 3)
    scale = depth**-0.5 if scale is None else scale
    axes = zip((frames, height), sizes, causal, strict=False)
    (t_keys, t_there), (h_keys, h_there) = (neighbours(*axis, q.device) for axis in axes)
    across = seen_by(width, sizes[2], causal[2], q.device)
    row = t_keys.shape[1] * h_keys.shape[1] * k[:, 0, 0].numel()
    step = max(1, _GATHERED // max(row, 1))
    out = torch.empty_like(v)
    for t in range(frames):
        planes_k, planes_v = (x[:, t_keys[t]] for x in (k, v))
        for h in range(0, height, step):
            at = h_keys[h : h + step]
            key, value = (x[:, :, at].movedim(2, 1) for x in (planes_k, planes_v))
            there = t_there[t][None, :, None] & h_there[h : h + step][:, None, :]
            seen = there[:, None, :, :, None] & across[None, :, None, None, :]
            out[:, t, h : h + step] = attended(q[:, t, h : h + step], key, value, seen, scale)
    return out


# ---- over Pestle's op

_QKV = {name: of(FLOATS, FOUR) for name in "qkv"}
_LENGTHS = of(frozenset({torch.int32, torch.int64}), ExactDims(1))


@adapter("attention", attn_mask=ParamConstraint(FLOATS | {torch.bool}), **_QKV)
def int8_attention(p, q, k, v, *, scale=None, attn_mask=None):
    if attn_mask is not None and attn_mask.ndim < 4:
        attn_mask = attn_mask[(None,) * (4 - attn_mask.ndim)]
    return p.attention(q, k, v, attn_mask, scale=scale or 0.0)[0]


@adapter("attention", kv_lengths=_LENGTHS, **_QKV)
def flash_attention_decode(p, q, k, v, kv_lengths):
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    out = p.attention(*heads_first, key_lengths=kv_lengths)[0]
    return out.transpose(1, 2).contiguous()


@adapter("attention", kv_lengths=_LENGTHS, **_QKV)
def flash_attention_decode_gqa(p, q, k, v, kv_lengths, return_lse=False, causal=True):
    how = {"causal": causal, "align": "bottom_right" if causal else "top_left"}
    out, lse = p.attention(q, k, v, key_lengths=kv_lengths, **how)
    out = out.transpose(1, 2).flatten(2)
    return (out, lse) if return_lse else out
