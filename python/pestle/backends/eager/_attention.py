"""What attention and its backward share: the tiles in which logits are made, what a query sees, and
products in which a key that does not count adds nothing, whatever its values.

No more than 2^24 logits exist at a time (one query of the heads that share keys may have more), in
at most eight f32 copies; keys and values of the heads in work are there as f32, too."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

LOGITS = 1 << 24  # at a time
_QUERIES = 256  # of a tile at least, where they fit: keys are widened once for all of them
SMALLEST_WEIGHT = 2.0**-126  # exponentials below it count as 0
_NO_LIMIT = -1


@dataclass
class Heads:
    """Some batches, and some heads of k with those of q that share them."""

    batches: slice
    key_heads: slice
    heads: slice


@dataclass
class Tile:
    """Some queries of them, and the keys that any of these may see."""

    of: Heads
    queries: slice
    keys: slice

    def rows(self, t: Tensor) -> Tensor:
        """q, or what has its shape, as [batches, heads of k, heads that share * queries, D]."""
        return self.as_rows(t[self.of.batches, self.of.heads, self.queries].float())

    def as_heads(self, rows: Tensor) -> Tensor:
        """Rows as [batches, heads of q, queries, ...]."""
        count = self.queries.stop - self.queries.start
        heads = self.of.heads.stop - self.of.heads.start
        return rows.reshape(rows.shape[0], heads, count, rows.shape[-1])

    def as_rows(self, heads: Tensor) -> Tensor:
        batches, count, queries, size = heads.shape
        key_heads = self.of.key_heads.stop - self.of.key_heads.start
        return heads.reshape(batches, key_heads, count // key_heads * queries, size)


def _slices(count: int, step: int) -> Iterator[slice]:
    for start in range(0, count, step):
        yield slice(start, min(count, start + step))


def part_of(mask: Tensor, tile: Tile) -> Tensor:
    """What a tile has of a mask, or of what has its shape: a view."""
    parts = (tile.of.batches, tile.of.heads, tile.queries, tile.keys)
    return mask[tuple(
        slice(None) if size == 1 else part for size, part in zip(mask.shape, parts, strict=True)
    )]  # fmt: skip


def _within(offsets: Tensor, most: int) -> Tensor:
    return offsets.long().clamp(0, most)


class Seen:
    """The range of keys that each query sees by lengths, packing, causality and window, as
    ops/attention/attention_args.h has it, and the mask."""

    def __init__(self, q, k, mask, key_lengths, q_offsets, k_offsets, how: dict):
        self.queries, self.keys, self.mask, self.device = q.shape[2], k.shape[2], mask, q.device
        most = self.queries + self.keys  # as good as no limit
        left, right = how["window_left"], how["window_right"]
        self.left = None if left == _NO_LIMIT else min(left, most)
        self.right = None if right == _NO_LIMIT else min(right, most)
        if how["causal"]:
            self.right = 0
        self.bottom_right = how["align"] == "bottom_right"
        self.key_lengths, self.offsets = key_lengths, (q_offsets, k_offsets)
        # Where places are counted from something that lies on the device, so do the ranges.
        moved = q_offsets is not None or (key_lengths is not None and self.bottom_right)
        self.shift = None if moved else self.bottom_right * (self.keys - self.queries)

    def possible(self, queries: slice) -> slice:
        """The keys that some of these queries may see, as far as that is known here."""
        begin, end = 0, self.keys
        if self.shift is not None and self.left is not None:
            begin = max(begin, queries.start + self.shift - self.left)
        if self.shift is not None and self.right is not None:
            end = min(end, queries.stop - 1 + self.shift + self.right + 1)
        end = max(end, 0)
        return slice(min(begin, end), end)

    def ranges(self, batches: slice, queries: slice) -> tuple[Tensor, Tensor] | None:
        """First key and end of each query, as [batches or 1, queries]; None: all keys."""
        if all(x is None for x in (self.left, self.right, self.key_lengths, self.offsets[0])):
            return None
        query = torch.arange(queries.start, queries.stop, device=self.device).unsqueeze(0)
        first, last = torch.zeros_like(query), torch.full_like(query, self.queries)
        begin, end = first, torch.full_like(query, self.keys)
        if self.offsets[0] is not None:
            first, last, begin, end = self._of_sequence(query)
        elif self.key_lengths is not None:
            lengths = _within(self.key_lengths[batches], self.keys)
            end = lengths.unsqueeze(1).expand(-1, query.shape[1])
        place = end - (last - query) if self.bottom_right else begin + query - first
        if self.left is not None:
            begin = torch.maximum(begin, place - self.left)
        if self.right is not None:
            end = torch.minimum(end, place + self.right + 1)
        return begin, end

    def _of_sequence(self, query: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """First query and end, first key and end of each query's sequence; no key in none."""
        q_offsets = _within(self.offsets[0], self.queries).contiguous()
        k_offsets = _within(self.offsets[1], self.keys)
        count = q_offsets.shape[0]
        sequence = torch.searchsorted(q_offsets, query, right=True) - 1
        inside = (sequence >= 0) & (sequence < count - 1)
        sequence = torch.where(inside, sequence, 0)
        after = torch.where(inside, sequence + 1, 0)
        begin = k_offsets[sequence]
        end = torch.maximum(begin, k_offsets[after])
        end = torch.where(inside, end, 0)
        begin = torch.where(inside, begin, 0)
        return q_offsets[sequence], q_offsets[after], begin, end

    def hidden(self, tile: Tile) -> Tensor | None:
        """True where a key does not count, to be broadcast over [batches, heads, queries, keys]."""
        hidden = None
        if self.mask is not None and self.mask.dtype == torch.bool:
            hidden = ~part_of(self.mask, tile)
        if (ranges := self.ranges(tile.of.batches, tile.queries)) is None:
            return hidden
        begin, end = (t[:, None, :, None] for t in ranges)
        key = torch.arange(tile.keys.start, tile.keys.stop, device=self.device)
        outside = (key < begin) | (key >= end)
        return outside if hidden is None else hidden | outside


