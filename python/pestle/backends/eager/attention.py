"""attention and its gradients: f32, one rounding, a bounded number of logits at a time
(_attention.py)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..._backends import implements
from ._attention import SMALLEST_WEIGHT, Logits, Tile, part_of, product

_LARGEST_WEIGHT = 2.0**127


def _sink(sinks: Tensor, tile: Tile) -> Tensor:
    """[heads, 1, 1]"""
    return sinks[tile.of.heads].float()[:, None, None]


def _softmax_of(t: Tensor, v: Tensor, sinks: Tensor | None, tile: Tile) -> tuple[Tensor, Tensor]:
    """out and lse of a tile whose logits are t; t becomes their exponentials."""
    largest = t.new_full((*t.shape[:-1], 1), -math.inf)
    if t.shape[-1]:
        largest = t.amax(-1, keepdim=True)
    if sinks is not None:
        largest = torch.maximum(largest, _sink(sinks, tile))
    base = torch.where(largest == -math.inf, 0.0, largest)
    total = t.sub_(base).exp_().sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (_sink(sinks, tile) - base).exp()
    out = tile.as_heads(product(tile.as_rows(t), v[:, :, tile.keys]))
    return torch.where(total == 0, 0.0, out / total), (base + total.log()).squeeze(-1)


@implements("attention", backend="eager")
def attention(
    q, k, v, mask=None, sinks=None, key_lengths=None, q_offsets=None, k_offsets=None, *,
    out_dtype=None, **how,
):  # fmt: skip
    out = q.new_empty((*q.shape[:3], v.shape[3]), dtype=out_dtype or q.dtype)
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    logits = Logits(q, k, mask, key_lengths, q_offsets, k_offsets, how)
    for heads in logits.heads():
        wide_k = k[heads.batches, heads.key_heads].float()
        wide_v = v[heads.batches, heads.key_heads].float()
        for tile in logits.tiles(heads):
            t, _ = logits.made(tile, wide_k)
            place = (heads.batches, heads.heads, tile.queries)
            out[place], lse[place] = _softmax_of(t, wide_v, sinks, tile)
    return out, lse


def _weights(t: Tensor, lse: Tensor) -> Tensor:
    """exp(t - lse), at most 2^127 whatever lse is; 0 where that is infinite."""
    p = (t - lse).exp_().clamp_(max=_LARGEST_WEIGHT)
    return p.masked_fill_((p < SMALLEST_WEIGHT) | (t == -math.inf) | lse.isinf(), 0.0)


def _sum_to(values: Tensor, shape: tuple) -> Tensor:
    dims = [d for d, (n, wanted) in enumerate(zip(values.shape, shape, strict=True)) if n != wanted]
    return values.sum(dims, keepdim=True) if dims else values


class _Gradients:
    """Sums in f32 over the tiles."""

    def __init__(self, q, k, v, sinks, mask, mask_gradient: bool):
        self.d_q = q.new_empty(q.shape)
        self.d_k = k.new_zeros(k.shape, dtype=torch.float32)
        self.d_v = v.new_zeros(v.shape, dtype=torch.float32)
        self.d_mask = torch.zeros_like(mask, dtype=torch.float32) if mask_gradient else None
        self.sinks = sinks
        self.d_sinks = None if sinks is None else torch.zeros_like(sinks, dtype=torch.float32)

    def add(self, logits: Logits, tile: Tile, wide_k, wide_v, d_out, out, lse) -> None:
        of, gradient = tile.of, tile.rows(d_out)
        delta = tile.as_heads((gradient * tile.rows(out)).sum(-1, keepdim=True))
        lse = lse[of.batches, of.heads, tile.queries].unsqueeze(-1)
        t, slope = logits.made(tile, wide_k, with_slope=True)
        p = _weights(t, lse)
        place = (of.batches, of.key_heads, tile.keys)
        self.d_v[place] += product(tile.as_rows(p).mT, gradient)
        d_logit = tile.as_heads(gradient @ wide_v[:, :, tile.keys].mT)
        gone = p == 0  # whose values and slopes may be NaN
        d_logit = d_logit.sub_(delta).mul_(p).masked_fill_(gone, 0.0)
        if self.d_mask is not None:
            part = part_of(self.d_mask, tile)
            part.add_(_sum_to(d_logit, part.shape))
        d_product = tile.as_rows(d_logit.mul_(slope).masked_fill_(gone, 0.0))
        self.d_k[place] += product(d_product.mT, tile.rows(logits.q))
        self.d_q[of.batches, of.heads, tile.queries] = tile.as_heads(
            product(d_product, wide_k[:, :, tile.keys])
        )
        if self.sinks is not None:
            p = _weights(_sink(self.sinks, tile), lse)
            part = torch.where(p == 0, 0.0, p * delta)
            self.d_sinks[of.heads] -= part.sum((0, 2, 3))


@implements("attention_backward", backend="eager")
def attention_backward(
    d_out, q, k, v, out, lse, mask=None, sinks=None, key_lengths=None, q_offsets=None,
    k_offsets=None, *, mask_gradient, **how,
):  # fmt: skip
    logits = Logits(q, k, mask, key_lengths, q_offsets, k_offsets, how)
    made = _Gradients(q, k, v, sinks, mask, mask_gradient)
    for heads in logits.heads():
        wide_k = k[heads.batches, heads.key_heads].float()
        wide_v = v[heads.batches, heads.key_heads].float()
        for tile in logits.tiles(heads):
            made.add(logits, tile, wide_k, wide_v, d_out, out, lse)
    results = [made.d_q, made.d_k.to(k.dtype), made.d_v.to(v.dtype)]
    if mask_gradient:
        results.append(made.d_mask.to(mask.dtype))
    if sinks is not None:
        results.append(made.d_sinks.to(sinks.dtype))
    return tuple(results)
