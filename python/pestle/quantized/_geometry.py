"""Where the parts of a quantised weight lie in its stored tensors, so that rows and columns can be
cut, gathered and joined without decoding a value.

A weight is [*batch, N, K] with codes along K. Each stored tensor has one entry for so many rows and
columns of it; a Field says how many.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

TILE_ROWS, TILE_COLUMNS = 128, 4


@dataclass(frozen=True)
class Field:
    """Elements of the weight that one entry of a stored tensor stands for; 0: all of that side."""

    rows: int
    columns: int
    axes: int = 2  # dimensions without the batch: 2, or 1 where there is no axis of columns
    tiles: bool = False  # scales in tiles of 128 x 4
    flipped: bool = False  # stored [columns, rows]
    shared: bool = False  # the same for every weight of a batch


WHOLE = Field(0, 0, axes=0)
CODES = Field(1, 1)
NIBBLES = Field(1, 2)


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """8-bit floats as uint8: torch gathers and joins few of their dtypes."""
    is_small = tensor.dtype.is_floating_point and tensor.element_size() == 1
    return tensor.view(torch.uint8) if is_small else tensor


def like(tensor: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype == original.dtype else tensor.view(original.dtype)


def has_batch(tensor: torch.Tensor, field: Field) -> bool:
    """Whether the tensor has entries for each weight of a batch."""
    if field.shared:
        return False
    if field.axes == 0:
        return tensor.ndim > 0 and tensor.numel() > 1
    return tensor.ndim > field.axes


def _untiled(scales: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    import pestle

    if scales.ndim > 2:
        return torch.stack([as_bytes(_untiled(s, rows, columns)) for s in scales]).view(
            scales.dtype
        )
    return pestle.unswizzle_scales(scales, rows=rows, columns=columns)


def _tiled(scales: torch.Tensor) -> torch.Tensor:
    import pestle

    if scales.ndim > 2:
        return torch.stack([as_bytes(_tiled(s)) for s in scales]).view(scales.dtype)
    return pestle.swizzle_scales(scales)


def tiled_rows(scales: torch.Tensor, index: torch.Tensor, columns: int) -> torch.Tensor:
    """These rows of scales that lie in tiles, in plain order; the others are not touched."""
    across = scales.shape[-1] // TILE_COLUMNS
    c = torch.arange(columns, device=scales.device)
    r = index.to(scales.device).reshape(-1, 1)
    tile = (r // TILE_ROWS) * across + c // TILE_COLUMNS
    within = (r % 32) * 16 + (r % TILE_ROWS) // 32 * 4 + c % TILE_COLUMNS
    return like(as_bytes(scales).reshape(-1)[tile * 512 + within], scales)


def _row_axis(tensor: torch.Tensor, field: Field) -> int:
    return tensor.ndim - 1 if field.flipped or field.axes == 1 else tensor.ndim - 2


def cut_rows(
    tensor: torch.Tensor, field: Field, start: int, stop: int, step: int, shape: tuple
) -> torch.Tensor | None:
    """Rows start:stop:step of the weight; None where entries of several rows would be cut through.
    `shape`: rows and columns of the weight as stored."""
    if field.rows == 0:
        return tensor
    if field.tiles:
        aligned = step == 1 and start % TILE_ROWS == 0 and stop % TILE_ROWS == 0
        if aligned:
            return tensor[..., start:stop, :]
        return _tiled(
            _untiled(tensor, shape[0], shape[1] // field.columns)[..., start:stop:step, :]
        )
    if field.rows > 1:
        if step != 1 or start % field.rows or (stop % field.rows and stop != shape[0]):
            return None
        start, stop = start // field.rows, cdiv(stop, field.rows)
    axis = _row_axis(tensor, field)
    return tensor[(slice(None),) * axis + (slice(start, stop, step),)]


def gather_rows(
    tensor: torch.Tensor, field: Field, index: torch.Tensor, shape: tuple
) -> torch.Tensor | None:
    """These rows of a weight without a batch."""
    if field.rows == 0:
        return tensor
    if field.tiles:
        return _tiled(tiled_rows(tensor, index, shape[1] // field.columns))
    axis, index = _row_axis(tensor, field), index.to(tensor.device)
    if field.rows > 1:
        return None
    return like(as_bytes(tensor).index_select(axis, index), tensor)


def cut_columns(
    tensor: torch.Tensor, field: Field, start: int, stop: int, shape: tuple
) -> torch.Tensor:
    """Columns start:stop, both at ends of every field's entries."""
    if field.columns == 0 or field.axes < 2:
        return tensor
    first, last = start // field.columns, cdiv(stop, field.columns)
    if field.tiles:
        return _tiled(_untiled(tensor, shape[0], shape[1] // field.columns)[..., first:last])
    if field.flipped:
        return tensor[..., first:last, :]
    return tensor[..., first:last]


def join_rows(
    tensors: list[torch.Tensor], field: Field, shapes: list[tuple]
) -> torch.Tensor | None:
    """One stored tensor of the weights below each other; None where that can't be told apart."""
    first = tensors[0]
    if field.rows == 0:
        same = all(t is first or torch.equal(as_bytes(t), as_bytes(first)) for t in tensors[1:])
        return first if same else None
    if field.tiles:
        if any(rows % TILE_ROWS for rows, _ in shapes[:-1]):
            pairs = zip(tensors, shapes, strict=True)
            tensors = [_untiled(t, rows, k // field.columns) for t, (rows, k) in pairs]
            return _tiled(joined_along(tensors, tensors[0].ndim - 2))
    elif field.rows > 1 and any(rows % field.rows for rows, _ in shapes[:-1]):
        return None
    return joined_along(tensors, _row_axis(first, field))


def join_columns(
    tensors: list[torch.Tensor], field: Field, shapes: list[tuple]
) -> torch.Tensor | None:
    """One stored tensor of the weights beside each other."""
    first = tensors[0]
    if field.columns == 0 or field.axes < 2:
        same = all(t is first or torch.equal(as_bytes(t), as_bytes(first)) for t in tensors[1:])
        return first if same else None
    if field.tiles:
        pairs = zip(tensors, shapes, strict=True)
        tensors = [_untiled(t, rows, k // field.columns) for t, (rows, k) in pairs]
        return _tiled(joined_along(tensors, tensors[0].ndim - 1))
    return joined_along(tensors, first.ndim - 2 if field.flipped else first.ndim - 1)


def joined_along(tensors: list[torch.Tensor], axis: int) -> torch.Tensor:
    return like(torch.cat([as_bytes(t) for t in tensors], axis), tensors[0])


def regrouped_rows(
    tensor: torch.Tensor, field: Field, shape: tuple, old: tuple
) -> torch.Tensor | None:
    """A tensor with an entry for each row, its rows divided among other batches. `old`: rows and
    columns of a weight as stored; None where rows of padding lie between the weights."""
    if field.tiles:
        plain = _untiled(tensor, old[0], old[1] // field.columns)
        return _tiled(like(as_bytes(plain).reshape(*shape[:-1], plain.shape[-1]), tensor))
    if tensor.shape[tensor.ndim - field.axes] != old[0]:
        return None
    return tensor.reshape(*shape[:-1], *((tensor.shape[-1],) if field.axes == 2 else ()))


def stacked(tensors: list[torch.Tensor], field: Field) -> torch.Tensor:
    if field.shared:
        return tensors[0]
    if field.axes == 0:
        tensors = [t.reshape(()) for t in tensors]
    return like(torch.stack([as_bytes(t) for t in tensors]), tensors[0])
