"""softmax, log_softmax, cross_entropy and their gradients: f32, one rounding."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._backends import implements


def _scaled(x: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    t = x.float() * scale
    return t if mask is None else t + mask.float()


@implements("softmax", backend="eager")
def softmax(x, mask=None, *, dim, scale):
    return torch.softmax(_scaled(x, mask, scale), dim).to(x.dtype)


@implements("log_softmax", backend="eager")
def log_softmax(x, mask=None, *, dim, scale):
    return torch.log_softmax(_scaled(x, mask, scale), dim).to(x.dtype)


@implements("softmax_backward", backend="eager")
def softmax_backward(d_out, out, *, dim, scale):
    gradient, y = d_out.float(), out.float()
    total = (gradient * y).sum(dim, keepdim=True)
    return (scale * (y * (gradient - total))).to(d_out.dtype)


@implements("log_softmax_backward", backend="eager")
def log_softmax_backward(d_out, out, *, dim, scale):
    gradient = d_out.float()
    total = gradient.sum(dim, keepdim=True)
    return (scale * (gradient - out.float().exp() * total)).to(d_out.dtype)


def _classes(target: Tensor, count: int, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """Targets that can be gathered, which rows are ignored, which name no class."""
    target = target.long()
    ignored = target == ignore_index
    is_class = (target >= 0) & (target < count)
    return torch.where(is_class, target, 0), ignored, ~is_class & ~ignored


@implements("cross_entropy", backend="eager")
def cross_entropy(logits, target, *, ignore_index, label_smoothing):
    t = logits.float()
    count = t.shape[-1]
    classes, ignored, wrong = _classes(target, count, ignore_index)
    # Relative to the largest logit: neither the loss nor the gradient depends on an offset.
    largest = t.amax(-1, keepdim=True)
    largest = torch.where(largest == -torch.inf, 0.0, largest)
    below = t - largest
    log_sum = below.exp().sum(-1).log()
    lse = largest.squeeze(-1).double() + log_sum.double()
    own = below.gather(-1, classes.unsqueeze(-1)).squeeze(-1) * (1 - label_smoothing)
    if label_smoothing:
        own = own + label_smoothing * below.mean(-1, dtype=torch.float64).float()
    loss = torch.where(wrong, torch.nan, log_sum - own)
    return torch.where(ignored, 0.0, loss), lse


@implements("cross_entropy_backward", backend="eager")
def cross_entropy_backward(d_loss, logits, target, lse, *, ignore_index, label_smoothing):
    t = logits.float()
    count = t.shape[-1]
    classes, ignored, wrong = _classes(target, count, ignore_index)
    wanted = torch.full_like(t, label_smoothing / count)
    wanted.scatter_add_(-1, classes.unsqueeze(-1), torch.full_like(t[..., :1], 1 - label_smoothing))
    high = lse.float()
    low = torch.where(high.isfinite(), (lse - high.double()).float(), 0.0)
    below = (t - high.unsqueeze(-1)) - low.unsqueeze(-1)
    gradient = d_loss.unsqueeze(-1) * (below.exp() - wanted)
    gradient = torch.where(wrong.unsqueeze(-1), torch.nan, gradient)
    return torch.where(ignored.unsqueeze(-1), 0.0, gradient).to(logits.dtype)
