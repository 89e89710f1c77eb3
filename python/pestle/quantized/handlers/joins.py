"""Joining tensors: codes and scales are put together, none is decoded."""

from __future__ import annotations

import dataclasses

import torch

from .. import _geometry as geometry
from ..tensor import QuantizedTensor
from .moves import handles
from .shapes import is_transposed, or_decoded, stored_shape, transposed

_aten = torch.ops.aten

_JOIN = "joins tensors of different layouts, or of scales that can't stand in one tensor"


def _alike(tensors) -> bool:
    """The same layout with the same values beside its tensors."""
    if not all(isinstance(t, QuantizedTensor) for t in tensors):
        return False
    first = tensors[0]
    names = first._tensors().keys()

    def rest(qt):
        return {
            f.name: getattr(qt._params, f.name)
            for f in dataclasses.fields(qt._params)
            if f.name not in names and f.name != "orig_shape"
        }

    return all(
        t._layout is first._layout
        and t._qdata.dtype == first._qdata.dtype
        and t._tensors().keys() == names
        and rest(t) == rest(first)
        for t in tensors
    )


def joined(tensors: list, dim: int):
    """Tensors behind each other; None where no layout holds them."""
    if not _alike(tensors):
        return None
    rank = len(tensors[0]._params.orig_shape)
    dim %= rank
    if rank < 2 or tensors[0]._layout.geometry(tensors[0]._params) is None:
        return None
    if is_transposed(tensors[0]):
        if dim < rank - 2:
            return None
        made = joined([transposed(t) for t in tensors], 2 * rank - 3 - dim)
        return None if made is None else transposed(made)
    shapes = [t._params.orig_shape for t in tensors]
    new = (*shapes[0][:dim], sum(s[dim] for s in shapes), *shapes[0][dim + 1 :])
    if any(s[:dim] + s[dim + 1 :] != shapes[0][:dim] + shapes[0][dim + 1 :] for s in shapes):
        raise ValueError(f"cat: shapes {shapes} differ in other dimensions than {dim}")
    made = _joined_along(tensors, dim - rank, new)
    if made is None and dim == rank - 2 and hasattr(tensors[0]._layout, "joinable"):
        tensors = tensors[0]._layout.joinable(tensors)
        made = _joined_along(tensors, -2, new)
    return made


def _joined_along(tensors: list, dim: int, new: tuple):
    first = tensors[0]
    fields = [t._layout.geometry(t._params) for t in tensors]
    if any(f != fields[0] for f in fields):
        return None
    wholes = [stored_shape(t) for t in tensors]
    step = first._layout.column_step(first._params)
    if dim == -1 and any(t._params.orig_shape[-1] % step for t in tensors[:-1]):
        return None
    parts = [t._tensors() for t in tensors]
    made = {}
    for name, field in fields[0].items():
        own = [part[name] for part in parts]
        if dim == -2:
            own = [_without_padding(t, field, whole) for t, whole in zip(own, wholes, strict=True)]
            made[name] = geometry.join_rows(own, field, wholes)
        elif dim == -1:
            made[name] = geometry.join_columns(own, field, wholes)
        else:
            has = geometry.has_batch(own[0], field)
            made[name] = geometry.joined_along(own, dim + len(new)) if has else _same(own)
        if made[name] is None:
            return None
    return first._rebuilt(made, orig_shape=new)


def _same(tensors: list):
    return geometry.join_rows(tensors, geometry.WHOLE, [])


def _without_padding(tensor, field, whole):
    """Codes of the weight's own rows."""
    return tensor[..., : whole[0], :] if field in (geometry.CODES, geometry.NIBBLES) else tensor


@handles(_aten.cat.default)
def _cat(qt, args, kwargs):
    tensors, dim = (*args, kwargs.get("dim", 0))[:2]
    made = joined(list(tensors), dim)
    return or_decoded(made, _aten.cat.default, args, kwargs, _JOIN)


@handles(_aten.stack.default)
def _stack(qt, args, kwargs):
    tensors, dim = (*args, kwargs.get("dim", 0))[:2]
    made = None
    first = tensors[0]
    shapes = {t._params.orig_shape for t in tensors if isinstance(t, QuantizedTensor)}
    if _alike(tensors) and dim == 0 and len(shapes) == 1 and len(first._params.orig_shape) == 2:
        fields = first._layout.geometry(first._params)
        if fields is not None:
            parts = [t._tensors() for t in tensors]
            own = {n: geometry.stacked([p[n] for p in parts], f) for n, f in fields.items()}
            made = first._rebuilt(own, orig_shape=(len(tensors), *first._params.orig_shape))
    return or_decoded(made, _aten.stack.default, args, kwargs, _JOIN)
