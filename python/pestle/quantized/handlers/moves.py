"""Copies, devices, dtypes: every stored tensor goes the same way."""

from __future__ import annotations

import dataclasses

import torch

from .._geometry import as_bytes
from ..layout import QuantizedLayout, register_layout_op
from ..tensor import QuantizedTensor, decoded_call

_aten = torch.ops.aten


def handles(*ops):
    """Registers a handler for every layout."""

    def keep(handler):
        for op in ops:
            register_layout_op(op, QuantizedLayout)(handler)
        return handler

    return keep


def _own(qt: QuantizedTensor) -> QuantizedTensor:
    """Params of its own, since writing into a tensor replaces them."""
    return qt._rebuilt({})


@handles(_aten.detach.default, _aten.alias.default, _aten.lift_fresh.default)
def _alias(qt, args, kwargs):
    return qt._mapped(lambda tensor: tensor.detach())


@handles(_aten.clone.default)
def _clone(qt, args, kwargs):
    return qt._mapped(torch.clone)


@handles(_aten.contiguous.default)
def _contiguous(qt, args, kwargs):
    return qt._mapped(lambda tensor: tensor.contiguous())


@handles(_aten.is_contiguous.default)
def _is_contiguous(qt, args, kwargs):
    return qt._qdata.is_contiguous()


@handles(_aten._has_compatible_shallow_copy_type.default)
def _compatible(qt, args, kwargs):
    return all(isinstance(arg, QuantizedTensor) for arg in args)


@handles(_aten._to_copy.default)
def _to_copy(qt, args, kwargs):
    dtype = kwargs.get("dtype") or qt._params.orig_dtype
    if not dtype.is_floating_point or dtype.itemsize < 2:
        return decoded_call(
            _aten._to_copy.default, args, kwargs, f"to {dtype} needs the values themselves"
        )
    how = {"device": kwargs.get("device"), "non_blocking": kwargs.get("non_blocking", False)}
    moved = qt._mapped(lambda tensor: tensor.to(copy=True, **how), orig_dtype=dtype)
    if kwargs.get("pin_memory"):
        moved = moved._mapped(lambda tensor: tensor.pin_memory())
    return moved


@handles(_aten.to.dtype, _aten.to.dtype_layout, _aten.to.device)
def _to(qt, args, kwargs):
    found = dict(kwargs)
    for value in args[1:]:
        if isinstance(value, torch.dtype):
            found["dtype"] = value
        elif isinstance(value, torch.device):
            found["device"] = value
    device, dtype = found.get("device"), found.get("dtype")
    same_device = device is None or torch.device(device) == qt._qdata.device
    if same_device and dtype in (None, qt._params.orig_dtype) and not found.get("copy"):
        return qt
    return _to_copy(qt, args[:1], found)


@handles(_aten._pin_memory.default, _aten.pin_memory.default)
def _pin_memory(qt, args, kwargs):
    return qt._mapped(lambda tensor: tensor.pin_memory())


@handles(_aten.is_pinned.default)
def _is_pinned(qt, args, kwargs):
    return qt._qdata.is_pinned()


@handles(_aten.copy_.default)
def _copy_(qt, args, kwargs):
    target, source = args[:2]
    if not isinstance(target, QuantizedTensor):
        return NotImplemented
    if not isinstance(source, QuantizedTensor):
        raise TypeError(
            f"Cannot copy {type(source).__name__} to QuantizedTensor: use requantize_from_float"
        )
    if target._layout_cls != source._layout_cls:
        raise TypeError(f"Layout mismatch: {target._layout_cls} vs {source._layout_cls}")
    theirs = source._tensors()
    for name, tensor in target._tensors().items():
        if name not in theirs or tensor.shape != theirs[name].shape:
            has = tuple(theirs[name].shape) if name in theirs else "nothing"
            raise ValueError(
                f"copy_: {name} has shape {tuple(tensor.shape)} here and {has} in the source"
            )
    non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    for name, tensor in target._tensors().items():
        tensor.copy_(theirs[name], non_blocking=non_blocking)
    values = {
        field.name: getattr(source._params, field.name)
        for field in dataclasses.fields(source._params)
        if field.name != "orig_dtype" and field.name not in theirs
    }
    target._params = dataclasses.replace(target._params, **values)
    return target


@handles(_aten.empty_like.default)
def _empty_like(qt, args, kwargs):
    dtype = kwargs.get("dtype") or qt._params.orig_dtype
    device = kwargs.get("device")
    return qt._mapped(lambda tensor: torch.empty_like(tensor, device=device), orig_dtype=dtype)


@handles(_aten.equal.default)
def _equal(qt, args, kwargs):
    """Quantised tensors are equal when all that is stored is."""
    a, b = args
    if not (isinstance(a, QuantizedTensor) and isinstance(b, QuantizedTensor)):
        return NotImplemented
    if a._layout is not b._layout or a._params.orig_shape != b._params.orig_shape:
        return False
    ours, theirs = a._tensors(), b._tensors()
    return _same_values(a._params, b._params) and all(
        name in theirs and torch.equal(as_bytes(tensor), as_bytes(theirs[name]))
        for name, tensor in ours.items()
    )


def _same_values(a, b) -> bool:
    """The params without their tensors."""
    if type(a) is not type(b):
        return False
    pairs = ((getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return all(
        isinstance(ours, torch.Tensor) == isinstance(theirs, torch.Tensor)
        and (isinstance(ours, torch.Tensor) or ours == theirs)
        for ours, theirs in pairs
    )
