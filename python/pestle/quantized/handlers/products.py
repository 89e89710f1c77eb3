"""Products: floating-point activations with a quantised weight, and two quantised sides."""

from __future__ import annotations

import torch
from torch.nn import functional

from ..layout import QuantizedLayout, handlers_by_layout, handlers_of
from ..tensor import FUNCTIONS, QuantizedTensor, decoded_call
from .moves import handles
from .shapes import is_per_weight, is_transposed, transposed, turned_codes, weights_of

_aten = torch.ops.aten
_LINEAR = _aten.linear.default  # looking it up costs more than what asks for it

_ROWS = "sums over the weight's rows, along which codes share no scale"
_OPERANDS = "has no kernel for these two layouts"


def product(x, weight: QuantizedTensor, bias=None):
    """x @ weight^T + bias, or None where the weight's codes lie the other way."""
    if is_transposed(weight):
        return None
    if isinstance(x, QuantizedTensor):
        return _both(x, weight, bias)
    return _weight_only(x, weight, bias)


def _weight_only(x, weight, bias):
    if x.ndim == 1:
        return _weight_only(x.unsqueeze(0), weight, bias).squeeze(0)
    out = weight._layout.linear(x, weight._qdata, weight._params, bias, x.dtype)
    if out is not NotImplemented:
        return out
    return decoded_call(_aten.linear.default, (x, weight, bias), {}, "")


def _both(x, weight, bias):
    apart = bias is not None and bias.requires_grad and torch.is_grad_enabled()
    out = NotImplemented
    if not is_transposed(x):
        dtype = x._params.orig_dtype
        matrix = _as_rows(x)
        out = weight._layout.scaled_mm(matrix, weight, None if apart else bias, dtype)
    if out is NotImplemented:  # the activation is the smaller side to decode
        args = (x, weight, bias)
        return decoded_call(_aten.linear.default, _first_decoded(args), {}, _OPERANDS)
    out = out.view(*x._params.orig_shape[:-1], weight._params.orig_shape[0])
    return out + bias if apart else out


def _as_rows(x):
    """Activations as a matrix: some products take no more."""
    return x if len(x._params.orig_shape) == 2 else x.reshape(-1, x._params.orig_shape[-1])


def _first_decoded(args):
    from .. import _strict

    x = args[0]
    _strict.note("aten.linear.default", x._layout_cls, x._params.orig_shape, _OPERANDS)
    return (x.dequantize(), *args[1:])


def _columns(rhs: QuantizedTensor) -> QuantizedTensor | None:
    """The right side [K, N] of a product as a weight [N, K]; None where its codes lie along N."""
    if is_transposed(rhs):
        return transposed(rhs)
    return turned_codes(rhs) if is_per_weight(rhs) else None


def _matmul2(a, b):
    """a @ b of two matrices, or None."""
    if isinstance(b, QuantizedTensor):
        weight = _columns(b)
        return None if weight is None else product(a, weight)
    if isinstance(a, QuantizedTensor) and not is_transposed(a):
        return product(b.t(), a).t()
    return None


# ---- operators of aten


@handles(_aten.linear.default)
def _linear(qt, args, kwargs):
    x, weight, bias = (*args, kwargs.get("bias"))[:3]
    if not isinstance(weight, QuantizedTensor):
        return NotImplemented
    if is_transposed(weight) and is_per_weight(transposed(weight)):
        weight = turned_codes(transposed(weight))
    made = product(x, weight, bias)
    return decoded_call(_aten.linear.default, args, kwargs, _ROWS) if made is None else made


@handles(_aten.mm.default, _aten.mv.default)
def _mm(qt, args, kwargs):
    a, b = args
    if not isinstance(b, QuantizedTensor) and b.ndim == 1:
        return NotImplemented
    made = _matmul2(a, b)
    return decoded_call(_aten.mm.default, args, kwargs, _ROWS) if made is None else made


