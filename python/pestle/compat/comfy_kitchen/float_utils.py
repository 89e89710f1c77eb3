"""Small pieces around number formats, by comfy-kitchen's names: packing of 4-bit codes, the tile
order of block scales, minifloats of any size. Plain PyTorch, for any device."""

from __future__ import annotations

from functools import cache

import torch

EBITS_F32, MBITS_F32, F32_EXP_BIAS = 8, 23, 127
F4_E2M1_MAX, F4_E2M1_EPS = 6.0, 0.5
F8_E4M3_MAX, F8_E4M3_EPS = 448.0, 0.125
F8_E5M2_MAX, F8_E5M2_EPS = 57344.0, 0.0625
E8M0_BIAS = 127

_TILE_ROWS, _TILE_COLUMNS = 128, 4


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def roundup(x: int, multiple: int) -> int:
    return ceil_div(x, multiple) * multiple


def down_size(size) -> tuple[int, ...]:
    """The shape of codes packed two a byte."""
    if size[-1] % 2:
        raise ValueError(f"the last dimension of {tuple(size)} must be even to be packed in pairs")
    return (*size[:-1], size[-1] // 2)


def up_size(size) -> tuple[int, ...]:
    """The shape of codes unpacked from two a byte."""
    return (*size[:-1], size[-1] * 2)


# ---- 4-bit codes


def pack_uint4(uint8_data: torch.Tensor, hi_first: bool = True) -> torch.Tensor:
    """Two codes a byte; with hi_first the first of each pair is the high nibble."""
    pairs = uint8_data.reshape(*down_size(uint8_data.shape), 2)
    first, second = pairs[..., 0], pairs[..., 1]
    high, low = (first, second) if hi_first else (second, first)
    return (high << 4) | (low & 15)


def unpack_uint4(uint8_data: torch.Tensor, hi_first: bool = True) -> torch.Tensor:
    """The codes of each byte, one a byte."""
    high, low = uint8_data >> 4, uint8_data & 15
    pair = (high, low) if hi_first else (low, high)
    return torch.stack(pair, -1).reshape(up_size(uint8_data.shape))


def swap_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """High-first packing to low-first and back."""
    return ((packed >> 4) & 15) | (packed << 4)


def fp4_x2_to_f32(a: torch.Tensor, hi_first: bool = True) -> torch.Tensor:
    """The values of E2M1 codes that are packed two a byte."""
    return _floatx_unpacked_to_f32(unpack_uint4(a, hi_first), 2, 1)


# ---- block scales


def to_blocked(input_matrix: torch.Tensor, flatten: bool = True) -> torch.Tensor:
    """A matrix of scales in tiles of 128 rows by 4 columns, as cuBLAS reads them; zeros where
    there was nothing. One dimension, or with flatten=False the padded matrix's shape."""
    rows, columns = input_matrix.shape
    tall, wide = roundup(rows, _TILE_ROWS), roundup(columns, _TILE_COLUMNS)
    # Bytes of narrow floats: not every operator knows those.
    narrow = input_matrix.element_size() == 1
    values = input_matrix.view(torch.uint8) if narrow else input_matrix
    padded = torch.nn.functional.pad(values, (0, wide - columns, 0, tall - rows))
    tiles = padded.view(tall // _TILE_ROWS, 4, 32, wide // _TILE_COLUMNS, 4)
    result = tiles.permute(0, 3, 2, 1, 4).reshape(-1)
    result = result.view(input_matrix.dtype) if narrow else result
    return result if flatten else result.view(tall, wide)


def from_blocked(blocked_matrix: torch.Tensor, num_rows: int, num_cols: int) -> torch.Tensor:
    """The matrix of scales that to_blocked was given."""
    tall, wide = roundup(num_rows, _TILE_ROWS), roundup(num_cols, _TILE_COLUMNS)
    narrow = blocked_matrix.element_size() == 1
    values = blocked_matrix.view(torch.uint8) if narrow else blocked_matrix
    tiles = values.reshape(tall // _TILE_ROWS, wide // _TILE_COLUMNS, 32, 4, 4)
    result = tiles.permute(0, 3, 2, 1, 4).reshape(tall, wide)[:num_rows, :num_cols].contiguous()
    return result.view(blocked_matrix.dtype) if narrow else result


def e8m0_to_f32(x: torch.Tensor) -> torch.Tensor:
    """2^(code - 127); 255 is NaN. (comfy-kitchen reads 0 as 0.0 and 255 as Inf.)"""
    codes = x.view(torch.uint8)
    values = torch.ldexp(torch.ones_like(codes, dtype=torch.float64), codes.int() - E8M0_BIAS)
    return values.masked_fill(codes == 255, torch.nan).float()


def f32_to_e8m0(x: torch.Tensor) -> torch.Tensor:
    """The code of the nearest power of two by the exponent's scale (1.5 goes up): no rule of ours
    makes scales so; quantisers round up."""
    bits = x.view(torch.int32)
    exponent = (bits >> MBITS_F32) & 255
    code = exponent + ((bits >> (MBITS_F32 - 1)) & 1)
    return torch.where(exponent == 255, exponent, code).to(torch.uint8)


# ---- minifloats without Inf and NaN


def _n_ones(n: int) -> int:
    return (1 << n) - 1


@cache
def _magnitudes(ebits: int, mbits: int) -> tuple[float, ...]:
    bias = _n_ones(ebits - 1)
    values = []
    for code in range(1 << (ebits + mbits)):
        exponent, mantissa = code >> mbits, code & _n_ones(mbits)
        one = 1 if exponent else 0
        values.append((one + mantissa / (1 << mbits)) * 2.0 ** (max(exponent, 1) - bias))
    return tuple(values)


@cache
def _boundaries(ebits: int, mbits: int) -> torch.Tensor:
    """The largest f32 that belongs to the lower of each two neighbours: ties go to even codes."""
    values = torch.tensor(_magnitudes(ebits, mbits), dtype=torch.float64)
    middles = ((values[:-1] + values[1:]) / 2).float()
    below = torch.nextafter(middles, torch.zeros(()))
    return torch.where(torch.arange(len(middles)) % 2 == 0, middles, below)


def _f32_to_floatx_unpacked(x: torch.Tensor, ebits: int, mbits: int) -> torch.Tensor:
    """Codes of the nearest values, ties to even, one a byte; what is too large saturates."""
    code = torch.bucketize(x.abs(), _boundaries(ebits, mbits).to(x.device), out_int32=True)
    sign = torch.signbit(x).to(torch.uint8) << (ebits + mbits)
    return code.to(torch.uint8) | sign


def _floatx_unpacked_to_f32(x: torch.Tensor, ebits: int, mbits: int) -> torch.Tensor:
    values = torch.tensor(_magnitudes(ebits, mbits), dtype=torch.float32, device=x.device)
    return torch.cat([values, -values])[x.int()]


def _float8_round(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float8_e4m3fn).float()
