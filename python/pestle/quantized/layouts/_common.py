"""What layouts share: options, scales, padding."""

from __future__ import annotations

import torch
from torch.nn import functional

from ...errors import InvalidArgumentError

RECALCULATE = "recalculate"


def rounding(seed: int | None) -> dict:
    """Options of a quantiser: stochastic where a seed above 0 is given."""
    return {"rounding": "stochastic", "seed": seed} if seed and seed > 0 else {}


def given_scale(layout: str, scale, like: torch.Tensor) -> torch.Tensor | None:
    """A scale in f32 where the values are; None when it is to be computed."""
    if scale is None:
        return None
    if isinstance(scale, str):
        if scale != RECALCULATE:
            raise ValueError(
                f'{layout}: scale is "{scale}": give a number, a tensor, None or "{RECALCULATE}"'
            )
        return None
    return torch.as_tensor(scale, dtype=torch.float32, device=like.device)


def matrix(layout: str, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.ndim != 2:
        raise ValueError(f"{layout} requires 2D tensor, got {tensor.ndim}D")
    return tensor


def need_multiple(layout: str, tensor: torch.Tensor, step: int, what: str) -> None:
    if step and tensor.shape[-1] % step:
        raise ValueError(
            f"{layout}: {tensor.shape[-1]} columns are not divisible by {what}, which is {step}"
        )


def widened(x: torch.Tensor, columns: int) -> torch.Tensor:
    """x with columns of zeros, where the weight was padded by such."""
    missing = columns - x.shape[-1]
    return functional.pad(x, (0, missing)) if missing else x


def rows_of(qdata: torch.Tensor, params) -> torch.Tensor:
    """Codes without rows that are padding."""
    rows = params.orig_shape[-1] if getattr(params, "transposed", False) else params.orig_shape[-2]
    return qdata if qdata.shape[-2] == rows else qdata[:rows]


def scales_of(scales: torch.Tensor, params) -> torch.Tensor:
    """Block scales without rows that are padding: in tiles padding is part of the layout."""
    if params.scale_layout == "swizzled":
        return scales
    rows = params.orig_shape[-2]
    return scales if scales.shape[-2] == rows else scales[:rows]


def check_choice(layout: str, name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        listed = ", ".join(choices)
        raise InvalidArgumentError(f'{layout}: {name} is "{value}": use one of {listed}')
