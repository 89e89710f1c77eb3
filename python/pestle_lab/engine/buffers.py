"""Memory that a kernel gets: each tensor lies between guard bytes, an output is full of poison.

The plan of a buffer is the same in the process that runs the kernel and in the one that judges it;
what travels between them is the buffer's bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

GUARD = 256  # bytes before and after
POISON = 0xFF  # a NaN in every floating format, -1 in integers


@dataclass(frozen=True)
class Plan:
    """Where the elements of a tensor lie in its buffer."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    itemsize: int
    start: int  # bytes

    @property
    def span(self) -> int:
        """Bytes from the first element to the end of the last."""
        if 0 in self.shape:
            return 0
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return (last + 1) * self.itemsize

    @property
    def nbytes(self) -> int:
        return -(-(self.start + self.span + GUARD) // 256) * 256

    def view(self, buffer: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """The tensor in a buffer of bytes."""
        strides = tuple(s * self.itemsize for s in self.strides)
        return np.ndarray(self.shape, dtype, buffer.data, self.start, strides)

    def is_element(self) -> np.ndarray:
        """For each byte of the buffer: does it belong to an element?"""
        mask = np.zeros(self.nbytes, bool)
        strides = (*(s * self.itemsize for s in self.strides), 1)
        shape = (*self.shape, self.itemsize)
        np.ndarray(shape, bool, mask.data, self.start, strides)[...] = True
        return mask


def plan(shape: tuple[int, ...], itemsize: int, layout: str, order: tuple[int, ...] = ()) -> Plan:
    """Dimensions lie in memory in `order`, the slowest first; as written if it is empty.

    contiguous; strided: rows 8 elements apart from one another; offset: one element past an aligned
    address; transposed: the last two of the order the other way round."""
    order = list(order) or list(range(len(shape)))
    if layout == "transposed" and len(shape) > 1:
        order[-1], order[-2] = order[-2], order[-1]
    strides, step = [0] * len(shape), 1
    for place, dim in enumerate(reversed(order)):
        strides[dim] = step
        step *= max(shape[dim], 1)
        if place == 0 and layout == "strided" and len(shape) > 1:
            step += 8
    start = GUARD + (itemsize if layout == "offset" else 0)
    return Plan(tuple(shape), tuple(strides), itemsize, start)


def filled(where: Plan, dtype: np.dtype, values: np.ndarray | None) -> np.ndarray:
    """The bytes of a buffer: poison, and in it the values of an input."""
    buffer = np.full(where.nbytes, POISON, np.uint8)
    if values is not None:
        where.view(buffer, dtype)[...] = values
    return buffer


def changed_outside(where: Plan, buffer: np.ndarray) -> int:
    """How many bytes that belong to no element are not poison any more."""
    if where.span == math.prod(where.shape) * where.itemsize:  # no gaps
        end = where.start + where.span
        return sum(int((part != POISON).sum()) for part in (buffer[: where.start], buffer[end:]))
    return int((buffer[~where.is_element()] != POISON).sum())
