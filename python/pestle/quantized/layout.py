"""What a layout is: how values become stored tensors and back, and which ops multiply by them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

import pestle

from ..errors import InvalidArgumentError
from ._geometry import Field

_LAYOUTS: dict[str, type[QuantizedLayout]] = {}
_HANDLERS: dict[Any, dict[type, Callable]] = {}


def register_layout_class(name: str, cls: type[QuantizedLayout]) -> None:
    """Makes a layout known by a name; a name that is taken goes to the new one."""
    _LAYOUTS[name] = cls


def get_layout_class(name: str) -> type[QuantizedLayout]:
    """The layout of a registered name; KeyError when there is none."""
    return _LAYOUTS[name]


def register_layout_op(torch_op: Any, layout_cls: type) -> Callable[[Callable], Callable]:
    """Decorates handler(qt, args, kwargs) of an operator of aten on a layout and on those that
    inherit from it. `qt` is the operator's first argument; a handler that returns NotImplemented
    leaves the call to the layout's base."""

    def keep(handler: Callable) -> Callable:
        _HANDLERS.setdefault(torch_op, {})[layout_cls] = handler
        return handler

    return keep


def handlers_by_layout(torch_op: Any) -> dict[type, Callable]:
    return _HANDLERS.get(torch_op, {})


def handlers_of(torch_op: Any, layout_cls: type) -> list[Callable]:
    """Handlers for this layout, its own before those of its bases."""
    registered = _HANDLERS.get(torch_op)
    if not registered:
        return []
    return [registered[cls] for cls in layout_cls.__mro__ if cls in registered]


@cache
def get_cuda_capability() -> tuple[int, int] | None:
    """Compute capability of the current GPU, None without one."""
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None


