"""QuantizedTensor: codes and scales that behave as the tensor that they stand for."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import torch

from ..errors import UnsupportedError
from . import _strict
from ._formats import name_of, resolve
from ._geometry import WHOLE, as_bytes, has_batch
from .layout import QuantizedLayout, get_layout_class, handlers_of

# torch before 2.7 does not say.
_exporting = getattr(torch.compiler, "is_exporting", lambda: False)

# Functions of torch that are taken before autograd takes them apart; filled by handlers.
FUNCTIONS: dict[Callable, Callable] = {}


def _strides(shape: tuple, transposed: bool) -> tuple:
    strides, step = [], 1
    order = [*shape[:-2], shape[-1], shape[-2]] if transposed else shape
    for size in reversed(order):
        strides.append(step)
        step = step * size
    strides.reverse()
    if transposed:
        strides[-1], strides[-2] = strides[-2], strides[-1]
    return tuple(strides)


def _taken(layout: type[QuantizedLayout], options: dict) -> dict:
    """Those that its quantize takes: a subclass, of ComfyUI say, may take fewer than its base."""
    taken = inspect.signature(layout.quantize).parameters
    if any(one.kind is one.VAR_KEYWORD for one in taken.values()):
        return options
    return {name: value for name, value in options.items() if name in taken}


class QuantizedTensor(torch.Tensor):
    """A tensor of `params.orig_shape` and `params.orig_dtype`, stored in a layout.

    Operators go to kernels for the layout; one that has none decodes, warns once, and raises under
    pestle.strict(). Weights are frozen: gradients go to activations alone.
    """

    _qdata: torch.Tensor
    _params: Any
    _layout_cls: str
    _layout: type[QuantizedLayout]

    @staticmethod
    def __new__(cls, qdata: torch.Tensor, layout_cls: str, params: Any):
        shape = tuple(params.orig_shape)
        return torch.Tensor._make_wrapper_subclass(
            cls,
            shape,
            strides=_strides(shape, getattr(params, "transposed", False)),
            dtype=params.orig_dtype,
            device=qdata.device,
            requires_grad=False,
        )

    def __init__(self, qdata: torch.Tensor, layout_cls: str, params: Any):
        if isinstance(layout_cls, type):
            layout_cls = name_of(layout_cls)
        self._qdata = qdata
        self._layout_cls = layout_cls
        self._layout = get_layout_class(layout_cls)
        self._params = params

    def __repr__(self) -> str:
        params = self._params
        return (
            f"QuantizedTensor(shape={tuple(params.orig_shape)}, "
            f"storage_shape={self.storage_shape}, layout={self._layout_cls}, "
            f"dtype={params.orig_dtype}, device={self._qdata.device})"
        )

    def __getattr__(self, name: str):
        # What __tensor_flatten__ names. Everything else is missing.
        if name.startswith("_param_"):
            return getattr(self._params, name.removeprefix("_param_"))
        raise AttributeError(f"QuantizedTensor has no attribute {name!r}")

    # ---- what it is

    @property
    def params(self) -> Any:
        return self._params

    @property
    def layout_cls(self) -> type[QuantizedLayout]:
        return self._layout

    @property
    def storage_shape(self) -> tuple[int, ...]:
        """Shape of the codes as they are stored."""
        return tuple(self._qdata.shape)

    @property
    def storage_dtype(self) -> torch.dtype:
        return self._qdata.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the codes; stored_bytes counts the scales too."""
        return self._qdata.nbytes

    @property
    def stored_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors().values())

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """Shape of what the codes stand for, padding included."""
        return tuple(self._layout.logical_shape(self._qdata, self._params))

    @property
    def is_padded(self) -> bool:
        shape = tuple(self._params.orig_shape)
        if getattr(self._params, "transposed", False):
            shape = (*shape[:-2], shape[-1], shape[-2])
        return shape != self.padded_shape

    def data_ptr(self) -> int:
        return self._qdata.data_ptr()

    def is_pinned(self, device=None) -> bool:
        return self._qdata.is_pinned()

    def storage(self):
        return self._qdata.storage()

    # ---- to and from values

    @classmethod
    def from_float(
        cls, tensor: torch.Tensor, layout_cls: str | type[QuantizedLayout], **options
    ) -> QuantizedTensor:
        """Quantises. The layout is a class, its registered name, or a format such as "nvfp4";
        `options` are those of its quantize."""
        name, layout, defaults = resolve(layout_cls)
        qdata, params = layout.quantize(tensor.detach(), **{**defaults, **options})
        return cls(qdata, name, params)

    def dequantize(self) -> torch.Tensor:
        """The values, in the dtype that the tensor stands for."""
        params = self._params
        _strict.decodes.elements += self.numel()
        if getattr(params, "transposed", False):
            *batch, columns, rows = params.orig_shape
            params = dataclasses.replace(
                params, transposed=False, orig_shape=(*batch, rows, columns)
            )
            return _decoded(self._layout, self._qdata, params).transpose(-1, -2)
        return _decoded(self._layout, self._qdata, params)

    def requantize_from_float(self, tensor: torch.Tensor, **options) -> QuantizedTensor:
        """Other values in this tensor's layout, with its options unless others are given."""
        options = {**_taken(self._layout, self._layout.requantize_kwargs(self)), **options}
        qdata, params = self._layout.quantize(tensor.detach(), **options)
        return type(self)(qdata, self._layout_cls, params)

    def state_dict(self, prefix: str = "") -> dict[str, torch.Tensor]:
        """The stored tensors by name: prefix is the weight's, such as "fc1.weight"."""
        tensors = self._layout.state_dict_tensors(self._qdata, self._params)
        return {f"{prefix}{suffix}": tensor for suffix, tensor in tensors.items()}

    def optimize_for_gemv(self, storage: torch.Tensor) -> QuantizedTensor:
        return self._layout.optimize_for_gemv(self, storage)

    def linear_input_act(self, x, bias=None, input_act=None, input_act_weight=None,
                         input_act_eps=0.0, residual=None, residual_scale=None):  # fmt: skip
        return self._layout.linear_input_act(
            self, x, bias, input_act, input_act_weight, input_act_eps, residual, residual_scale
        )

    # ---- parts

    def _tensors(self) -> dict[str, torch.Tensor]:
        """The stored tensors: "qdata" and the params' by name."""
        params = self._params
        found = {"qdata": self._qdata}
        for field in dataclasses.fields(params):
            value = getattr(params, field.name)
            if isinstance(value, torch.Tensor):
                found[field.name] = value
        return found

    def _rebuilt(self, tensors: dict[str, torch.Tensor], **values) -> QuantizedTensor:
        """The same layout over other tensors and other values of the params."""
        tensors = dict(tensors)
        qdata = tensors.pop("qdata", self._qdata)
        params = dataclasses.replace(self._params, **tensors, **values)
        made = type(self)(qdata, self._layout_cls, params)
        made._layout = self._layout
        return made

    def _mapped(self, change: Callable, **values) -> QuantizedTensor:
        return self._rebuilt({n: change(t) for n, t in self._tensors().items()}, **values)

    def _copy_with(self, qdata=None, params=None, clone_params: bool = True) -> QuantizedTensor:
        """What layouts of others call in their handlers."""
        if params is None:
            params = self._params.clone() if clone_params else self._params
        return type(self)(self._qdata if qdata is None else qdata, self._layout_cls, params)

    # ---- torch.compile, pickle, copy

    def __tensor_flatten__(self):
        tensors = ["_qdata"]
        values = {}
        for field in dataclasses.fields(self._params):
            value = getattr(self._params, field.name)
            if isinstance(value, torch.Tensor):
                tensors.append(f"_param_{field.name}")
            else:
                values[field.name] = value
        return tensors, {
            "layout_cls": self._layout_cls,
            "params_class": type(self._params),
            "values": values,
        }

    @staticmethod
    def __tensor_unflatten__(inner_tensors, ctx, outer_size, outer_stride):
        values = dict(ctx["values"])
        if isinstance(outer_size, tuple | list):  # symbolic where shapes are dynamic
            values["orig_shape"] = tuple(outer_size)
        for name, tensor in inner_tensors.items():
            if name != "_qdata":
                values[name.removeprefix("_param_")] = tensor
        return QuantizedTensor(
            inner_tensors["_qdata"], ctx["layout_cls"], ctx["params_class"](**values)
        )

    def __reduce_ex__(self, protocol):
        params = self._params
        values = {f.name: _packed(getattr(params, f.name)) for f in dataclasses.fields(params)}
        values["orig_shape"] = tuple(params.orig_shape)
        is_param = getattr(self, "_is_param", False)
        return (rebuild, (self._layout_cls, _packed(self._qdata), values, is_param))

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            copied = self._mapped(lambda tensor: copy.deepcopy(tensor, memo))
            memo[id(self)] = _as_parameter(copied, getattr(self, "_is_param", False))
        return memo[id(self)]

    # ---- operators

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        handler = FUNCTIONS.get(func)
        if handler is not None and not _exporting():
            result = handler(*args, **kwargs)
            if result is not NotImplemented:
                return result
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        layout = layout_of(args)
        for handler in handlers_of(func, layout or QuantizedLayout):
            result = handler(args[0] if args else None, args, kwargs)
            if result is not NotImplemented:
                return result
        return decoded_call(func, args, kwargs)


