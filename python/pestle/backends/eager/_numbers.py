"""The scalar rules of docs/formats over whole tensors: f32 operation by operation, codes by integer
arithmetic. Divisors are tensors on the operand's device: torch multiplies by the reciprocal of a
Python number on CUDA, which rounds differently."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

INF_BITS = 0x7F800000


@dataclass(frozen=True)
class Format:
    """A small float: what formats/minifloat.h calls its traits."""

    man: int
    bias: int
    sign_shift: int
    max_code: int
    nan_code: int
    max: float
    max_exponent: int
    max_fraction: int


E4M3 = Format(3, 7, 7, 0x7E, 0x7F, 448.0, 8, 0x600000)
E5M2 = Format(2, 15, 7, 0x7B, 0x7F, 57344.0, 15, 0x600000)
E2M1 = Format(1, 1, 3, 0x7, 0x7, 6.0, 2, 0x400000)
FP8 = {torch.float8_e4m3fn: E4M3, torch.float8_e5m2: E5M2}


def rows(x: Tensor) -> Tensor:
    """[*M, K] as [M, K]."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def turned(codes: Tensor) -> Tensor:
    """[M, K] bytes of any dtype as [K, M]."""
    return codes.view(torch.uint8).t().contiguous().view(codes.dtype)


def padded(x: Tensor, columns: int, rows: int) -> Tensor:
    """[M, K] with so many zeros after each row and rows of zeros after the last one; torch before
    2.7 pads no empty tensor."""
    if x.numel():
        return torch.nn.functional.pad(x, (0, columns, 0, rows))
    return x.new_zeros((x.shape[-2] + rows, x.shape[-1] + columns))


def number(value: float, like: Tensor) -> Tensor:
    return torch.full((), value, dtype=torch.float32, device=like.device)


def divide(a: Tensor, b: Tensor | float) -> Tensor:
    """One IEEE division, on every device."""
    return a / (b if isinstance(b, Tensor) else number(b, a))


def bits(x: Tensor) -> Tensor:
    """The bit patterns of f32 values."""
    return x.float().contiguous().view(torch.int32)


def abs_bits(x: Tensor) -> Tensor:
    """|x| as integers, whose order is that of magnitudes, with NaN above Inf."""
    return bits(x) & 0x7FFFFFFF


def amax(magnitudes: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The largest of abs_bits along some dimensions, which stay with size 1; 0 of nothing."""
    if magnitudes.numel() == 0:
        shape = [1 if d in dims else n for d, n in enumerate(magnitudes.shape)]
        return magnitudes.new_zeros(shape)
    return magnitudes.amax(dims, keepdim=True)


def float_of(pattern: Tensor) -> Tensor:
    return pattern.contiguous().view(torch.float32)


def max_keep_nan(x: Tensor, floor: float) -> Tensor:
    nan, low = number(math.nan, x), number(floor, x)
    return torch.where(x.isnan(), nan, torch.where(x > low, x, low))


def in_blocks(x: Tensor, high: int, wide: int) -> Tensor:
    """[M, K] as [M / high, high, K / wide, wide], filled up with zeros."""
    m, k = x.shape
    x = padded(x, -k % wide, -m % high)
    return x.reshape(-(-m // high), high, -(-k // wide), wide)


def spread(scale: Tensor, high: int, wide: int, m: int, k: int) -> Tensor:
    """One scale per block as [M, K]."""
    return scale.repeat_interleave(high, 0)[:m].repeat_interleave(wide, 1)[:, :k]


def fp8_codes(v: Tensor, dtype: torch.dtype) -> Tensor:
    """Nearest codes of f32 values, ties to even, saturating; NaN is 0x7F."""
    limit = FP8[dtype].max
    codes = v.clamp(-limit, limit).to(dtype).view(torch.uint8)
    return torch.where(v.isnan(), FP8[dtype].nan_code, codes).view(dtype)


def small_codes(v: Tensor, form: Format, u: Tensor | None = None) -> Tensor:
    """Codes as bytes: nearest, ties to even, or stochastic by 16 random bits an element."""
    pattern = bits(v)
    magnitude = (pattern & 0x7FFFFFFF).long()
    field, fraction = magnitude >> 23, magnitude & 0x007FFFFF
    m = torch.where(field != 0, fraction | 0x00800000, fraction)
    above = field.clamp(min=1) - (128 - form.bias)  # the target's smallest normal exponent
    shift = 23 - form.man + (-above).clamp(min=0)
    if u is None:
        shift = shift.clamp(max=26)  # beyond, all is below half of the smallest subnormal
        q = (m + (1 << (shift - 1)) - 1 + ((m >> shift) & 1)) >> shift
    else:
        shift = shift.clamp(max=40)  # m + r stays below 2^40 whatever u is
        q = (m + (u << (shift - 16))) >> shift
    q = ((above.clamp(min=0) << form.man) + q).clamp(max=form.max_code)
    q = q | ((pattern < 0).long() << form.sign_shift)
    return torch.where(magnitude > INF_BITS, form.nan_code, q).to(torch.uint8)


def stochastic_fp8_codes(v: Tensor, dtype: torch.dtype, u: Tensor) -> Tensor:
    return small_codes(v, FP8[dtype], u).view(dtype)


def random_bits(seed: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """16 Philox bits of each element, counted row by row (formats/philox.h)."""
    count = math.prod(shape)
    block = torch.arange(-(-count // 8), dtype=torch.int64, device=device)
    low = 0xFFFFFFFF
    zero = torch.zeros_like(block)
    c = [block & low, block >> 32, zero, zero]
    key0, key1 = seed & low, seed >> 32 & low
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57  # 64 bits; the wrap keeps each of them
        c = [(p1 >> 32 & low) ^ c[1] ^ key0, p1 & low, (p0 >> 32 & low) ^ c[3] ^ key1, p0 & low]
        key0, key1 = key0 + 0x9E3779B9 & low, key1 + 0xBB67AE85 & low
    words = torch.stack(c, 1)
    lanes = torch.stack((words & 0xFFFF, words >> 16), 2)
    return lanes.reshape(-1)[:count].reshape(shape)


def round_clamp(v: Tensor, low: int, high: int) -> Tensor:
    """clamp(round_half_even(v)) as f32; NaN gives 0."""
    return torch.where(v.isnan(), number(0.0, v), v.clamp(low, high)).round()


def int_stochastic(t: Tensor, u: Tensor, low: int, high: int) -> Tensor:
    """clamp(floor(t) + (u < part * 65536)) as f32; NaN gives 0."""
    inside = torch.where(t.isnan(), number(0.0, t), t.clamp(low, high))
    down = inside.floor()
    up = u.float() < (inside - down) * 65536.0
    return down + torch.where((inside > low) & (inside < high), up, False).float()
