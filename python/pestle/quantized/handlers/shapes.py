"""Cutting, gathering and joining rows and columns: codes and scales are moved, none is decoded."""

from __future__ import annotations

import dataclasses
from math import prod

import torch

from .. import _geometry as geometry
from ..tensor import QuantizedTensor, decoded_call
from .moves import handles

_aten = torch.ops.aten


def is_transposed(qt: QuantizedTensor) -> bool:
    return getattr(qt._params, "transposed", False)


def is_per_weight(qt: QuantizedTensor) -> bool:
    """Codes of one byte and one scale for all rows and columns: they may lie either way."""
    fields = qt._layout.geometry(qt._params)
    if fields is None or is_transposed(qt) or qt._layout.column_step(qt._params) != 1:
        return False
    return all(field == geometry.CODES or field.axes == 0 for field in fields.values())


def is_elementwise(qt: QuantizedTensor) -> bool:
    """One scale for all weights of a batch, too: any shape will do."""
    if not is_per_weight(qt):
        return False
    fields = qt._layout.geometry(qt._params)
    return not any(f.axes == 0 and geometry.has_batch(t, f) for f, t in pairs(qt, fields))


def pairs(qt: QuantizedTensor, fields: dict) -> list:
    tensors = qt._tensors()
    return [(field, tensors[name]) for name, field in fields.items()]


def transposed(qt: QuantizedTensor) -> QuantizedTensor:
    """The last two dimensions exchanged: a flag, or where there is none other strides."""
    *batch, rows, columns = qt._params.orig_shape
    if hasattr(qt._params, "transposed"):
        turned = not qt._params.transposed
        return qt._rebuilt({}, orig_shape=(*batch, columns, rows), transposed=turned)
    return turned_codes(qt)


def turned_codes(qt: QuantizedTensor) -> QuantizedTensor:
    """The last two dimensions of the codes exchanged."""
    *batch, rows, columns = qt._params.orig_shape
    return qt._rebuilt({"qdata": qt._qdata.transpose(-1, -2)}, orig_shape=(*batch, columns, rows))


def _can_transpose(qt: QuantizedTensor) -> bool:
    return len(qt._params.orig_shape) >= 2 and (
        hasattr(qt._params, "transposed") or is_per_weight(qt)
    )


def stored_shape(qt: QuantizedTensor) -> tuple[int, int]:
    """Rows and columns of a weight as stored, without padding of rows and with that of columns."""
    shape = qt._params.orig_shape
    columns = qt._qdata.shape[-1] * qt._layout.PACKED
    return (shape[-2] if len(shape) > 1 else 1), columns


def _as_matrix(qt: QuantizedTensor) -> QuantizedTensor:
    """A tensor of one dimension as a matrix of one row."""
    if len(qt._params.orig_shape) != 1:
        return qt
    qdata = qt._qdata if qt._qdata.ndim == 2 else qt._qdata.unsqueeze(0)
    return qt._rebuilt({"qdata": qdata}, orig_shape=(1, *qt._params.orig_shape))


def _each(qt: QuantizedTensor, change, shape: tuple) -> QuantizedTensor | None:
    """change(tensor, field) of every stored tensor; None if one of them is."""
    fields = qt._layout.geometry(qt._params)
    if fields is None:
        return None
    tensors = qt._tensors()
    made = {name: change(tensors[name], field) for name, field in fields.items()}
    if any(tensor is None for tensor in made.values()):
        return None
    return qt._rebuilt(made, orig_shape=shape)


def cut(qt: QuantizedTensor, dim: int, start: int, stop: int, step: int = 1):
    """start:stop:step of a dimension; None where it would cut through a block."""
    shape = qt._params.orig_shape
    dim %= len(shape)
    if is_transposed(qt) and dim >= len(shape) - 2:
        part = cut(transposed(qt), 2 * len(shape) - 3 - dim, start, stop, step)
        return None if part is None else transposed(part)
    if len(shape) == 1:
        part = cut(_as_matrix(qt), 1, start, stop, step)
        return None if part is None else _squeezed(part)
    size = len(range(start, stop, step))
    new = (*shape[:dim], size, *shape[dim + 1 :])
    whole = stored_shape(qt)
    if dim < len(shape) - 2:
        index = (slice(None),) * dim + (slice(start, stop, step),)
        return _each(qt, lambda t, f: t[index] if geometry.has_batch(t, f) else t, new)
    if dim == len(shape) - 2:
        part = _each(qt, lambda t, f: geometry.cut_rows(t, f, start, stop, step, whole), new)
        if part is None and hasattr(qt._layout, "by_rows"):
            finer = qt._layout.by_rows(qt._qdata, qt._params)
            return cut(_with(qt, *finer), dim, start, stop, step)
        return part
    return _cut_columns(qt, start, stop, step, new)