def layout_of(args) -> type[QuantizedLayout] | None:
    """The layout of the first quantised argument, in lists too."""
    for arg in args:
        if isinstance(arg, QuantizedTensor):
            return arg._layout
        if isinstance(arg, list | tuple):
            found = layout_of(arg)
            if found is not None:
                return found
    return None


def decoded_call(func, args, kwargs, reason: str = ""):
    """Runs an operator on decoded values, and says so."""
    name = str(func)
    if func._schema.is_mutable and isinstance(args[0], QuantizedTensor):
        raise UnsupportedError(
            f"{name} writes into a quantised tensor, whose codes it can't round to: dequantize(), "
            "compute, and requantize_from_float()"
        )

    def decode(value):
        if isinstance(value, QuantizedTensor):
            _strict.note(name, value._layout_cls, value._params.orig_shape, reason)
            return value.dequantize()
        if isinstance(value, list | tuple):
            return type(value)(decode(one) for one in value)
        return value

    return func(*decode(tuple(args)), **{key: decode(value) for key, value in kwargs.items()})


def dequantize_args(args):
    """The same arguments with quantised tensors decoded, for handlers that want that."""
    if isinstance(args, QuantizedTensor):
        return args.dequantize()
    if isinstance(args, dict):
        return {key: dequantize_args(value) for key, value in args.items()}
    if isinstance(args, list | tuple):
        return type(args)(dequantize_args(value) for value in args)
    return args


