"""Places of codes and scales: nibbles, tiles of block scales, packed words, rotations."""

from __future__ import annotations

import torch
from torch import Tensor

from . import _numbers as n

_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)  # nibble of each of the eight columns of a word


def rotate(x: Tensor, size: int) -> Tensor:
    """Groups of `size` columns of f32 [M, K] by the regular Hadamard matrix; 0: as they are."""
    if size == 0:
        return x
    v, step = x, 1
    while step < size:
        a, b, c, d = v.reshape(-1, 4, step).unbind(1)
        parts = (((a + b) + c) - d, ((a + b) - c) + d, ((a - b) + c) + d, ((b - a) + c) + d)
        v = torch.stack(parts, 1)
        step *= 4
    return (v * size**-0.5).reshape(x.shape)


def pack(codes: Tensor, high_first: bool) -> Tensor:
    """[M, K] codes of 4 bits as bytes [M, K / 2]."""
    even, odd = codes[:, ::2] & 0xF, codes[:, 1::2] & 0xF
    return (even << 4 | odd) if high_first else (odd << 4 | even)


def unpack(packed: Tensor, high_first: bool) -> Tensor:
    """Bytes [M, K / 2] as codes [M, K]."""
    pair = (packed >> 4, packed & 0xF) if high_first else (packed & 0xF, packed >> 4)
    return torch.stack(pair, -1).reshape(packed.shape[0], packed.shape[1] * 2)


def swizzle(scale: Tensor) -> Tensor:
    """[M, C] of bytes in 128 x 4 tiles, filled up with zeros."""
    m, c = scale.shape
    high, wide = -(-m // 128), -(-c // 4)
    filled = n.padded(scale, wide * 4 - c, high * 128 - m)
    tiles = filled.reshape(high, 4, 32, wide, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(high * 128, wide * 4)


def unswizzle(scale: Tensor, m: int, c: int) -> Tensor:
    high, wide = -(-m // 128), -(-c // 4)
    tiles = scale.reshape(high, wide, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(high * 128, wide * 4)[:m, :c]


def plain_scale(scale: Tensor, layout: str, m: int, c: int) -> Tensor:
    """Block scales as bytes [M, C], from either layout."""
    scale = scale.view(torch.uint8)
    return unswizzle(scale, m, c) if layout == "swizzled" else scale.reshape(m, c)


def e2m1_values(codes: Tensor) -> Tensor:
    halves = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    table = torch.tensor(halves + [-v for v in halves], device=codes.device)
    return table[codes.int()]


def e8m0_values(codes: Tensor) -> Tensor:
    """2^(code - 127); 255 is NaN."""
    pattern = torch.where(codes == 0, 0x00400000, codes.int() << 23)
    return n.float_of(torch.where(codes == 255, 0x7FC00000, pattern).int())


def e8m0_inverses(codes: Tensor) -> Tensor:
    return e8m0_values(torch.where(codes == 255, codes, 254 - codes))


def _order(packing: str) -> tuple[int, ...]:
    return _AWQ if packing == "awq" else tuple(range(8))


def words_of(codes: Tensor, packing: str) -> Tensor:
    """[..., 8 * W] codes as i32 words [..., W]."""
    eight = codes.long().unflatten(-1, (codes.shape[-1] // 8, 8)) & 0xF
    shifts = torch.tensor([4 * place for place in _order(packing)], device=codes.device)
    word = (eight << shifts).sum(-1)
    return torch.where(word >= 1 << 31, word - (1 << 32), word).int()


def codes_of_words(words: Tensor, packing: str) -> Tensor:
    """i32 words [..., W] as codes [..., 8 * W]."""
    shifts = torch.tensor([4 * place for place in _order(packing)], device=words.device)
    return ((words.long().unsqueeze(-1) >> shifts) & 0xF).flatten(-2).to(torch.uint8)
