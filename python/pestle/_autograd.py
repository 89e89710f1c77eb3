"""Gradients, from the backward that a contract names: one call of an op (docs/contract.md). It
keeps what the call needs, and makes it through the same dispatch as any other call, so forward and
backward need not run in the same backend. Ops without one raise their contract's reason; forms that
write into given memory refuse tensors that require a gradient, as torch's own out= functions do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch._library.autograd import Info, make_autograd_impl

from ._contract import Op, split_dims
from ._contract import op as contract_of
from ._forms import Form, all_forms
from ._shapes import Call
from .errors import NoGradientError

_BELOW_AUTOGRAD = torch._C._after_autograd_keyset
_BELOW_INPLACE = torch._C._after_ADInplaceOrView_keyset


@dataclass(frozen=True)
class Backward:
    """The strings of a contract's backward, read."""

    op: Op
    gradients: dict[str, str]  # tensor of the backward op -> output of the forward call
    kept: dict[str, str]  # tensor of the backward op -> argument of the forward call
    attributes: dict[str, str]  # attribute of the backward op -> expression over the forward's
    gives: dict[str, str]  # input of the forward call -> output of the backward op


@cache
def backward_of(forward: Op) -> Backward | None:
    """How the gradients of an op are computed; None if it has none."""
    if not forward.backward["op"]:
        return None
    back = contract_of(forward.backward["op"])
    shared = {arg.name for arg in forward.of_role("attribute")}
    attributes = {a.name: a.name for a in back.of_role("attribute") if a.name in shared}
    gradients, kept = {}, {}
    for part in split_dims(forward.backward["call"]):
        name, _, value = (text.strip() for text in part.partition("="))
        if back.by_name[name].role == "attribute":
            attributes[name] = value
        elif value.startswith("grad("):
            gradients[name] = value[5:-1].strip()
        else:
            kept[name] = value
    pairs = (part.partition("=") for part in split_dims(forward.backward["gives"]))
    gives = {name.strip(): output.strip() for name, _, output in pairs}
    return Backward(back, gradients, kept, attributes, gives)


def _no_gradient(form: Form):
    def backward(context, *gradients):
        raise NoGradientError(f"{form.op} has no gradient: {form.contract.backward['why_not']}")

    return backward


def _keep(form: Form, plan: Backward):
    """setup_context of a form: what the backward op will be called with."""
    op = form.contract
    inputs_of = [name for kind, name, _ in form.arguments if kind in ("tensor", "optional_tensor")]

    def keep(ctx, inputs, keyword_only_inputs, output):
        outputs = output if isinstance(output, tuple) else (output,)
        tensors = dict(zip(inputs_of, inputs, strict=True))
        values = tensors | dict(zip(form.outputs, outputs, strict=True))
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(
            values[name] for name in form.outputs if name not in plan.gradients.values()
        ))  # fmt: skip
        call, _ = form.call(inputs, keyword_only_inputs)
        call.bind()
        ctx.attributes = {
            name: call.attributes[text] if text in op.by_name else call.evaluate(text)
            for name, text in plan.attributes.items()
        }
        names = [name for name in plan.kept.values() if values.get(name) is not None]
        ctx.kept = tuple(dict.fromkeys(names))
        ctx.save_for_backward(*(values[name] for name in ctx.kept))
        ctx.outputs = [(tuple(t.shape), t.dtype, t.device) for t in outputs]
        ctx.inputs = {
            name: (tuple(t.shape), t.dtype) for name, t in tensors.items() if t is not None
        }

    return keep


def _zeros(plan: Backward, ctx, form: Form, call: Call) -> None:
    """Adds gradients that nobody asked for but the backward op wants."""
    for name, output in plan.gradients.items():
        if name in call.tensors or output not in form.outputs:
            continue
        if call.wants(plan.op.by_name[name]):
            shape, dtype, device = ctx.outputs[form.outputs.index(output)]
            call.tensors[name] = torch.zeros(shape, dtype=dtype, device=device)