def _with(qt: QuantizedTensor, qdata, params) -> QuantizedTensor:
    made = qt._rebuilt({"qdata": qdata})
    made._params = params
    return made


def _cut_columns(qt: QuantizedTensor, start: int, stop: int, step: int, new: tuple):
    least, whole = qt._layout.column_step(qt._params), stored_shape(qt)
    if stop == qt._params.orig_shape[-1]:
        stop = whole[1]  # the padding stays with the last columns
    if start % least or (stop % least and stop != whole[1]):
        return None
    if step != 1:
        if least != 1 or qt._layout.PACKED != 1:
            return None
        index = (..., slice(start, stop, step))
        return _each(qt, lambda t, f: t[index] if f.columns else t, new)
    return _each(qt, lambda t, f: geometry.cut_columns(t, f, start, stop, whole), new)


def rows_at(qt: QuantizedTensor, index: torch.Tensor):
    """Rows of a matrix, or weights of a batch; None where the layout can't give them."""
    shape = qt._params.orig_shape
    new = (index.numel(), *shape[1:])
    if len(shape) > 2 and not is_elementwise(qt):

        def pick(tensor, field):
            if not geometry.has_batch(tensor, field):
                return tensor
            return geometry.like(geometry.as_bytes(tensor).index_select(0, index), tensor)

        return _each(qt, pick, new)
    if is_elementwise(qt):
        codes = geometry.as_bytes(qt._qdata).index_select(0, index.to(qt._qdata.device))
        return qt._rebuilt({"qdata": geometry.like(codes, qt._qdata)}, orig_shape=new)
    if is_transposed(qt) or len(shape) != 2:
        return None
    if hasattr(qt._layout, "by_rows"):
        qt = _with(qt, *qt._layout.by_rows(qt._qdata, qt._params))
    whole = stored_shape(qt)
    return _each(qt, lambda t, f: geometry.gather_rows(t, f, index, whole), new)


def _squeezed(qt: QuantizedTensor) -> QuantizedTensor:
    """A matrix of one row as a tensor of one dimension."""
    return qt._rebuilt({}, orig_shape=qt._params.orig_shape[1:])


def regrouped(qt: QuantizedTensor, shape: tuple):
    """A view of another shape with the same rows of columns; None where that is none."""
    old = tuple(qt._params.orig_shape)
    if shape == old:
        return qt._rebuilt({})
    if is_elementwise(qt):
        return qt._rebuilt({"qdata": qt._qdata.reshape(shape)}, orig_shape=shape)
    if is_transposed(qt) or not shape or shape[-1] != old[-1]:
        return None
    if len(shape) == 1:
        return _squeezed(regrouped(qt, (1, *shape))) if prod(old[:-1]) == 1 else None
    qt = _as_matrix(qt)
    whole, same_rows = stored_shape(qt), shape[-2] == qt._params.orig_shape[-2]

    def change(tensor, field):
        if field.shared:
            return tensor
        if field.axes == 0:
            if not geometry.has_batch(tensor, field):
                return tensor
            return tensor.reshape(shape[:-2]) if same_rows else None
        if same_rows:
            return tensor.reshape(*shape[:-2], *tensor.shape[tensor.ndim - field.axes :])
        if field.rows != 1 or field.flipped:
            return None
        return geometry.regrouped_rows(tensor, field, shape, whole)

    return _each(qt, change, shape)


def batch_parts(layout, qdata, params) -> list[tuple]:
    """Codes and params of each weight of a batch."""
    fields = layout.geometry(params)
    *batch, rows, columns = params.orig_shape
    tensors = {f.name: getattr(params, f.name) for f in dataclasses.fields(params)}
    tensors = {n: t for n, t in tensors.items() if isinstance(t, torch.Tensor)} | {"qdata": qdata}
    flat = {}
    for name, tensor in tensors.items():
        field = fields[name]
        own = geometry.has_batch(tensor, field)
        tail = tensor.shape[tensor.ndim - field.axes :] if field.axes else ()
        flat[name] = tensor.reshape(-1, *tail) if own else [tensor] * prod(batch)
    made = []
    for i in range(prod(batch)):
        part = {name: tensor[i] for name, tensor in flat.items()}
        codes = part.pop("qdata")
        made.append((codes, dataclasses.replace(params, **part, orig_shape=(rows, columns))))
    return made


