"""Scaled products by torch's recipes, over Pestle's ops."""

from __future__ import annotations

import torch

import pestle

try:
    from torch.nn.functional import ScalingType, SwizzleType
except ImportError:  # torch before 2.10
    from enum import IntEnum

    class ScalingType(IntEnum):
        TensorWise = 0
        RowWise = 1
        BlockWise1x16 = 2
        BlockWise1x32 = 3

    class SwizzleType(IntEnum):
        NO_SWIZZLE = 0
        SWIZZLE_32_4_4 = 1


def has_scaled_mm_v2() -> bool:
    """Pestle's ops take every recipe below on every device."""
    return True


def get_pytorch_version_info() -> dict[str, str | bool]:
    return {"version": torch.__version__, "has_scaled_mm_v2": has_scaled_mm_v2()}


def scaled_mm_v2(
    input: torch.Tensor,
    weight: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    scale_recipe_a=ScalingType.TensorWise,
    scale_recipe_b=ScalingType.TensorWise,
    swizzle_a=SwizzleType.NO_SWIZZLE,
    swizzle_b=SwizzleType.NO_SWIZZLE,
) -> torch.Tensor:
    """input [M, K] @ weight [K, N] of FP8 codes, whose scales are one, one a row, or one for 32
    columns."""
    how = {"bias": bias, "out_dtype": out_dtype or torch.bfloat16}
    recipes = {scale_recipe_a, scale_recipe_b}
    if recipes == {ScalingType.TensorWise}:
        scales = (scale_a.reshape(1), scale_b.reshape(1))
        return pestle.scaled_mm_fp8(input, weight.t(), *scales, **how)
    if recipes == {ScalingType.RowWise}:
        scales = (scale_a.reshape(-1, 1), scale_b.reshape(-1, 1))
        return pestle.scaled_mm_fp8(input, weight.t(), *scales, granularity="row", **how)
    if recipes == {ScalingType.BlockWise1x32}:
        tiles = {swizzle_a, swizzle_b} == {SwizzleType.SWIZZLE_32_4_4}
        how["scale_layout"] = "swizzled" if tiles else "plain"
        return pestle.scaled_mm_mxfp8(input, weight.t(), scale_a, scale_b, **how)
    raise ValueError(
        f"scaled_mm_v2: recipes {scale_recipe_a} and {scale_recipe_b}: use TensorWise, RowWise or "
        "BlockWise1x32 for both"
    )
