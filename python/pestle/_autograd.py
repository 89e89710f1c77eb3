"""Gradients, from the backward that a contract names: calls of ops, mostly one (docs/contract.md).
What they need is kept, and they are made through the same dispatch as any other call, so forward
and backward need not run in the same backend. Ops without one raise their contract's reason; forms
that write into given memory refuse tensors that require a gradient, as torch's own out= do."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import torch

from ._backward import Backward, Step, Tensor, backward_of
from ._contract import Op
from ._forms import Form, all_forms
from ._shapes import Call
from .errors import NoGradientError

_BELOW_AUTOGRAD = torch._C._after_autograd_keyset
_BELOW_INPLACE = torch._C._after_ADInplaceOrView_keyset

_WORD = re.compile(r"[A-Za-z_]\w*")


def _inputs_of(form: Form) -> list[str]:
    return [name for kind, name, _ in form.arguments if kind in ("tensor", "optional_tensor")]


class _Recorder:
    """What a form keeps for the calls of its backward. All that does not depend on the call is
    found out once; shapes are looked at where an expression asks for them, and nowhere else."""

    def __init__(self, form: Form, plan: Backward):
        self.form, self.plan = form, plan
        self.inputs = _inputs_of(form)
        self.aside = [name for name in form.outputs if name not in plan.outputs]
        forward = form.contract
        keywords = {name: keyword for _, name, keyword in form.arguments}
        defaults = {arg.name: arg.default for arg in forward.of_role("attribute")}
        defaults |= form.fixed_defaults()
        # Shape and dtype of what is kept can be asked for in backward; the others are noted.
        self.unkept = [name for name in self.inputs if name not in plan.kept]
        # With one output its gradient is there, or nothing is asked for: no zeros in its place.
        self.one_output = len(form.outputs) == 1
        # step -> [(attribute, its keyword in this form, its value)] or None: it must be evaluated
        self.simple: dict[str, list | None] = {}
        for step in plan.steps:
            values: list | None = []
            for name, text in step.attributes.items():
                if text in step.op.by_name[name].choices:
                    values.append((name, None, text))
                elif text in forward.by_name:
                    values.append((name, keywords.get(text), defaults[text]))
                elif text.removeprefix("-").isdecimal():
                    values.append((name, None, int(text)))
                else:
                    values = None
                    break
            self.simple[step.text] = values
        self.defaults, self.names = defaults, {k: n for n, k in keywords.items()}
        # The condition as a function of what is given, where it asks for nothing else.
        by_options = plan.only_if and _asks_options_alone(forward, plan.only_if)
        self.condition = forward.expression(plan.only_if) if by_options else None
        of_shapes = bool(plan.only_if) and not by_options
        self.looks_at_shapes = of_shapes or None in self.simple.values()
        self.usual = None  # attributes of a call without options
        if not self.looks_at_shapes:
            self.usual = {step.text: self._attributes(step, {}, None) for step in plan.steps}

    def keep(self, ctx, inputs: tuple, keywords: dict, output) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        values = {n: t for n, t in zip(self.inputs, inputs, strict=False) if t is not None}
        ctx.refused = self.condition is not None and not self._holds(values, keywords)
        ctx.noted = {
            name: (values[name].shape, values[name].dtype) for name in self.unkept if name in values
        }
        values.update(zip(self.form.outputs, outputs, strict=True))
        ctx.set_materialize_grads(False)
        if self.aside:
            ctx.mark_non_differentiable(*[values[name] for name in self.aside])
        call = None
        if self.looks_at_shapes:
            call, _ = self.form.call(inputs, keywords)
            call.bind()
            if self.condition is None:
                ctx.refused = bool(self.plan.only_if) and not call.evaluate(self.plan.only_if)
        if keywords or self.usual is None:
            ctx.attributes = {
                step.text: self._attributes(step, keywords, call) for step in self.plan.steps
            }
        else:
            ctx.attributes = self.usual
        ctx.kept = kept = [name for name in self.plan.kept if name in values]
        ctx.save_for_backward(*[values[name] for name in kept])
        if not self.one_output:
            ctx.outputs = [(t.shape, t.dtype, t.device) for t in outputs]

    def _holds(self, present: dict, keywords: dict) -> bool:
        given = {self.names[keyword]: value for keyword, value in keywords.items()}
        return self.condition(self.defaults | given if given else self.defaults, present)

    def _attributes(self, step: Step, keywords: dict, call: Call | None) -> dict:
        simple = self.simple[step.text]
        if simple is None:
            return {n: _attribute(call, step.op, n, t) for n, t in step.attributes.items()}
        return {name: keywords.get(keyword, value) for name, keyword, value in simple}


def _asks_options_alone(op: Op, text: str) -> bool:
    """Whether an expression needs no more than attributes and which inputs are there."""
    labels = {label for arg in op.args for label in arg.choices}
    names = set(_WORD.findall(text)) - {"has"}
    return all(name in op.by_name or name in labels for name in names)


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
        self.known = ctx.noted | {name: (t.shape, t.dtype) for name, t in self.kept.items()}

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
        known, sources = self.known, {name: self.plan.gives[name] for name in wanted}
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
    inputs_of = _inputs_of(form)

    def backward(ctx, asks: tuple, gradients: tuple) -> tuple:
        wanted = [name for name, wants in zip(inputs_of, asks, strict=False) if wants]
        if ctx.refused:
            raise NoGradientError(
                f"{form.op} has no gradient in this call: {plan.why_not} (needs {plan.only_if})"
            )
        for name in wanted:
            if name not in plan.gives:
                raise NoGradientError(f"{form.op} has no gradient of {name}: detach it")
        calls = _Calls(form, plan, backend, ctx, gradients)
        if all(calls.given.get(output) is None for output in plan.outputs):
            return (None,) * len(asks)
        results = calls.results(wanted)
        return tuple(
            _as_input(results[name], *calls.known[name]) if name in wanted else None
            for name in inputs_of[: len(asks)]
        )

    return backward


def _as_input(gradient, shape: tuple, dtype: torch.dtype):
    if gradient is None:
        return None
    gradient = gradient if gradient.dtype == dtype else gradient.to(dtype)
    return gradient if gradient.shape == shape else gradient.reshape(shape)


def _no_list_gradient(form: Form, overload: Callable, backend: str) -> Callable:
    """An autograd function sees no tensors in lists: torch's own way for them opens these."""
    from torch._library.autograd import Info, make_autograd_impl

    def backward(context, *gradients):
        raise NoGradientError(f"{form.op} has no gradient: {form.contract.backward['why_not']}")

    apply = make_autograd_impl(overload(), Info(backward, None))
    return lambda keyset, keywords, *inputs: apply(keyset, *inputs, **keywords)


