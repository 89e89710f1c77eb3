"""SVDQuant's W4A4 in plain PyTorch, in f32: Pestle has no kernel for INT4 activations yet.

y = (x / smooth) in INT4 by groups of 64 columns, times the weight's codes, plus
x @ lora_down @ lora_up^T, plus the bias; one rounding at the end.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from ._nibbles import INT4_MAX, UINT4_MAX, pack_int4, unpack_int4, unpack_uint4
from ._serve import BYTES, FLOATS, INT8, ONE, TWO, adapter, of

GROUP = 64  # columns with one scale
TILE = 128  # rows of a weight that is stored in tiles
SHIFT = 0.171875  # what makes GELU's values unsigned, added before they are quantised


def weight_rows(weight: Tensor) -> Tensor:
    """Codes [N, K / 2], also from tiles [N / 128, K / 64, 32, 4 rows of 32 bytes]."""
    if weight.ndim != 4:
        return weight
    tiles, groups = weight.shape[:2]
    parts = weight.reshape(tiles, groups, TILE // 4, 4, GROUP // 2)
    return parts.permute(0, 2, 3, 1, 4).reshape(tiles * TILE, groups * GROUP // 2)


def of_rows(tensor: Tensor) -> Tensor:
    """[N, C] of what lies in tiles [N / 128, C, 128], such as scales and lora_up."""
    return tensor.transpose(1, 2).reshape(-1, tensor.shape[1])


def decoded(packed: Tensor, scales: Tensor, unsigned: bool) -> Tensor:
    """Values [rows, K] of codes with scales [K / 64, rows]."""
    unpack = unpack_uint4 if unsigned else unpack_int4
    groups = unpack(packed).float().unflatten(-1, (-1, GROUP))
    return (groups * scales.float().t().unsqueeze(-1)).flatten(1)


@adapter(
    only="eager",
    x=of(FLOATS, TWO),
    smooth=of(FLOATS, ONE),
    lora_down=of(FLOATS, TWO),
    lora_x=of(FLOATS, TWO),
)
def quantize_svdquant_w4a4(p, x, smooth, lora_down, pad_size=256, act_unsigned=False, lora_x=None):
    rows, columns = x.shape
    if columns % GROUP:
        raise ValueError(f"x has {columns} columns: not divisible by group_size {GROUP}")
    groups = (x.float() / smooth.float()).view(rows, columns // GROUP, GROUP)
    least, most = (0, UINT4_MAX) if act_unsigned else (-INT4_MAX, INT4_MAX)
    scales = groups.abs().amax(-1).clamp_min(1e-10) / most
    quantised = (groups / scales.unsqueeze(-1)).round().clamp(least, most).flatten(1)
    low_rank = (x if lora_x is None else lora_x).float() @ lora_down.float()
    made = (pack_int4(quantised), scales, low_rank)
    q, scales, low_rank = (functional.pad(t, (0, 0, 0, -rows % pad_size)) for t in made)
    return q, scales.t().contiguous().to(x.dtype), low_rank


@adapter(
    only="eager",
    act=of(INT8 | BYTES, TWO),
    wgt=of(INT8),
    ascales=of(FLOATS, TWO),
    wscales=of(FLOATS),
    lora_act_in=of(FLOATS, TWO),
    lora_up=of(FLOATS),
    bias=of(FLOATS),
)
def scaled_mm_svdquant_w4a4(
    p, act, wgt, ascales, wscales, lora_act_in, lora_up, bias=None, act_unsigned=False
):
    scales = of_rows(wscales).t() if wscales.ndim == 3 else wscales
    up = of_rows(lora_up) if lora_up.ndim == 3 else lora_up
    weight = decoded(weight_rows(wgt), scales, False)
    out = decoded(act, ascales, act_unsigned) @ weight.t() + lora_act_in.float() @ up.float().t()
    out = out if bias is None else out + bias.float()
    return out.to(wscales.dtype)
