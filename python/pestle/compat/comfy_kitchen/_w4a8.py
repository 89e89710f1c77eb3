"""W4A8 in every form that comfy-kitchen stores: groups of other sizes, codes without a codebook or
with a correction, f32 scales, 6 bits. Pestle's ops have the usual form; the others are made,
decoded and multiplied here, in plain PyTorch.

A code stands for a level (of the codebook, or code - 8, code - 32); level * s_rel is rounded to an
integer of 8 bits, and that times s_channel, plus the group's correction, is the rotated weight.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from pestle.backends._codebook import W4A8

_E4M3_MOST = 448.0
_SIX_MOST = 31  # 6-bit codes are -31 to 31, stored with 32 added
_REFINED = 2  # passes that fit a group's scale to its codes
_LEAST = 1e-8


# ---- codes in bytes


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes [N, K] as bytes: the low four bits, the even column first, then at 6 bits the upper two
    of four columns a byte."""
    codes = codes.to(torch.uint8)
    low = (codes[:, ::2] & 15) | ((codes[:, 1::2] & 15) << 4)
    if bits == 4:
        return low.view(torch.int8)
    upper = (codes >> 4).unflatten(1, (-1, 4))
    high = upper[..., 0] | upper[..., 1] << 2 | upper[..., 2] << 4 | upper[..., 3] << 6
    return torch.cat((low, high), 1).view(torch.int8)