def _gradient(form: Form, plan: Backward, backend: str):
    """backward of a form: calls the backward op and sorts its outputs by input."""
    inputs_of = [name for kind, name, _ in form.arguments if kind in ("tensor", "optional_tensor")]
    chosen_dtypes = _output_dtypes(plan.op)

    def backward(ctx, *gradients):
        wanted = [name for name, asks in zip(inputs_of, ctx.needs_input_grad, strict=False) if asks]
        for name in wanted:
            if name not in plan.gives:
                raise NoGradientError(f"{form.op} has no gradient of {name}: detach it")
        given = dict(zip(form.outputs, gradients, strict=True))
        kept = dict(zip(ctx.kept, ctx.saved_tensors, strict=True))
        tensors = {name: given.get(output) for name, output in plan.gradients.items()}
        if all(tensor is None for tensor in tensors.values()):
            return (None,) * len(ctx.needs_input_grad)
        tensors |= {name: kept.get(argument) for name, argument in plan.kept.items()}
        defaults = {a.name: a.default for a in plan.op.of_role("attribute")}
        call = Call(plan.op, tensors, defaults | ctx.attributes)
        _zeros(plan, ctx, form, call)
        for name, output in plan.gradients.items():
            if name not in call.tensors and call.wants(plan.op.by_name[name]):
                raise NoGradientError(
                    f"{form.op} has no gradient in calls that do not return {output}"
                )
        options = dict(ctx.attributes)
        for name, output in plan.gives.items():
            if output in chosen_dtypes and name in ctx.inputs:
                options[f"{output}_dtype"] = ctx.inputs[name][1]
        inputs = sorted(plan.op.of_role("input"), key=lambda arg: arg.optional)
        inputs = [call.tensors.get(arg.name) for arg in inputs]
        from . import _dispatch, _functions  # which need what is registered here

        candidates = _dispatch.of_backward(plan.op.name, backend, inputs)
        made = _functions.function(plan.op.name)(*inputs, **options, backend=candidates)
        made = made if isinstance(made, tuple) else (made,)
        names = [arg.name for arg in plan.op.of_role("output") if call.wants(arg)]
        results = dict(zip(names, made, strict=True))
        return tuple(
            _as_input(results.get(plan.gives[name]), *ctx.inputs[name]) if name in wanted else None
            for name in inputs_of[: len(ctx.needs_input_grad)]
        )

    return backward


def _as_input(gradient, shape: tuple, dtype: torch.dtype):
    return None if gradient is None else gradient.to(dtype).reshape(shape)


@cache
def _output_dtypes(op: Op) -> frozenset[str]:
    """Outputs whose dtype the caller may choose."""
    return frozenset(
        name
        for form in all_forms()
        if form.op == op.name and form.kind == "functional"
        for kind, name, _ in form.arguments
        if kind == "dtype"
    )


def _flat(values: tuple) -> list:
    """Lists opened."""
    return [v for value in values for v in (value if isinstance(value, list) else (value,))]


def _requires_grad(*values) -> bool:
    return any(isinstance(t, torch.Tensor) and t.requires_grad for t in _flat(values))


_any_requires_grad = getattr(torch._C, "_any_requires_grad", _requires_grad)  # torch 2.5 lacks it


def _guard_written_memory(form: Form, overload: torch._ops.OpOverload):
    written = [i for i, name in enumerate(form.keywords()) if name in form.written]
    names = form.keywords()

    def guard(keyset, *args, **kwargs):
        tensors = _flat((*args, *kwargs.values()))
        if torch.is_grad_enabled() and any(
            isinstance(t, torch.Tensor) and t.requires_grad for t in tensors
        ):
            raise NoGradientError(
                f"{form.name} writes into given memory, which autograd can't follow: call "
                f"{form.op}, or wrap the call in torch.no_grad()"
            )
        for i in written:
            given = args[i] if i < len(args) else kwargs[names[i]]
            for tensor in _flat((given,)):
                torch.autograd.graph.increment_version(tensor)
        with torch._C._AutoDispatchBelowADInplaceOrView():
            return overload.redispatch(keyset & _BELOW_INPLACE, *args, **kwargs)

    return guard


def _differentiated(form: Form, overload: torch._ops.OpOverload, backend: str):
    """Kernel of the functional form above the ones that compute. What torch makes for gradients is
    made when the first is asked for: for some 200 forms it takes longer than all else of import."""

    @cache
    def with_gradient():
        plan = backward_of(form.contract)
        if plan is None:
            info = Info(_no_gradient(form), None)
        else:
            info = Info(_gradient(form, plan, backend), _keep(form, plan))
        return make_autograd_impl(overload, info)

    def kernel(keyset, *args, **kwargs):
        if torch.is_grad_enabled() and _any_requires_grad(*args):
            return with_gradient()(keyset, *args, **kwargs)
        with torch._C._AutoDispatchBelowAutograd():
            return overload.redispatch(keyset & _BELOW_AUTOGRAD, *args, **kwargs)

    return kernel


def register_form(
    form: Form, overload: torch._ops.OpOverload, library: torch.library.Library, backend: str = ""
) -> None:
    """Gradients of one overload that computes a form: the library's, or a Python backend's."""
    if form.kind == "functional":
        kernel = _differentiated(form, overload, backend)
    else:
        kernel = _guard_written_memory(form, overload)
    library.impl(form.name, kernel, "Autograd", with_keyset=True)


def register(library: torch.library.Library) -> None:
    for form in all_forms():
        register_form(form, form.overload, library)