def weights_of(qt: QuantizedTensor) -> list[QuantizedTensor]:
    """The matrices of a batch, each as it is (transposed or not)."""
    turned = is_transposed(qt)
    base = transposed(qt) if turned else qt
    parts = [_with(base, *part) for part in batch_parts(base._layout, base._qdata, base._params)]
    return [transposed(part) if turned else part for part in parts]


# ---- operators


def or_decoded(made, func, args, kwargs, reason: str):
    return decoded_call(func, args, kwargs, reason) if made is None else made


@handles(_aten.t.default)
def _t(qt, args, kwargs):
    if len(qt._params.orig_shape) < 2:
        return qt._rebuilt({})
    return transposed(qt) if _can_transpose(qt) else NotImplemented


@handles(_aten.transpose.int)
def _transpose(qt, args, kwargs):
    rank = len(qt._params.orig_shape)
    a, b = sorted(dim % rank for dim in args[1:3])
    if a == b:
        return qt._rebuilt({})
    if is_elementwise(qt):
        qdata = qt._qdata.transpose(a, b)
        return qt._rebuilt({"qdata": qdata}, orig_shape=tuple(qdata.shape))
    return (
        transposed(qt) if (a, b) == (rank - 2, rank - 1) and _can_transpose(qt) else NotImplemented
    )


@handles(_aten.permute.default)
def _permute(qt, args, kwargs):
    rank = len(qt._params.orig_shape)
    dims = [dim % rank for dim in args[1]]
    if is_elementwise(qt):
        qdata = qt._qdata.permute(dims)
        return qt._rebuilt({"qdata": qdata}, orig_shape=tuple(qdata.shape))
    if dims == list(range(rank)):
        return qt._rebuilt({})
    turned = [*range(rank - 2), rank - 1, rank - 2]
    return transposed(qt) if dims == turned and _can_transpose(qt) else NotImplemented


_VIEW = "makes rows of other lengths, and scales belong to columns"


@handles(_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default)
def _view(qt, args, kwargs):
    shape = list(args[1])
    if -1 in shape:
        rest = prod(size for size in shape if size != -1)
        shape[shape.index(-1)] = qt.numel() // max(rest, 1)
    return or_decoded(regrouped(qt, tuple(shape)), *_call(_aten.reshape, args, kwargs), _VIEW)


def _call(op, args, kwargs) -> tuple:
    return op.default, args, kwargs


@handles(_aten.unsqueeze.default)
def _unsqueeze(qt, args, kwargs):
    shape = list(qt._params.orig_shape)
    shape.insert(args[1] % (len(shape) + 1), 1)
    return or_decoded(regrouped(qt, tuple(shape)), *_call(_aten.unsqueeze, args, kwargs), _VIEW)


@handles(_aten.squeeze.dim)
def _squeeze(qt, args, kwargs):
    shape = list(qt._params.orig_shape)
    if shape[args[1]] == 1:
        del shape[args[1]]
    made = regrouped(qt, tuple(shape))
    return or_decoded(made, _aten.squeeze.dim, args, kwargs, _VIEW)


_BLOCK = "cuts through a block that shares a scale"


@handles(_aten.slice.Tensor)
def _slice(qt, args, kwargs):
    dim, start, stop, step = (*args[1:], *(0, None, None, 1)[len(args) - 1 :])
    size = qt._params.orig_shape[dim]
    start, stop, step = slice(start, stop, step).indices(size)
    made = cut(qt, dim, start, max(start, stop), step)
    return or_decoded(made, _aten.slice.Tensor, args, kwargs, _BLOCK)


