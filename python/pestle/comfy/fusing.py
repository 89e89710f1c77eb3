"""What stands around a quantised linear layer goes into its kernel: inductor fuses nothing into an
op that it has no code for, so an activation or a gated residual would pass through memory again.

A pass over the graph that dynamo made, before it is taken apart. A linear layer whose output only
the tanh GELU reads takes that along; so does one whose output is only scaled and added to another
tensor; and layers of INT8 codes that multiply the same activations share the codes of these.
Values are rounded once where they were rounded after each operation.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Node
from torch.nn import functional

import pestle

from ..quantized import QuantizedTensor
from ..quantized.handlers.products import has_own_linear
from ..quantized.layout import QuantizedLayout

_LINEAR = (torch._C._nn.linear, functional.linear)
_GELU = (torch._C._nn.gelu, functional.gelu)
_ADD, _MUL = (operator.add, torch.add), (operator.mul, torch.mul)
_IN_PLACE = {
    operator.iadd, operator.iand, operator.iconcat, operator.ifloordiv, operator.ilshift,
    operator.imatmul, operator.imod, operator.imul, operator.ior, operator.ipow, operator.irshift,
    operator.isub, operator.itruediv, operator.ixor, operator.setitem, operator.delitem,
}  # fmt: skip


# ---- what the nodes call; torch traces through it


def linear(x, weight, bias=None, activation="none", residual=None, gate=None):
    """residual + gate * activation(x @ weight^T + bias), by the kernel of the weight's layout."""
    op, tensors, options = weight._layout.kernel_call(x, weight._qdata, weight._params)
    return _called(op, tensors, options, x.dtype, bias, activation, residual, gate)


def row_codes(x):
    """INT8 codes of x and a scale for each of its rows."""
    return pestle.quantize_int8(x, granularity="row")


def linear_of_codes(codes, like, weight, bias=None, activation="none", residual=None, gate=None):
    """As linear, of codes that row_codes made of `like`."""
    q, scale = codes
    tensors = (q, weight._qdata, scale, weight._layout._scale(weight._qdata, weight._params)[0])
    options = {"granularity": "row"}
    return _called("scaled_mm_int8", tensors, options, like.dtype, bias, activation, residual, gate)


def _called(op, tensors, options, dtype, bias, activation, residual, gate):
    if gate is not None:
        gate = gate.reshape(-1, gate.shape[-1])
    return getattr(pestle, op)(
        *tensors, **options, bias=bias, activation=activation, residual=residual, gate=gate,
        out_dtype=dtype,
    )  # fmt: skip


CACHEABLE = {
    f"{__name__}.{function.__name__}": pestle.__version__
    for function in (linear, row_codes, linear_of_codes)
}


# ---- the pass


def fuse(graph: torch.fx.Graph) -> None:
    """As inductor's pre_grad_custom_pass."""
    inputs = [value(node) for node in graph.nodes if node.op == "placeholder"]
    if any(isinstance(t, torch.Tensor) and t.requires_grad for t in inputs):
        return  # an epilogue has no gradient where its operations have
    found = [made for node in list(graph.nodes) if (made := _prepared(graph, node)) is not None]
    for node in found:
        _take_gelu(node)
    # Each fusion may move a node, so the order is asked for anew.
    found = [_take_residual(graph, node) for node in found]
    _share_codes(graph, found)  # what is unused was taken out: FX would take out writes, too


def value(node) -> object:
    return node.meta.get("example_value") if isinstance(node, Node) else node


def _prepared(graph: torch.fx.Graph, node: Node) -> Node | None:
    """The linear layer of a quantised weight that has a kernel, called by `linear` above."""
    if node.op != "call_function" or node.target not in _LINEAR:
        return None
    given = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | node.kwargs
    x, weight = value(given["input"]), value(given["weight"])
    if type(weight) is not QuantizedTensor or not _is_plain(x) or x.ndim < 2:
        return None
    layout, params = weight._layout, weight._params
    if layout.linear.__func__ is not QuantizedLayout.linear.__func__ or not has_own_linear(layout):
        return None
    if getattr(params, "transposed", False) or len(params.orig_shape) != 2:
        return None
    if layout.kernel_call.__func__ is QuantizedLayout.kernel_call.__func__:
        return None
    with graph.inserting_before(node):
        args = (given["input"], given["weight"], given.get("bias"))
        return _replace(graph, node, linear, args, {})


def _is_plain(t) -> bool:
    return isinstance(t, torch.Tensor) and not isinstance(t, QuantizedTensor)


def _replace(graph, node: Node, function, args: tuple, kwargs: dict) -> Node:
    made = graph.call_function(function, args, kwargs)
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    return made


