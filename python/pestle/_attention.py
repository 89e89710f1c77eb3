"""torch.nn.functional.scaled_dot_product_attention, computed by the op `attention`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import pestle

from .errors import InvalidArgumentError, UnsupportedError

_NAME = "scaled_dot_product_attention"


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query @ key.mT * scale + attn_mask) @ value, as torch's function of this name.

    query is [..., L, E], key [..., S, E], value [..., S, Ev]. attn_mask broadcasts to [..., L, S]:
    boolean ones are True where a key counts, others are added. is_causal counts places from the
    first query and key. Queries that see no key give 0. enable_gqa lets several heads of query
    share one of key and value. Jagged nested tensors [B, H, L*, E] are one packed call, which
    copies no rows of them. Under torch.autocast the tensors are cast as torch casts them.

    There is no dropout: another dropout_p than 0 is refused. What else attention can do, such as
    windows, soft caps and sinks, `pestle.attention` does.
    """
    if dropout_p != 0:
        raise UnsupportedError(
            f"{_NAME}: dropout_p is {dropout_p}, but Pestle's attention has no dropout: call it "
            "with dropout_p=0.0 (as in evaluation), or call torch's own function"
        )
    if is_causal and attn_mask is not None:
        raise InvalidArgumentError(f"{_NAME}: attn_mask is given although is_causal is True")
    options: dict = {"causal": is_causal, "scale": 0.0 if scale is None else scale}
    if scale == 0:  # which attention takes for the default
        query, options["scale"] = query * 0, 1.0
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value, attn_mask = (_cast(t, dtype) for t in (query, key, value, attn_mask))
    if query.is_nested or key.is_nested or value.is_nested:
        return _nested(query, key, value, attn_mask, options, enable_gqa)
    return _dense(query, key, value, attn_mask, options, enable_gqa)


def _cast(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """As torch.autocast does: all floats but doubles."""
    if tensor is None or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(dtype)


def _check_heads(query: int, key: int, value: int, enable_gqa: bool) -> None:
    if key == value and (query == key or (enable_gqa and key > 0 and query % key == 0)):
        return
    rule = "a multiple of those of key and value" if enable_gqa else "those of key and value"
    more = "" if enable_gqa else "; enable_gqa=True lets heads share keys"
    raise InvalidArgumentError(
        f"{_NAME}: query has {query} heads, key {key} and value {value}: "
        f"query's must be {rule}{more}"
    )


def _dense(query, key, value, mask, options: dict, enable_gqa: bool) -> Tensor:
    if min(t.ndim for t in (query, key, value)) < 2:
        raise InvalidArgumentError(f"{_NAME}: query, key and value need at least 2 dimensions")
    # All dimensions but the last three are batches, which broadcast; so do single heads.
    q, k, v = (t[(None,) * max(0, 4 - t.ndim)] for t in (query, key, value))
    batches = torch.broadcast_shapes(*(t.shape[:-3] for t in (q, k, v)))
    heads = [t.shape[-3] for t in (q, k, v)]
    if not enable_gqa and 1 in heads:
        q, k, v = (t.expand(*t.shape[:-3], max(heads), *t.shape[-2:]) if t.shape[-3] == 1 else t
                   for t in (q, k, v))  # fmt: skip
        heads = [t.shape[-3] for t in (q, k, v)]
    _check_heads(*heads, enable_gqa)
    count = math.prod(batches)
    q, k, v = (t.expand(*batches, *t.shape[-3:]).reshape(count, *t.shape[-3:]) for t in (q, k, v))
    if mask is not None:
        mask = _mask(mask, batches, count)
    out = pestle.attention(q, k, v, mask=mask, **options)[0]
    ndim = max(query.ndim, key.ndim, value.ndim)
    if ndim < 4:
        return out.reshape(out.shape[4 - ndim :])
    return out.reshape(*batches, *out.shape[1:])


def _mask(mask: Tensor, batches: tuple, count: int) -> Tensor:
    """The mask as [B or 1, H or 1, L or 1, S or 1]."""
    mask = mask[(None,) * max(0, 4 - mask.ndim)]
    if mask.ndim > 4 or len(batches) > 1:
        if any(size != 1 for size in mask.shape[:-3]):
            return mask.expand(*batches, *mask.shape[-3:]).reshape(count, *mask.shape[-3:])
        mask = mask.reshape(1, *mask.shape[-3:])
    return mask


def _is_packed(t: Tensor) -> bool:
    if not t.is_nested or t.layout != torch.jagged or t.ndim != 4:
        return False
    return t._ragged_idx == 2 and t.lengths() is None


def _nested(query, key, value, mask, options: dict, enable_gqa: bool) -> Tensor:
    """Jagged tensors [B, H, L*, E], which lie as [B, L*, H, E]: their rows are packed already."""
    if mask is not None:
        raise UnsupportedError(f"{_NAME}: attn_mask does not go with nested tensors")
    tensors = (query, key, value)
    if not all(_is_packed(t) for t in tensors):
        raise UnsupportedError(
            f"{_NAME}: of nested tensors, all three must be jagged ones of shape [B, H, L*, E] "
            "without gaps between their rows, "
            "such as torch.nested.nested_tensor([...], layout=torch.jagged).transpose(1, 2)"
        )
    if key.shape[2] != value.shape[2]:
        raise InvalidArgumentError(
            f"{_NAME}: key and value are nested tensors with other offsets each, which may be "
            "other lengths: torch.nested.nested_tensor_from_jagged makes them of the same offsets"
        )
    _check_heads(query.shape[1], key.shape[1], value.shape[1], enable_gqa)
    rows = [t.transpose(1, 2) for t in tensors]
    offsets = [t.offsets() for t in rows]
    packed = [t.values().transpose(0, 1).unsqueeze(0) for t in rows]
    out, _ = pestle.attention(*packed, q_offsets=offsets[0], k_offsets=offsets[1], **options)
    made = torch.nested.nested_tensor_from_jagged(
        out[0].transpose(0, 1).contiguous(), offsets=offsets[0]
    )
    return made.transpose(1, 2)