@dataclass(frozen=True)
class BaseLayoutParams:
    """What every layout keeps beside its codes."""

    scale: torch.Tensor
    orig_dtype: torch.dtype
    orig_shape: tuple[int, ...]

    def __post_init__(self):
        self._validate_tensor_fields()

    def _validate_tensor_fields(self) -> None:
        """For layouts that want their tensors in other dtypes."""

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _as_f32(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if isinstance(value, torch.Tensor) and value.dtype != torch.float32:
                if not value.dtype.is_floating_point or value.element_size() == 1:
                    raise InvalidArgumentError(
                        f"{type(self).__qualname__}: {name} has dtype {value.dtype}: give float32"
                    )
                self._set(name, value.float())

    def _as_codes(self, name: str, dtype: torch.dtype) -> None:
        """Scales of one byte: files store some as uint8."""
        value = getattr(self, name)
        if not isinstance(value, torch.Tensor) or value.dtype == dtype:
            return
        if value.dtype != torch.uint8:
            raise InvalidArgumentError(
                f"{type(self).__qualname__}: {name} has dtype {value.dtype}: give {dtype} or uint8"
            )
        self._set(name, value.view(dtype))

    def _tensor_fields(self) -> list[str]:
        return [
            field.name
            for field in dataclasses.fields(self)
            if isinstance(getattr(self, field.name), torch.Tensor)
        ]

    def _with(self, change: Callable) -> BaseLayoutParams:
        """A copy with every tensor changed."""
        return dataclasses.replace(
            self, **{name: change(getattr(self, name)) for name in self._tensor_fields()}
        )

    def to_device(self, device: torch.device) -> BaseLayoutParams:
        return self._with(lambda tensor: tensor.to(device))

    def clone(self) -> BaseLayoutParams:
        return self._with(torch.Tensor.clone)

    def copy_from(self, src: BaseLayoutParams, non_blocking: bool = False) -> None:
        """Overwrites the tensors in place, and takes over the rest."""
        tensors = self._tensor_fields()
        for field in dataclasses.fields(self):
            value = getattr(src, field.name)
            if field.name in tensors:
                getattr(self, field.name).copy_(value, non_blocking=non_blocking)
            else:
                self._set(field.name, value)


class QuantizedLayout:
    """How a quantised tensor is stored: to be subclassed.

    quantize and dequantize are enough for a layout of one's own; `geometry` lets rows and columns
    be cut without decoding, `linear` and `scaled_mm` name the kernels. Where they are missing an
    operator decodes, and says so.
    """

    Params: type = BaseLayoutParams
    MIN_SM_VERSION: tuple[int, int] | None = None
    QUANTIZES_INPUT = True
    BLOCK = (1, 1)  # rows and columns are padded to multiples of these
    PACKED = 1  # columns in one stored element

    @classmethod
    def quantize(cls, tensor: torch.Tensor, **options) -> tuple[torch.Tensor, Any]:
        raise NotImplementedError(f"{cls.__name__} has no quantize")

    @classmethod
    def dequantize(cls, qdata: torch.Tensor, params: Any) -> torch.Tensor:
        raise NotImplementedError(f"{cls.__name__} has no dequantize")

    @classmethod
    def get_plain_tensors(cls, qtensor) -> tuple[torch.Tensor, ...]:
        """Codes and scales, as the layout's kernels take them."""
        return (qtensor._qdata, qtensor._params.scale)

    @classmethod
    def state_dict_tensors(cls, qdata: torch.Tensor, params: Any) -> dict[str, torch.Tensor]:
        """Stored tensors by what stands behind the weight's name."""
        return {"": qdata, "_scale": params.scale}

    @classmethod
    def requantize_kwargs(cls, qtensor) -> dict[str, Any]:
        """Options of quantize that give this tensor's kind again."""
        return {}

    # ---- for operators

    @classmethod
    def geometry(cls, params: Any) -> dict[str, Field] | None:
        """The Field of each stored tensor: of "qdata" and of the params' tensors."""
        return None

    @classmethod
    def column_step(cls, params: Any) -> int:
        """Columns can be cut at multiples of this."""
        return 1

    @classmethod
    def linear(cls, x: torch.Tensor, qdata: torch.Tensor, params: Any, bias, out_dtype):
        """x @ W^T + bias for floating-point x; NotImplemented where there is no kernel."""
        call = cls.kernel_call(x, qdata, params)
        if call is None:
            return NotImplemented
        op, tensors, options = call
        if out_dtype != torch.bfloat16:  # the default, which AOTInductor needn't carry
            options["out_dtype"] = out_dtype
        return getattr(pestle, op)(*tensors, bias=bias, **options)

    @classmethod
    def scaled_mm(cls, a, b, bias, out_dtype):
        """a @ b^T + bias of two quantised tensors; NotImplemented where there is no kernel."""
        return NotImplemented

    @classmethod
    def kernel_call(cls, x: torch.Tensor, qdata: torch.Tensor, params: Any) -> tuple | None:
        """The op that multiplies by the weight, its tensors and its attributes."""
        return None

    @classmethod
    def linear_input_act(cls, weight, x, bias=None, input_act=None, input_act_weight=None,
                         input_act_eps=0.0, residual=None, residual_scale=None):  # fmt: skip
        """linear(act(x), weight), for layouts that fuse it; NotImplemented for the others."""
        return NotImplemented

    @classmethod
    def optimize_for_gemv(cls, weight, storage: torch.Tensor):
        """The weight as it is: Pestle's kernels read the stored order."""
        return weight

    # ---- sizes, requirements

    @classmethod
    def get_padded_shape(cls, orig_shape: tuple[int, ...]) -> tuple[int, ...]:
        *batch, rows, columns = orig_shape
        n, k = cls.BLOCK
        return (*batch, -(-rows // n) * n, -(-columns // k) * k)

    @classmethod
    def get_storage_shape(cls, orig_shape: tuple[int, ...]) -> tuple[int, ...]:
        *rows, columns = cls.get_padded_shape(orig_shape)
        return (*rows, columns // cls.PACKED)

    @classmethod
    def get_logical_shape_from_storage(cls, storage_shape: tuple[int, ...]) -> tuple[int, ...]:
        *rows, columns = storage_shape
        return (*rows, columns * cls.PACKED)

    @classmethod
    def logical_shape(cls, qdata: torch.Tensor, params: Any) -> tuple[int, ...]:
        """Shape of what the codes stand for; for layouts whose bytes alone do not tell it."""
        return cls.get_logical_shape_from_storage(tuple(qdata.shape))

    @classmethod
    def supports_fast_matmul(cls) -> bool:
        """Pestle multiplies every layout that has a kernel, on every device."""
        return True

    @classmethod
    def get_requirements(cls) -> dict[str, Any]:
        return {
            "layout": cls.__name__,
            "min_sm_version": cls.MIN_SM_VERSION,
            "current_sm_version": get_cuda_capability(),
            "fast_matmul_supported": cls.supports_fast_matmul(),
        }