_BEFORE = 2  # arguments of a recorded call before the op's own: keys and keywords


def _recorded(form: Form, overload: Callable, backend: str) -> Callable:
    """The autograd function of a form: `apply(keyset, keywords, *inputs)`. Without a keyset the
    call has not been through the dispatcher yet."""
    plan = backward_of(form.contract)
    recorder = _Recorder(form, plan) if plan is not None else None
    gradient = _gradient(form, plan, backend) if plan is not None else None
    below = torch._C._AutoDispatchBelowAutograd

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx, keyset, keywords, *inputs):
            with below():
                if keyset is None:
                    output = overload()._op(*inputs, **keywords)
                else:
                    output = overload().redispatch(keyset & _BELOW_AUTOGRAD, *inputs, **keywords)
            if recorder is not None:
                recorder.keep(ctx, inputs, keywords, output)
            return output

        @staticmethod
        def backward(ctx, *gradients):
            if gradient is None:
                why_not = form.contract.backward["why_not"]
                raise NoGradientError(f"{form.op} has no gradient: {why_not}")
            asks = ctx.needs_input_grad[_BEFORE:]
            return (*(None,) * _BEFORE, *gradient(ctx, asks, gradients))

    Recorded.__name__ = Recorded.__qualname__ = f"pestle_{form.name.replace('.', '_')}"
    return Recorded.apply


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


any_requires_grad = getattr(torch._C, "_any_requires_grad", _requires_grad)  # torch 2.5 lacks it


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

    has_lists = any(
        kind in ("tensor_list", "optional_tensor_list") for kind, _, _ in form.arguments
    )
    recorded = cache(
        lambda: (_no_list_gradient if has_lists else _recorded)(form, overload, backend)
    )

    def kernel(keyset, *args, **kwargs):
        if torch.is_grad_enabled() and any_requires_grad(*args):
            return recorded()(keyset, kwargs, *args)
        with torch._C._AutoDispatchBelowAutograd():
            return overload().redispatch(keyset & _BELOW_AUTOGRAD, *args, **kwargs)

    return kernel


def recording(form: Form) -> Callable:
    """The library's op, recorded: what its kernel of Autograd does, without the way there through
    the dispatcher and back to Python. For callers that torch.func, torch.jit and overrides of
    functions do not see."""
    overload = cache(lambda: form.overload)

    recorded = cache(lambda: _recorded(form, overload, ""))

    def call(*inputs, **keywords):
        return recorded()(None, keywords, *inputs)

    return call


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
