"""What comfy-kitchen asks of a rotary embedding's tensors."""

from __future__ import annotations

from torch import Tensor


def _span(x: Tensor) -> tuple[int, int]:
    """First and last byte of the storage that x reaches."""
    steps = [(size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)]
    first = x.storage_offset() + sum(step for step in steps if step < 0)
    last = x.storage_offset() + sum(step for step in steps if step > 0)
    return first * x.element_size(), (last + 1) * x.element_size() - 1


def _dimensions(x: Tensor) -> list[tuple[int, int]]:
    """(stride, size) of what has more than one element, the innermost first."""
    pairs = zip(x.stride(), x.shape, strict=True)
    return sorted((abs(stride), size) for stride, size in pairs if size > 1)


def _side_by_side(x: Tensor, y: Tensor) -> bool:
    """Whether the rows of both lie next to each other in one period: q and k of one projection.
    Strides that are no multiples of the smallest could meet elsewhere, so they count as meeting."""
    if x.shape != y.shape or x.stride() != y.stride():
        return False
    outer, row = _dimensions(x), 1
    while outer and outer[0][0] == row:
        row *= outer.pop(0)[1]
    period = outer[0][0] if outer else 0
    if row == 1 or any(stride % period for stride, _ in outer):
        return False
    apart = abs(x.storage_offset() - y.storage_offset())
    return row <= apart <= period - row


def _memory(x: Tensor) -> int:
    """What tells one storage from another, of tensors without memory, too."""
    storage = x.untyped_storage()
    try:
        return storage.data_ptr() or storage._cdata
    except RuntimeError:  # one that is traced
        return storage._cdata


def _overlap(x: Tensor, y: Tensor) -> bool:
    if x.device != y.device or not x.numel() or not y.numel():
        return False
    if _memory(x) != _memory(y):
        return False
    (first, last), (other_first, other_last) = _span(x), _span(y)
    return first <= other_last and other_first <= last and not _side_by_side(x, y)


def _meets_itself(x: Tensor) -> bool:
    least = 1
    for stride, size in _dimensions(x):
        if stride < least:
            return True
        least = stride * size
    return False


def check_rope_inplace(*xs: Tensor, readonly: tuple[Tensor, ...] = ()) -> None:
    """Raises where one or two tensors can't be written into, or are read while they are."""
    if any(x.requires_grad for x in (*xs, *readonly)):
        raise RuntimeError("in-place RoPE is inference-only: a tensor here requires a gradient")
    if any(_meets_itself(x) for x in xs):
        raise ValueError("in-place RoPE: a view with internal overlap can't be written into")
    if len(xs) == 2 and _overlap(*xs):
        raise ValueError("in-place RoPE of two tensors needs non-overlapping input storage")
    if any(_overlap(x, other) for x in xs for other in readonly):
        raise ValueError("in-place RoPE: inputs must not overlap frequencies or scales")


def trim_rope_freqs(x: Tensor, freqs_cis: Tensor) -> Tensor:
    """Frequencies of more positions (dimension 2) than x has, cut to x's; one of x is any."""
    longer = min(x.ndim, freqs_cis.ndim) > 2 and 1 != x.shape[2] < freqs_cis.shape[2]
    return freqs_cis[:, :, : x.shape[2]] if longer else freqs_cis


def detect_rms_rope_bnhd(x: Tensor, freqs_cis: Tensor, rot_dim: int = 0) -> bool | None:
    """Whether positions are dimension 1 of x (True) or 2 (False), as freqs_cis [B, D1, D2, pairs,
    2, 2] has them; None where the two don't belong together."""
    if x.ndim != 4 or freqs_cis.ndim != 6:
        return None
    batch, first, second, size = x.shape
    turned = rot_dim or size
    fits = freqs_cis.shape[3:] == (turned // 2, 2, 2) and freqs_cis.shape[0] in (1, batch)
    if not size or size % 2 or turned % 2 or turned > size or not fits:
        return None
    at_first, at_second = freqs_cis.shape[1:3]
    if at_first == 1 and at_second in (1, second):
        return False
    return True if at_first in (1, first) and at_second == 1 else None