@handles(_aten.select.int)
def _select(qt, args, kwargs):
    dim, index = args[1:3]
    shape = qt._params.orig_shape
    dim, index = dim % len(shape), index % shape[dim]
    made = None
    if dim < len(shape) - 2 and not is_elementwise(qt):
        made = cut(qt, dim, index, index + 1)
        made = None if made is None else regrouped_without(made, dim)
    elif is_elementwise(qt):
        qdata = qt._qdata.select(dim, index)
        made = qt._rebuilt({"qdata": qdata}, orig_shape=tuple(qdata.shape))
    elif len(shape) == 2 and dim == 0 and not is_transposed(qt):
        made = cut(qt, 0, index, index + 1)
        made = None if made is None else _squeezed(made)
    elif len(shape) == 2 and dim == 1 and is_transposed(qt):
        made = cut(transposed(qt), 0, index, index + 1)
        made = None if made is None else _squeezed(made)
    return or_decoded(made, _aten.select.int, args, kwargs, _BLOCK)


def regrouped_without(qt: QuantizedTensor, dim: int):
    """Without a dimension of size 1 of the batch."""
    turned = is_transposed(qt)
    base = transposed(qt) if turned else qt
    shape = base._params.orig_shape
    made = regrouped(base, (*shape[:dim], *shape[dim + 1 :]))
    if made is not None and len(shape) == 3:
        made = _each(
            made, lambda t, f: t.reshape(()) if f.axes == 0 else t, made._params.orig_shape
        )
    return transposed(made) if turned and made is not None else made


@handles(_aten.index_select.default)
def _index_select(qt, args, kwargs):
    dim, index = args[1:3]
    made = rows_at(qt, index) if dim % len(qt._params.orig_shape) == 0 else None
    return or_decoded(made, _aten.index_select.default, args, kwargs, "gathers columns")


@handles(_aten.index.Tensor)
def _index(qt, args, kwargs):
    index = [one for one in args[1] if one is not None]
    made = None
    if len(index) == 1 and args[1][0] is not None:
        (where,) = index
        if where.dtype in (torch.bool, torch.uint8):
            where = where.nonzero().squeeze(1) if where.ndim == 1 else None
        size = qt._params.orig_shape[0]
        if where is not None:
            where = where.to(qt._qdata.device)
            flat = where.reshape(-1)
            made = rows_at(qt, torch.where(flat < 0, flat + size, flat))
        if made is not None and where.ndim != 1:
            made = regrouped(made, (*where.shape, *qt._params.orig_shape[1:]))
    return or_decoded(made, _aten.index.Tensor, args, kwargs, "gathers more than rows")


def _pieces(qt: QuantizedTensor, sizes, dim: int):
    made, start = [], 0
    for size in sizes:
        part = cut(qt, dim, start, start + size)
        if part is None:
            return None
        made.append(part)
        start += size
    return made


@handles(_aten.split.Tensor)
def _split(qt, args, kwargs):
    size, dim = (*args[1:], kwargs.get("dim", 0))[:2]
    whole = qt._params.orig_shape[dim]
    sizes = [min(size, whole - start) for start in range(0, whole, size)] or [0]
    return or_decoded(_pieces(qt, sizes, dim), _aten.split.Tensor, args, kwargs, _BLOCK)


@handles(_aten.split_with_sizes.default)
def _split_with_sizes(qt, args, kwargs):
    sizes, dim = (*args[1:], kwargs.get("dim", 0))[:2]
    made = _pieces(qt, sizes, dim)
    return or_decoded(made, _aten.split_with_sizes.default, args, kwargs, _BLOCK)


@handles(_aten.chunk.default)
def _chunk(qt, args, kwargs):
    count, dim = (*args[1:], kwargs.get("dim", 0))[:2]
    whole = qt._params.orig_shape[dim]
    return _split(qt, (qt, max(1, geometry.cdiv(whole, count)), dim), {})


@handles(_aten.unbind.int)
def _unbind(qt, args, kwargs):
    dim = args[1] if len(args) > 1 else 0
    return [_select(qt, (qt, dim, i), {}) for i in range(qt._params.orig_shape[dim])]


@handles(_aten.embedding.default)
def _embedding(qt, args, kwargs):
    """Gathers codes, and decodes the rows that were asked for."""
    weight, index = args[:2]
    if not isinstance(weight, QuantizedTensor):
        return NotImplemented
    rows = rows_at(weight, index.reshape(-1))
    if rows is None:
        return decoded_call(_aten.embedding.default, args, kwargs, _BLOCK)
    return rows.dequantize().view(*index.shape, weight._params.orig_shape[-1])


__all__ = ["batch_parts", "cut", "regrouped", "rows_at", "transposed", "weights_of"]