def _needs_loop(layout: type[QuantizedLayout], qdata, params) -> bool:
    """Whether the weights of a batch are decoded one by one."""
    if len(params.orig_shape) <= 2 or qdata.ndim <= 2:
        return False
    fields = layout.geometry(params)
    if fields is None:
        return False
    if layout.BLOCK != (1, 1) or layout.PACKED != 1:
        return True
    return any(
        field.rows > 1 or (field is WHOLE and has_batch(getattr(params, name), field))
        for name, field in fields.items()
        if name != "qdata"
    )


def _decoded(layout: type[QuantizedLayout], qdata: torch.Tensor, params: Any) -> torch.Tensor:
    shape = tuple(params.orig_shape)
    if _needs_loop(layout, qdata, params):
        from .handlers.shapes import batch_parts

        parts = batch_parts(layout, qdata, params)
        return torch.stack([_decoded(layout, *part) for part in parts]).view(shape)
    if not qdata.is_contiguous() and layout.PACKED > 1:
        qdata = qdata.contiguous()
    values = layout.dequantize(qdata, params)
    if len(shape) == 1 and values.ndim == 2:  # one row of a matrix
        values = values[0]
    if tuple(values.shape) != shape:
        values = values[tuple(slice(0, size) for size in shape)]
    return values


def _as_parameter(tensor: QuantizedTensor, is_param: bool) -> QuantizedTensor:
    return torch.nn.Parameter(tensor, requires_grad=False) if is_param else tensor


def _packed(value):
    """A tensor as pickle can have it: torch pickles no float of 8 bits outside its own files."""
    if isinstance(value, torch.Tensor):
        return (as_bytes(value.detach()), value.dtype)
    return value


def _unpacked(value):
    if isinstance(value, tuple) and value and isinstance(value[0], torch.Tensor):
        return value[0].view(value[1])
    return value


def rebuild(layout_cls: str, qdata: tuple, values: dict, is_param: bool) -> QuantizedTensor:
    """What pickle calls."""
    values = {name: _unpacked(value) for name, value in values.items()}
    params = get_layout_class(layout_cls).Params(**values)
    return _as_parameter(QuantizedTensor(_unpacked(qdata), layout_cls, params), is_param)


torch.serialization.add_safe_globals([QuantizedTensor, rebuild])