class Logits:
    """Logits of a call of either op."""

    def __init__(self, q, k, mask, key_lengths, q_offsets, k_offsets, how: dict):
        self.q, self.k = q, k
        self.seen = Seen(q, k, mask, key_lengths, q_offsets, k_offsets, how)
        self.scale = how["scale"] or 1 / math.sqrt(max(q.shape[3], 1))
        self.softcap = how["softcap"]

    def heads(self) -> Iterator[Heads]:
        batches, key_heads, keys = self.k.shape[:3]
        group, queries = self.q.shape[1] // key_heads, self.q.shape[2]
        one = max(1, group * min(queries, _QUERIES) * keys)  # logits of a tile of one head of k
        together = max(1, min(key_heads, LOGITS // one))
        whole = max(1, LOGITS // (one * together)) if together == key_heads else 1
        for some in _slices(batches, whole):
            for of_k in _slices(key_heads, together):
                yield Heads(some, of_k, slice(of_k.start * group, of_k.stop * group))

    def tiles(self, of: Heads) -> Iterator[Tile]:
        rows = (of.batches.stop - of.batches.start) * (of.heads.stop - of.heads.start)
        for queries in _slices(self.q.shape[2], max(1, LOGITS // max(1, rows * self.k.shape[2]))):
            yield Tile(of, queries, self.seen.possible(queries))

    def made(self, tile: Tile, k: Tensor, with_slope: bool = False):
        """Logits [batches, heads, queries, keys], -Inf where a key does not count, and what they
        change by when their products of q and k do: one number, or one for each."""
        t = tile.rows(self.q) @ k[:, :, tile.keys].mT
        t = tile.as_heads(t.mul_(self.scale))
        slope = self.scale
        if self.softcap:
            t.div_(self.softcap).tanh_()
            if with_slope:
                slope = (1 - t * t).mul_(self.scale)
            t.mul_(self.softcap)
        mask = self.seen.mask
        if mask is not None and mask.dtype != torch.bool:
            t.add_(part_of(mask, tile))
        if (hidden := self.seen.hidden(tile)) is not None:
            t.masked_fill_(hidden, -math.inf)
        return t, slope


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b where a 0 of `a` takes away what it meets, be it NaN or infinite."""
    if b.device.type != "cpu":  # looking whether there are any would wait for the device
        return skipping_zeros(a, b, torch.float16)
    return a @ b if b.isfinite().all() else skipping_zeros(a, b, torch.float32)


def skipping_zeros(a: Tensor, b: Tensor, counts: torch.dtype) -> Tensor:
    """The same by finite products and by counting the others in a dtype, in which many may be
    infinitely many."""
    nan = b.isnan()
    up, down = ((b == math.inf) | nan).to(counts), ((b == -math.inf) | nan).to(counts)
    positive, negative = (a > 0).to(counts), (a < 0).to(counts)
    rises = positive @ up + negative @ down > 0
    falls = positive @ down + negative @ up > 0
    sums = a @ b.nan_to_num(1, 1, -1)  # 1: an infinite a stays infinite
    sums = torch.where(rises, math.inf, 0.0) + sums
    return torch.where(falls, -math.inf, 0.0) + sums
