"""SVDQuant: the layout is carried, its products are refused."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pestle.quantized.layouts import TensorCoreSVDQuantW4A4Layout
from pestle.quantized.tensor import QuantizedTensor

from ..exceptions import NoCapableBackendError

_NOT_YET = "Pestle has no product of INT4 activations with a low-rank branch yet"


def _refuse(what: str) -> NoCapableBackendError:
    return NoCapableBackendError(what, {"pestle": _NOT_YET})


def _is_svdquant(weight: torch.Tensor) -> bool:
    return isinstance(weight, QuantizedTensor) and issubclass(
        weight._layout, TensorCoreSVDQuantW4A4Layout
    )


def _check_counts(weights: Sequence, biases: Sequence | None) -> None:
    if not weights:
        raise ValueError("expected at least one weight")
    if biases is not None and len(biases) != len(weights):
        raise ValueError(f"got {len(weights)} weights but {len(biases)} biases")


def svdquant_w4a4_can_share_quant(
    weights: Sequence[torch.Tensor], *, validate: bool = False, trust: bool = False
) -> bool:
    """Whether one quantised activation would do for all of these weights: never, since Pestle does
    not quantise activations for them."""
    return False


def svdquant_w4a4_fuse_linear_weights(
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None] | None = None,
    *,
    validate_shared_quant: bool = False,
    assume_shared_quant: bool = False,
) -> tuple[QuantizedTensor, torch.Tensor | None, tuple[int, ...]]:
    _check_counts(weights, biases)
    raise _refuse("svdquant_w4a4_fuse_linear_weights")


def svdquant_w4a4_fused_grouped_linear(
    input_tensor: torch.Tensor,
    fused_weight: torch.Tensor,
    fused_bias: torch.Tensor | None,
    output_features: Sequence[int],
) -> tuple[torch.Tensor, ...]:
    if not _is_svdquant(fused_weight):
        raise TypeError("fused_weight must be a TensorCoreSVDQuantW4A4Layout QuantizedTensor")
    raise _refuse("svdquant_w4a4_fused_grouped_linear")


def svdquant_w4a4_grouped_linear(
    input_tensor: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None] | None = None,
    *,
    validate_shared_quant: bool = False,
    assume_shared_quant: bool = False,
) -> tuple[torch.Tensor, ...]:
    _check_counts(weights, biases)
    raise _refuse("svdquant_w4a4_grouped_linear")


__all__ = [
    "TensorCoreSVDQuantW4A4Layout",
    "svdquant_w4a4_can_share_quant",
    "svdquant_w4a4_fuse_linear_weights",
    "svdquant_w4a4_fused_grouped_linear",
    "svdquant_w4a4_grouped_linear",
]