@handles(_aten.addmm.default)
def _addmm(qt, args, kwargs):
    added, a, b = args
    beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
    if isinstance(added, QuantizedTensor):
        return NotImplemented
    weight = _columns(b) if isinstance(b, QuantizedTensor) else None
    if weight is not None and added.ndim == 1 and beta == alpha == 1:
        return product(a, weight, added)
    made = _matmul2(a, b)
    if made is None:
        return decoded_call(_aten.addmm.default, args, kwargs, _ROWS)
    return (made.float() * alpha + added.float() * beta).to(made.dtype)


@handles(_aten.bmm.default)
def _bmm(qt, args, kwargs):
    a, b = args
    if not isinstance(b, QuantizedTensor) or isinstance(a, QuantizedTensor):
        return NotImplemented
    weights = [_columns(one) for one in weights_of(b)]
    if any(weight is None for weight in weights):
        return decoded_call(_aten.bmm.default, args, kwargs, _ROWS)
    return torch.stack([product(x, w) for x, w in zip(a.unbind(0), weights, strict=True)])


# ---- functions of torch, before autograd takes them apart


def takes(*functions):
    def keep(handler):
        for function in functions:
            FUNCTIONS[function] = handler
        return handler

    return keep


def _others(op, layout) -> bool:
    """Whether somebody registered a handler of this operator before ours."""
    registered = handlers_by_layout(op)
    if len(registered) == 1:  # that of every layout
        return registered[QuantizedLayout].__module__ != __name__
    return handlers_of(op, layout)[0].__module__ != __name__


def has_own_linear(layout) -> bool:
    """Whether a linear layer of this layout is computed here."""
    return not _others(_LINEAR, layout)


@takes(functional.linear)
def _function_linear(input, weight, bias=None):
    if not isinstance(weight, QuantizedTensor):
        return NotImplemented
    if _others(_LINEAR, weight._layout):
        for handler in handlers_of(_LINEAR, weight._layout):
            out = handler(input, (input, weight, bias), {})
            if out is not NotImplemented:
                return out
    made = product(input, weight, bias)
    return NotImplemented if made is None else made


@takes(torch.mm, torch.Tensor.mm)
def _function_mm(input, mat2):
    if isinstance(mat2, QuantizedTensor) and _others(_aten.mm.default, mat2._layout):
        return NotImplemented
    made = _matmul2(input, mat2)
    return NotImplemented if made is None else made


@takes(torch.bmm, torch.Tensor.bmm)
def _function_bmm(input, mat2):
    if not isinstance(mat2, QuantizedTensor) or isinstance(input, QuantizedTensor):
        return NotImplemented
    weights = [_columns(one) for one in weights_of(mat2)]
    if any(weight is None for weight in weights):
        return NotImplemented
    return torch.stack([product(x, w) for x, w in zip(input.unbind(0), weights, strict=True)])


@takes(torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)
def _function_matmul(input, other):
    if isinstance(other, QuantizedTensor):
        rank = len(other._params.orig_shape)
        if rank == 2:
            if _others(_aten.mm.default, other._layout):
                return NotImplemented
            weight = _columns(other)
            made = None if weight is None else product(input, weight)
            return NotImplemented if made is None else made
        if rank == 3 and input.ndim == 3 and input.shape[0] == other._params.orig_shape[0]:
            return _function_bmm(input, other)
        return NotImplemented
    if input.ndim == 2 and other.ndim == 2:
        return _function_mm(input, other)
    return NotImplemented


@takes(torch.Tensor.__rmatmul__)
def _function_rmatmul(self, other):
    return _function_matmul(other, self)


@takes(torch.addmm, torch.Tensor.addmm)
def _function_addmm(input, mat1, mat2, *, beta=1, alpha=1):
    if isinstance(mat2, QuantizedTensor) and not isinstance(input, QuantizedTensor):
        if _others(_aten.addmm.default, mat2._layout):
            return NotImplemented
        return _addmm(input, (input, mat1, mat2), {"beta": beta, "alpha": alpha})
    return NotImplemented