def unpack(stored: Tensor, columns: int, bits: int) -> Tensor:
    """Codes [N, K] as int32."""
    both = stored.view(torch.uint8)
    low = both[:, : columns // 2]
    codes = torch.stack((low & 15, low >> 4), -1).flatten(1).int()
    if bits == 4:
        return codes
    high = both[:, columns // 2 :].int().unsqueeze(-1)
    shifts = torch.arange(0, 8, 2, dtype=torch.int32, device=stored.device)
    return codes | (((high >> shifts) & 3) << 4).flatten(1)


# ---- records: what a tensor core reads at a time, 16 rows of 32 columns with their scales

_RECORD = 16 * 32
_RECORD_SCALES = 32


def record_bytes(bits: int) -> int:
    return _RECORD * bits // 8 + _RECORD_SCALES


def record_bits(count: int, rows: int, columns: int) -> int:
    """Bits of a code, by how many bytes the records of a weight take."""
    for bits in (4, 6):
        if count * _RECORD == rows * columns * record_bytes(bits):
            return bits
    raise ValueError(f"{count} bytes are no records of {rows} x {columns} codes of 4 or 6 bits")


def _as_rows(lanes: Tensor, rows: int) -> Tensor:
    """Rows of what 8 x 4 lanes of each record hold: [row tiles, column tiles, 8, 4, left or right
    half of the columns, upper or lower half of the rows, what lies side by side]."""
    return lanes.permute(0, 5, 2, 1, 4, 3, 6).reshape(rows, -1)


def _six_bits(parts: Tensor) -> Tensor:
    """Codes of lanes whose first 8 bytes lie before the last 4 of any: three bytes hold four."""
    first, last = parts[..., :256].unflatten(-1, (32, 8)), parts[..., 256:].unflatten(-1, (32, 4))
    three = torch.cat((first, last), -1).int().unflatten(-1, (4, 3))
    word = three[..., 0] | three[..., 1] << 8 | three[..., 2] << 16
    shifts = torch.arange(0, 24, 6, dtype=torch.int32, device=parts.device)
    return (word.unsqueeze(-1) >> shifts) & 63


def unpack_records(
    packed: Tensor, n: int, k: int, scale_dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    """Codes as rows of bytes, and scales [N, K / 16], of a weight that lies in records."""
    if packed.ndim != 1 or packed.dtype != torch.int8 or not packed.is_contiguous():
        raise ValueError("a packed weight must be a contiguous 1D int8 tensor")
    if n % 16 or k % 256:
        raise ValueError(f"a packed weight needs N % 16 == 0 and K % 256 == 0, got {n} x {k}")
    bits = record_bits(packed.numel(), n, k)
    records = packed.view(torch.uint8).view(n // 16, k // 32, -1)
    parts, scales = records[..., :-_RECORD_SCALES], records[..., -_RECORD_SCALES:]
    s_rel = _as_rows(scales.unflatten(-1, (8, 1, 2, 2, 1)), n).view(scale_dtype)
    if bits == 4:
        return _as_rows(parts.unflatten(-1, (8, 4, 2, 2, 2)), n).view(torch.int8), s_rel
    codes = _six_bits(parts).view(n // 16, k // 32, 8, 4, 2, 2, 4)
    return pack(_as_rows(codes, n), bits), s_rel


def geometry(stored: Tensor, s_rel: Tensor, group_size: int) -> tuple[int, int, int]:
    """Rows, columns and bits of a stored weight."""
    rows, width = stored.shape
    columns = s_rel.shape[1] * group_size
    bits = next((b for b in (4, 6) if columns and columns * b == width * 8), None)
    if bits is None:
        raise ValueError(f"rows of {width} bytes hold no {columns} codes of 4 or 6 bits")
    if bits == 6:
        check_six(columns, group_size)
    return rows, columns, bits


def check_six(columns: int, group_size: int) -> None:
    if columns % 32 or group_size < 16 or group_size % 16:
        raise ValueError(
            f"6-bit codes need columns divisible by 32 and groups of a multiple of 16: got "
            f"{columns} columns, groups of {group_size}"
        )


def check_columns(columns: int, group_size: int, convrot_groupsize: int) -> None:
    fits = group_size >= 4 and (16 % group_size == 0 or group_size % 16 == 0)
    if not fits or any(columns % step for step in (16, group_size, convrot_groupsize or 1)):
        raise ValueError(
            f"K={columns} must be divisible by 16, by group_size={group_size} and by "
            f"convrot_groupsize={convrot_groupsize}; group_size must divide 16, from 4 on, or be a "
            "multiple of it"
        )


def check_scales(rows: int, groups: int, s_rel, s_channel, correction, codebook) -> None:
    """What stands beside the codes of so many rows and groups."""
    wanted = {"s_rel": (rows, groups), "s_channel": (rows,), "correction": (groups, rows)}
    wanted["codebook"] = (16,)
    given = {"s_rel": s_rel, "s_channel": s_channel, "correction": correction, "codebook": codebook}
    for name, tensor in given.items():
        if tensor is not None and tuple(tensor.shape) != wanted[name]:
            raise ValueError(f"{name} must have shape {wanted[name]}, got {tuple(tensor.shape)}")


def check_stored(
    qdata, s_rel, s_channel, codebook, correction, group_size, convrot_groupsize
) -> tuple[int, int, int]:
    """The geometry of stored tensors that belong together."""
    if qdata.ndim != 2 or qdata.dtype != torch.int8:
        raise ValueError(f"codes must be 2D int8, got {qdata.ndim}D {qdata.dtype}")
    if s_rel.ndim != 2:
        raise ValueError(f"s_rel must be 2D [N, K / group_size], got {s_rel.ndim}D")
    rows, columns, bits = geometry(qdata, s_rel, group_size)
    check_columns(columns, group_size, convrot_groupsize)
    if bits == 6 and (codebook is not None or correction is not None):
        raise ValueError("6-bit codes are uniform and symmetric: no codebook, no correction")
    check_scales(rows, columns // group_size, s_rel, s_channel, correction, codebook)
    return rows, columns, bits


# ---- decoding


def levels_of(bits: int, codebook: Tensor | None, device) -> Tensor:
    """What each code stands for."""
    if codebook is not None:
        return codebook.to(device, torch.float32)
    middle = 1 << (bits - 1)
    return torch.arange(-middle, middle, dtype=torch.float32, device=device)


def on_grid(levels: Tensor, s_rel: Tensor) -> Tensor:
    return (levels * s_rel.float()).round().clamp(-127, 127)


def integers(stored: Tensor, s_rel: Tensor, codebook: Tensor | None, group_size: int) -> Tensor:
    """The weight's integers of 8 bits [N, K]."""
    _, columns, bits = geometry(stored, s_rel, group_size)
    codes = unpack(stored, columns, bits)
    levels = levels_of(bits, codebook, stored.device)[codes.long()]
    made = on_grid(levels.unflatten(1, (-1, group_size)), s_rel.unsqueeze(-1))
    return made.flatten(1).to(torch.int8)


def rotated_weight(stored, s_rel, s_channel, codebook, correction, group_size) -> Tensor:
    """The weight [N, K] in f32, not rotated back."""
    whole = integers(stored, s_rel, codebook, group_size)
    values = whole.float() * s_channel.float().unsqueeze(1)
    if correction is None:
        return values
    return values + correction.float().t().repeat_interleave(group_size, 1)


# ---- making


def nearest(values: Tensor, levels: Tensor) -> Tensor:
    """Of each value the index of the nearest of its levels, which rise; the lower one at a tie."""
    middles = (levels[..., 1:] + levels[..., :-1]) / 2
    return torch.searchsorted(middles.contiguous(), values.contiguous())


def between(values: Tensor, levels: Tensor, seed: int) -> Tensor:
    """One of the two levels around each value, the nearer the likelier."""
    upper = torch.searchsorted(levels.contiguous(), values.contiguous())
    upper = upper.clamp(1, levels.shape[-1] - 1)
    low, high = (levels.gather(-1, index) for index in (upper - 1, upper))
    chance = (values - low) / (high - low).clamp_min(_LEAST)
    return torch.where(_uniform(values, seed) < chance, upper, upper - 1)


def _uniform(like: Tensor, seed: int) -> Tensor:
    made = torch.Generator(like.device).manual_seed(int(seed))
    return torch.rand(like.shape, generator=made, device=like.device, dtype=like.dtype)


def _rounded(values: Tensor, seed: int) -> Tensor:
    return (values + _uniform(values, seed)).floor() if seed > 0 else values.round()


def fitted_scales(groups: Tensor, levels: Tensor) -> Tensor:
    """Scales [N, groups, 1] with which the levels come nearest, by turns with the codes."""
    scale = groups.abs().amax(-1, keepdim=True) / levels.abs().max().clamp_min(1)
    scale = scale.clamp_min(_LEAST)
    for _ in range(_REFINED):
        chosen = levels[nearest(groups / scale, levels)]
        over = chosen.square().sum(-1, keepdim=True).clamp_min(_LEAST)
        scale = ((groups * chosen).sum(-1, keepdim=True) / over).clamp_min(_LEAST)
    return scale


def _stored_scale(scale: Tensor, dtype: torch.dtype) -> Tensor:
    return scale if dtype == torch.float32 else scale.clamp_max(_E4M3_MOST).to(dtype)


def _neighbours(scale: Tensor) -> list[Tensor]:
    """A stored scale, the next smaller and the next larger one; 3 % where it is f32."""
    if scale.dtype == torch.float32:
        return [scale, scale * 0.97, scale * 1.03]
    codes = scale.view(torch.uint8)
    around = (codes, codes.clamp_min(1) - 1, codes.clamp_max(0x7D) + 1)
    return [code.view(scale.dtype) for code in around]


def coded(groups: Tensor, s_rel: Tensor, s_channel: Tensor, levels: Tensor, seed: int) -> Tensor:
    """The code of each element, by the integers that its group's levels become."""
    grid = on_grid(levels, s_rel.unsqueeze(-1))
    wanted = groups / s_channel.view(-1, 1, 1)
    return between(wanted, grid, seed) if seed > 0 else nearest(wanted, grid)


def searched(groups: Tensor, s_rel: Tensor, s_channel: Tensor, levels: Tensor) -> Tensor:
    """Of each group the stored scale, among three, by which its integers come nearest."""
    best, least = s_rel, None
    for scale in _neighbours(s_rel):
        codes = coded(groups, scale, s_channel, levels, 0)
        values = on_grid(levels, scale.unsqueeze(-1)).gather(-1, codes)
        error = (values * s_channel.view(-1, 1, 1) - groups).square().sum(-1)
        if least is None:
            least = error
        else:
            raw = torch.where(error < least, scale.float(), best.float())
            best, least = raw.to(s_rel.dtype), torch.minimum(error, least)
    return best


def by_levels(groups, levels, scale_dtype, seed: int, search: bool):
    scale = fitted_scales(groups, levels)
    most = (levels[nearest(groups / scale, levels)] * scale).abs().amax((1, 2))
    s_channel = (most / 127).clamp_min(_LEAST)
    s_rel = _stored_scale(scale.squeeze(-1) / s_channel.unsqueeze(1), scale_dtype)
    if search:
        s_rel = searched(groups, s_rel, s_channel, levels)
    return coded(groups, s_rel, s_channel, levels, seed), s_rel, s_channel


def by_steps(groups, symmetric: bool, scale_dtype, seed: int):
    """Codes of even steps, and the correction of asymmetric ones [N, groups]."""
    if symmetric:
        scale = (groups.abs().amax(-1, keepdim=True) / 7).clamp_min(_LEAST)
        codes = _rounded(groups / scale, seed).clamp(-8, 7) + 8
        correction = None
    else:
        least, most = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
        scale = ((most - least) / 15).clamp_min(_LEAST)
        codes = _rounded((groups - least) / scale, seed).clamp(0, 15)
        correction = (8 * scale + least).squeeze(-1)
    s_channel = (((codes - 8) * scale).abs().amax((1, 2)) / 127).clamp_min(_LEAST)
    s_rel = _stored_scale(scale.squeeze(-1) / s_channel.unsqueeze(1), scale_dtype)
    return codes, s_rel, s_channel, correction


def check_weight(weight, group_size: int, convrot_groupsize: int, bits: int = 4) -> None:
    """Raises for a weight whose columns don't make such groups."""
    if weight.ndim != 2:
        raise ValueError(f"W4A8 weight must be 2D, got shape {tuple(weight.shape)}")
    if bits not in (4, 6):
        raise ValueError(f"bits must be 4 or 6, got {bits}")
    if bits == 6:
        check_six(weight.shape[1], group_size)
    check_columns(weight.shape[1], group_size, convrot_groupsize)


def check_making(weight, group_size, convrot_groupsize, bits, symmetric, scale_dtype) -> None:
    check_weight(weight, group_size, convrot_groupsize, bits)
    if scale_dtype not in (torch.float32, torch.float8_e4m3fn):
        raise ValueError(f"scale_dtype must be float32 or float8_e4m3fn, got {scale_dtype}")
    if bits == 6 and not symmetric:
        raise ValueError("6-bit codes are symmetric: symmetric=False needs 4 bits")


def made(
    weight, rotated, group_size, symmetric, scale_dtype, codebook, table, seed, bits, search
) -> tuple:
    """Codes, s_rel, s_channel, correction and codebook of a weight that `rotated` is of."""
    groups = rotated.float().unflatten(1, (-1, group_size))
    correction = None
    if bits == 6:
        table = None
        steps = torch.arange(-_SIX_MOST, _SIX_MOST + 1.0, device=weight.device)
        codes, s_rel, s_channel = by_levels(groups, steps, scale_dtype, seed, search)
        codes = codes + 1
    elif symmetric and codebook:
        if table is None:
            table = torch.tensor(W4A8, dtype=torch.float32, device=weight.device)
        table = table.to(weight.device, torch.float32)
        codes, s_rel, s_channel = by_levels(groups, table, scale_dtype, seed, False)
    else:
        table = None
        codes, s_rel, s_channel, correction = by_steps(groups, symmetric, scale_dtype, seed)
    if correction is not None:
        correction = correction.t().contiguous().to(weight.dtype)
    return pack(codes.flatten(1), bits), s_rel.contiguous(), s_channel, correction, table


def float_product(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """x @ weight^T + bias in f32."""
    bias = None if bias is None else bias.float()
    return functional.linear(x.float(), weight, bias).to(dtype)
