"""Layouts by name, and a QuantizedTensor that says that it is not here yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch

from ..exceptions import NoCapableBackendError

_NOT_YET = "Pestle has no QuantizedTensor yet: call the functions on plain tensors"


def _refuse(what: str) -> NoCapableBackendError:
    return NoCapableBackendError(what, {"pestle": _NOT_YET})


@dataclass(frozen=True)
class BaseLayoutParams:
    """What every layout keeps beside its codes."""

    scale: torch.Tensor
    orig_dtype: torch.dtype
    orig_shape: tuple[int, ...]

    def _tensor_fields(self) -> list[str]:
        return [f.name for f in fields(self) if isinstance(getattr(self, f.name), torch.Tensor)]

    def _with(self, change) -> BaseLayoutParams:
        return replace(self, **{n: change(getattr(self, n)) for n in self._tensor_fields()})

    def to_device(self, device: torch.device) -> BaseLayoutParams:
        return self._with(lambda tensor: tensor.to(device))

    def clone(self) -> BaseLayoutParams:
        return self._with(torch.Tensor.clone)

    def copy_from(self, src: BaseLayoutParams, non_blocking: bool = False) -> None:
        for name in self._tensor_fields():
            getattr(self, name).copy_(getattr(src, name), non_blocking=non_blocking)


class QuantizedLayout:
    """How a quantised tensor is stored: to be subclassed."""

    MIN_SM_VERSION: tuple[int, int] | None = None
    QUANTIZES_INPUT = True
    Params = BaseLayoutParams

    @classmethod
    def quantize(cls, tensor: torch.Tensor, **kwargs) -> tuple[torch.Tensor, BaseLayoutParams]:
        raise _refuse(f"{cls.__name__}.quantize")

    @classmethod
    def dequantize(cls, qdata: torch.Tensor, params: BaseLayoutParams) -> torch.Tensor:
        raise _refuse(f"{cls.__name__}.dequantize")

    @classmethod
    def get_plain_tensors(cls, qtensor: QuantizedTensor) -> tuple[torch.Tensor, ...]:
        raise _refuse(f"{cls.__name__}.get_plain_tensors")

    @classmethod
    def state_dict_tensors(
        cls, qdata: torch.Tensor, params: BaseLayoutParams
    ) -> dict[str, torch.Tensor]:
        raise _refuse(f"{cls.__name__}.state_dict_tensors")

    @classmethod
    def requantize_kwargs(cls, qtensor: QuantizedTensor) -> dict[str, object]:
        raise _refuse(f"{cls.__name__}.requantize_kwargs")

    @classmethod
    def supports_fast_matmul(cls) -> bool:
        """No operator takes a QuantizedTensor yet."""
        return False

    @classmethod
    def get_requirements(cls) -> dict[str, object]:
        return {"min_sm_version": cls.MIN_SM_VERSION, "not_yet": _NOT_YET}


class TensorCoreFP8Layout(QuantizedLayout):
    MIN_SM_VERSION = (8, 9)


class TensorCoreNVFP4Layout(QuantizedLayout):
    MIN_SM_VERSION = (10, 0)


class TensorCoreMXFP8Layout(QuantizedLayout):
    MIN_SM_VERSION = (10, 0)


class TensorWiseINT8Layout(QuantizedLayout):
    MIN_SM_VERSION = (7, 5)


class TensorCoreConvRotW4A4Layout(QuantizedLayout):
    MIN_SM_VERSION = (7, 5)
    QUANTIZES_INPUT = False


class AsymW4A8Int8Layout(QuantizedLayout):
    MIN_SM_VERSION = (8, 0)
    QUANTIZES_INPUT = False


class TensorCoreSVDQuantW4A4Layout(QuantizedLayout):
    MIN_SM_VERSION = (8, 0)
    QUANTIZES_INPUT = False


class TensorCoreAWQW4A16Layout(QuantizedLayout):
    QUANTIZES_INPUT = False


_LAYOUTS: dict[str, type[QuantizedLayout]] = {
    layout.__name__: layout for layout in QuantizedLayout.__subclasses__()
}
_LAYOUT_OPS: dict[tuple[object, type[QuantizedLayout]], object] = {}


def register_layout_class(name: str, cls: type[QuantizedLayout]) -> None:
    _LAYOUTS[name] = cls


def get_layout_class(name: str) -> type[QuantizedLayout]:
    return _LAYOUTS[name]


def register_layout_op(torch_op: object, layout_cls: type[QuantizedLayout]):
    """Keeps a handler of an operator on a layout, for when there is a QuantizedTensor."""

    def keep(handler):
        _LAYOUT_OPS[torch_op, layout_cls] = handler
        return handler

    return keep


def get_cuda_capability() -> tuple[int, int] | None:
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None


class QuantizedTensor(torch.Tensor):
    """Not here yet: nothing is an instance of it, and making one raises."""

    @staticmethod
    def __new__(cls, *args, **kwargs):
        raise _refuse("QuantizedTensor")

    @classmethod
    def from_float(cls, tensor: torch.Tensor, layout_cls: str, **kwargs) -> QuantizedTensor:
        raise _refuse("QuantizedTensor.from_float")


def dequantize_args(args):
    """Arguments as they are: none of them can be quantised."""
    return args


def svdquant_w4a4_can_share_quant(
    weights: Sequence[torch.Tensor], *, validate: bool = False, trust: bool = False
) -> bool:
    raise _refuse("svdquant_w4a4_can_share_quant")


def svdquant_w4a4_fuse_linear_weights(
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None] | None = None,
    *,
    validate_shared_quant: bool = False,
    assume_shared_quant: bool = False,
) -> tuple[QuantizedTensor, torch.Tensor | None, tuple[int, ...]]:
    raise _refuse("svdquant_w4a4_fuse_linear_weights")


def svdquant_w4a4_fused_grouped_linear(
    input_tensor: torch.Tensor,
    fused_weight: torch.Tensor,
    fused_bias: torch.Tensor | None,
    output_features: Sequence[int],
) -> tuple[torch.Tensor, ...]:
    raise _refuse("svdquant_w4a4_fused_grouped_linear")


def svdquant_w4a4_grouped_linear(
    input_tensor: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None] | None = None,
    *,
    validate_shared_quant: bool = False,
    assume_shared_quant: bool = False,
) -> tuple[torch.Tensor, ...]:
    raise _refuse("svdquant_w4a4_grouped_linear")