def _only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _take_gelu(node: Node) -> None:
    user = _only_user(node)
    if user is None or user.target not in _GELU or user.args[:1] != (node,):
        return
    if user.kwargs.get("approximate", "none") != "tanh":
        return
    # The output is nobody else's and new, so it does not matter what is written in between.
    node.kwargs = {**node.kwargs, "activation": "gelu_tanh"}
    user.replace_all_uses_with(node)
    node.graph.erase_node(user)


def _take_residual(graph: torch.fx.Graph, node: Node) -> Node:
    """residual + gate * y, or residual + y."""
    user, gate, last = _only_user(node), None, node
    if node.kwargs.get("activation") or user is None:
        return node
    if (other := _other_operand(user, node, _MUL)) is not None:
        gate, last, user = other, user, _only_user(user)
    residual = _other_operand(user, last, _ADD)
    if residual is None or not _fits(value(residual), value(node)):
        return node
    if gate is not None and not (
        _is_row(value(gate), value(node)) and _multiplies_codes(value(node.args[1]))
    ):
        return node
    if writes_between(node, user):
        return node
    with graph.inserting_before(user):
        kwargs = {"residual": residual, "gate": gate}
        made = _replace(graph, user, linear, node.args, kwargs)
    for gone in dict.fromkeys((last, node)):
        graph.erase_node(gone)
    return made


def _other_operand(user: Node | None, node: Node, targets: tuple) -> Node | None:
    """What else goes into a plain operation of two tensors."""
    if user is None or user.op != "call_function" or user.target not in targets:
        return None
    if user.kwargs or len(user.args) != 2:
        return None
    first, second = user.args
    other = second if first is node else first
    return other if isinstance(other, Node) and other is not node else None


def _multiplies_codes(weight: QuantizedTensor) -> bool:
    """Kernels of float activations run gates as operations of their own."""
    return getattr(weight._params, "activations", "float") != "float"


def _known_equal(a, b) -> bool:
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(a == b)


def _fits(residual, y) -> bool:
    """The sum has y's shape and dtype."""
    if not _is_plain(residual) or residual.dtype != y.dtype or residual.ndim != y.ndim:
        return False
    return all(_known_equal(a, b) for a, b in zip(residual.shape, y.shape, strict=True))


def _is_row(gate, y) -> bool:
    """A row for all rows of y, or one for the rows of each entry of y's first dimensions."""
    if not _is_plain(gate) or gate.dtype != y.dtype or not 1 <= gate.ndim <= y.ndim:
        return False
    if not _known_equal(gate.shape[-1], y.shape[-1]):
        return False
    rows = (1,) * (y.ndim - gate.ndim) + tuple(gate.shape[:-1])
    of_ones = [_known_equal(size, 1) for size in rows]
    begin = next((i for i in range(len(rows)) if all(of_ones[i:])), len(rows))
    return all(_known_equal(a, b) for a, b in zip(rows[:begin], y.shape[:begin], strict=True))


def writes_between(first: Node, last: Node) -> bool:
    """Whether something between these nodes writes into a tensor."""
    node = first.next
    while node is not last:
        if node.op == "root":
            return True  # the order is not what it was taken for
        if _writes(node):
            return True
        node = node.next
    return False


def _writes(node: Node) -> bool:
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    if node.op == "call_module":
        return True  # nobody knows
    if "out" in node.kwargs or node.kwargs.get("inplace"):
        return True
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.is_mutable
    if target in _IN_PLACE:
        return True
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return name.endswith("_") and not name.endswith("__")


def _share_codes(graph: torch.fx.Graph, found: list[Node]) -> None:
    by_input: dict[Node, list[Node]] = {}
    for node in found:
        if _takes_codes(value(node.args[1])):
            by_input.setdefault(node.args[0], []).append(node)
    order = {node: i for i, node in enumerate(graph.nodes)}
    for x, nodes in by_input.items():
        nodes.sort(key=order.get)
        if len(nodes) < 2 or writes_between(nodes[0], nodes[-1]):
            continue
        with graph.inserting_before(nodes[0]):
            codes = graph.call_function(row_codes, (x,))
        for node in nodes:
            with graph.inserting_before(node):
                args = (codes, *node.args)
                _replace(graph, node, linear_of_codes, args, dict(node.kwargs))


def _takes_codes(weight: QuantizedTensor) -> bool:
    params = weight._params
    by_row = getattr(params, "activations", "") == "row" and weight._qdata.dtype == torch.int8
    if not by_row or getattr(params, "hadamard", 1):
        return False
    return weight._layout._scale(weight._qdata, params)[1] == "row"
