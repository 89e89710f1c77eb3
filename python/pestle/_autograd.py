"""Gradients, from the backward that a contract names: calls of ops, mostly one (docs/contract.md).
What they need is kept, and they are made through the same dispatch as any other call, so forward
and backward need not run in the same backend. Ops without one raise their contract's reason; forms
that write into given memory refuse tensors that require a gradient, as torch's own out= do."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch._library.autograd import Info, make_autograd_impl

from ._backward import Backward, Step, Tensor, backward_of
from ._contract import Op
from ._forms import Form, all_forms
from ._shapes import Call
from .errors import NoGradientError

_BELOW_AUTOGRAD = torch._C._after_autograd_keyset
_BELOW_INPLACE = torch._C._after_ADInplaceOrView_keyset


def _no_gradient(form: Form):
    def backward(context, *gradients):
        raise NoGradientError(f"{form.op} has no gradient: {form.contract.backward['why_not']}")

    return backward


def _keep(form: Form, plan: Backward):
    """setup_context of a form: what the calls of the backward will need."""
    inputs_of = [name for kind, name, _ in form.arguments if kind in ("tensor", "optional_tensor")]

    def keep(ctx, inputs, keyword_only_inputs, output):
        outputs = output if isinstance(output, tuple) else (output,)
        tensors = dict(zip(inputs_of, inputs, strict=True))
        values = tensors | dict(zip(form.outputs, outputs, strict=True))
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(
            values[name] for name in form.outputs if name not in plan.outputs
        ))  # fmt: skip
        call, _ = form.call(inputs, keyword_only_inputs)
        call.bind()
        ctx.refused = bool(plan.only_if) and not call.evaluate(plan.only_if)
        ctx.attributes = {
            step.text: {n: _attribute(call, step.op, n, t) for n, t in step.attributes.items()}
            for step in plan.steps
        }
        ctx.kept = tuple(name for name in plan.kept if values.get(name) is not None)
        ctx.save_for_backward(*(values[name] for name in ctx.kept))
        ctx.outputs = [(tuple(t.shape), t.dtype, t.device) for t in outputs]
        ctx.inputs = {
            name: (tuple(t.shape), t.dtype) for name, t in tensors.items() if t is not None
        }

    return keep


def _attribute(call: Call, op: Op, name: str, text: str):
    """An attribute of a backward call: a label of its own, an attribute of the forward call, or an
    expression over those."""
    if text in op.by_name[name].choices:
        return text
    return call.attributes[text] if text in call.op.by_name else call.evaluate(text)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as a matrix: all dimensions but the last as one."""
    return tensor.unsqueeze(0) if tensor.ndim == 1 else tensor.flatten(0, -2)


class _Calls:
    """The calls of one backward, each made when its output is first asked for."""

    def __init__(self, form: Form, plan: Backward, backend: str, ctx, gradients: tuple):
        self.form, self.plan, self.backend, self.ctx = form, plan, backend, ctx
        self.made: dict[str, torch.Tensor] = {}
        self.wanted: list[str] = []  # inputs whose gradient is asked for
        self.given = dict(zip(form.outputs, gradients, strict=True))
        self.kept = dict(zip(ctx.kept, ctx.saved_tensors, strict=True))

    def value(self, tensor: Tensor, zeros: bool = False) -> torch.Tensor | None:
        """A tensor as the contract says it. `zeros`: for a gradient that nobody asked for."""
        if tensor.rows_of:
            found = self.value(tensor.rows_of, zeros)
            return None if found is None else _rows(found)
        if output := tensor.gradient_of:
            found = self.given.get(output)
            return self._zeros(output) if found is None and zeros else found
        if tensor.step is None:
            return self.kept.get(tensor.argument)
        return self.output(tensor.step)

    def output(self, step: Step) -> torch.Tensor:
        """The one output of a call that is made for another."""
        if step.text not in self.made:
            (output,) = (arg.name for arg in step.op.of_role("output"))
            dtypes = {output: self.value(step.like).dtype} if step.like else {}
            self.made[step.text] = self.call(step, dtypes)[output]
        return self.made[step.text]

    def call(self, step: Step, dtypes: dict[str, torch.dtype]) -> dict[str, torch.Tensor]:
        """Calls an op through the usual dispatch; its outputs by name."""
        tensors = {name: self.value(tensor) for name, tensor in step.tensors.items()}
        attributes = self.ctx.attributes[step.text] | {
            name: of in self.wanted for name, of in step.wanted.items()
        }
        defaults = {a.name: a.default for a in step.op.of_role("attribute")}
        call = Call(step.op, tensors, defaults | attributes)
        for name, tensor in step.tensors.items():
            of_gradient = any(part.gradient_of for part in tensor.parts())
            if of_gradient and name not in call.tensors and call.wants(step.op.by_name[name]):
                call.tensors[name] = self.value(tensor, zeros=True)
        chosen = _output_dtypes(step.op)
        options = {f"{name}_dtype": dtype for name, dtype in dtypes.items() if name in chosen}
        inputs = sorted(step.op.of_role("input"), key=lambda arg: arg.optional)
        inputs = [call.tensors.get(arg.name) for arg in inputs]
        from . import _dispatch, _functions  # which need what is registered here

        candidates = _dispatch.of_backward(step.op.name, self.backend, inputs)
        function = _functions.function(step.op.name)
        made = function(*inputs, **attributes, **options, backend=candidates)
        made = made if isinstance(made, tuple) else (made,)
        names = [arg.name for arg in step.op.of_role("output") if call.wants(arg)]
        return dict(zip(names, made, strict=True))

    def _zeros(self, output: str) -> torch.Tensor:
        if output not in self.form.outputs:
            raise NoGradientError(
                f"{self.form.op} has no gradient in calls that do not return {output}"
            )
        shape, dtype, device = self.ctx.outputs[self.form.outputs.index(output)]
        return torch.zeros(shape, dtype=dtype, device=device)

    def results(self, wanted: list[str]) -> dict[str, torch.Tensor | None]:
        """Gradients of these inputs."""
        self.wanted = wanted
        known, sources = self.ctx.inputs, {name: self.plan.gives[name] for name in wanted}
        of_step = {}
        if any(isinstance(source, str) for source in sources.values()):
            gives = [(name, s) for name, s in self.plan.gives.items() if isinstance(s, str)]
            dtypes = {output: known[name][1] for name, output in gives if name in known}
            of_step = self.call(self.plan.step, dtypes)
        return {
            name: of_step.get(source) if isinstance(source, str) else self.value(source)
            for name, source in sources.items()
        }


def _gradient(form: Form, plan: Backward, backend: str):
    """backward of a form: makes the calls and sorts their outputs by input."""
    inputs_of = [name for kind, name, _ in form.arguments if kind in ("tensor", "optional_tensor")]

    def backward(ctx, *gradients):
        wanted = [name for name, asks in zip(inputs_of, ctx.needs_input_grad, strict=False) if asks]
        if ctx.refused:
            raise NoGradientError(
                f"{form.op} has no gradient in this call: {plan.why_not} (needs {plan.only_if})"
            )
        for name in wanted:
            if name not in plan.gives:
                raise NoGradientError(f"{form.op} has no gradient of {name}: detach it")
        calls = _Calls(form, plan, backend, ctx, gradients)
        if all(calls.given.get(output) is None for output in plan.outputs):
            return (None,) * len(ctx.needs_input_grad)
        results = calls.results(wanted)
        return tuple(
            _as_input(results[name], *ctx.inputs[name]) if name in wanted else None
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


def _guard_written_memory(form: Form, overload: Callable):
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
            return overload().redispatch(keyset & _BELOW_INPLACE, *args, **kwargs)

    return guard


def _differentiated(form: Form, overload: Callable, backend: str):
    """Kernel of the functional form above the ones that compute. What torch makes for gradients is
    made when the first is asked for: for some 200 forms it takes longer than all else of import."""

    @cache
    def with_gradient():
        plan = backward_of(form.contract)
        if plan is None:
            info = Info(_no_gradient(form), None)
        else:
            info = Info(_gradient(form, plan, backend), _keep(form, plan))
        return make_autograd_impl(overload(), info)

    def kernel(keyset, *args, **kwargs):
        if torch.is_grad_enabled() and _any_requires_grad(*args):
            return with_gradient()(keyset, *args, **kwargs)
        with torch._C._AutoDispatchBelowAutograd():
            return overload().redispatch(keyset & _BELOW_AUTOGRAD, *args, **kwargs)

    return kernel


def register_form(
    form: Form, overload: Callable, library: torch.library.Library, backend: str = ""
) -> None:
    """Gradients of one overload that computes a form: the library's, or a Python backend's. It is
    looked up when it is first called: torch makes an object of each."""
    overload = cache(overload)
    if form.kind == "functional":
        kernel = _differentiated(form, overload, backend)
    else:
        kernel = _guard_written_memory(form, overload)
    library.impl(form.name, kernel, "Autograd", with_keyset=True)


def register(library: torch.library.Library) -> None:
    for form in all_forms():
        register_form(form, lambda form=form: form.overload, library)
