"""Python backends as torch ops: each form of each op that a backend implements is defined under
`torch.ops.pestle_BACKEND` with the schema of the library's own, and with its fakes and gradients.

So a call of any backend is one node for torch.compile, whatever the implementation does inside,
and writes, aliases and dynamic shapes are torch's matter, as for the library's ops.
"""

from __future__ import annotations

from functools import cache

import torch

from . import _autograd, _backends, _fakes, _why
from ._forms import Form, all_forms
from ._library import keep
from ._shapes import Call
from .errors import InvalidArgumentError, NoCapableBackendError, PestleError

_REMEMBERED = 1024  # calls, per form and backend
_kernels: dict[tuple[str, str], _Kernel] = {}  # by backend and form


def namespace(backend: str) -> str:
    return f"pestle_{backend}"


@cache
def overloads(form: Form) -> dict[str, torch._ops.OpOverload]:
    """The overloads that compute a form, by namespace."""
    return {"pestle": form.overload}


@cache
def _namespace_library(space: str) -> torch.library.Library:
    return keep(torch.library.Library(space, "FRAGMENT"))


def register(backend: str) -> None:
    """Defines the ops of a backend, and tells those that are there what computes them now."""
    space = namespace(backend)
    for form in all_forms():
        implementation = _backends.implementation(backend, form.op)
        if implementation is None:
            continue
        if known := _kernels.get((backend, form.name)):
            known.use(implementation)
            continue
        library = _namespace_library(space)
        library.define(form.schema)
        kernel = _Kernel(form, implementation)
        _kernels[backend, form.name] = kernel
        library.impl(form.name, kernel, "CompositeExplicitAutograd")
        qualified = f"{space}::{form.name}"
        _fakes.register_form(form, qualified, library)
        name, _, variant = form.name.partition(".")
        made = getattr(getattr(getattr(torch.ops, space), name), variant or "default")
        _autograd.register_form(form, lambda made=made: made, library, backend)
        overloads(form)[space] = made


_backends._after_load.append(register)


def kernels(backend: str, op: str) -> list[_Kernel]:
    """What was registered for an op of a backend."""
    return [k for (name, _), k in _kernels.items() if name == backend and k.form.op == op]


def _key(value):
    """What the plan of a call may depend on."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    return tuple(map(_key, value)) if isinstance(value, list) else value


class _Refused(NoCapableBackendError):
    def __init__(self, op: str, implementation: str, sentence: str):
        super().__init__(f"{op}: no backend takes this call\n  {implementation}: {sentence}")
        self.sentence = sentence


def refusal(form: Form, implementation, args: tuple, kwargs: dict) -> str:
    """Why an implementation does not take a call of the form's schema; "" if it does."""
    try:
        _Plan(form, implementation, args, kwargs)
    except _Refused as refused:
        return refused.sentence
    return ""


class _Plan:
    """What is the same for all calls that are equal in everything but data."""

    def __init__(self, form: Form, implementation, args: tuple, kwargs: dict):
        self.form, self.implementation = form, implementation
        whole, asked = form.call(args, kwargs)
        calls = self._check(whole, asked)
        call, op = calls[0], whole.op
        self.outputs = [op.by_name[name] for name in form.outputs]
        if form.kind == "functional":
            self._check_variant(call)
        self.views = {arg.name: _views(calls, arg) for arg in op.of_role("input")
                      if arg.name in call.tensors}  # fmt: skip
        self.options = {arg.name: call.attributes[arg.name] for arg in op.of_role("attribute")}
        # By output a shape and a dtype; of a list one for each position.
        self.expected = []
        for arg in self.outputs:
            each = [(one.shape(arg), self._dtype(one, asked, arg)) for one in calls]
            self.expected.append(each if arg.is_list else each[0])
            if f"{arg.name}_dtype" in _chosen_dtypes(op.name):
                dtypes = {dtype for _, dtype in each}
                self.options[f"{arg.name}_dtype"] = dtypes.pop() if len(dtypes) == 1 else None
        for name in _chosen_dtypes(op.name):
            self.options.setdefault(name, None)
        self.lists = op.has_lists
        self.inputs = sorted(op.of_role("input"), key=lambda arg: arg.optional)
        self._check_outputs(calls)
        self._ask(whole)

    def _check(self, whole: Call, asked: dict) -> list[Call]:
        try:
            calls = whole.positions()
            for call in calls:
                call.bind()
                call.check()
        except InvalidArgumentError:
            _why.check_contract(whole, asked)  # the same finding, in the library's words
            raise
        return calls

    def _check_variant(self, call: Call) -> None:
        for arg in call.op.of_role("output"):
            if call.wants(arg) != (arg in self.outputs):
                raise call.error(
                    arg, f"is there when {arg.present_if}: call another overload of the op"
                )

    def _dtype(self, call: Call, asked: dict, arg) -> torch.dtype:
        wanted = asked.get(arg.name)
        if self.form.kind == "out":
            wanted = call.tensors[arg.name].dtype
        elif self.form.kind == "in_place" and wanted is None:
            alias = self.form.aliases[self.outputs.index(arg)]
            allowed = call.allowed_dtypes(arg)
            wanted = call.dtype_of(call.op.by_name[alias])
            wanted = wanted if wanted in allowed else allowed[0]
        return call.dtype(arg, wanted)

    def _check_outputs(self, calls: list[Call]) -> None:
        if self.form.kind != "out":
            return
        for arg, expected in zip(self.outputs, self.expected, strict=True):
            each = expected if arg.is_list else [expected]
            for call, (shape, dtype) in zip(calls, each, strict=True):
                given = call.tensors[arg.name]
                if tuple(given.shape) != shape or given.dtype != dtype:
                    raise call.error(arg, f"does not have shape {list(shape)} and dtype {dtype}")

    def _ask(self, call: Call) -> None:
        refuses = self.implementation.refuses
        tensors = self.tensors(call.tensors)
        refusal = refuses(*tensors, **self.options) if refuses else None
        if refusal:
            raise _Refused(self.form.op, self.implementation.id, refusal)

    def tensors(self, given: dict) -> list:
        """The inputs in the order of the Python function, of the contract's dtypes and ranks."""
        return [
            self.views[arg.name](given[arg.name]) if given.get(arg.name) is not None else None
            for arg in self.inputs
        ]


def _flat(values) -> list[torch.Tensor]:
    """The tensors that are there, lists opened."""
    return [t for value in values for t in (value if isinstance(value, list | tuple) else (value,))
            if t is not None]  # fmt: skip


@cache
def _chosen_dtypes(op: str) -> tuple[str, ...]:
    """Keywords of the op's Python function that name an output's dtype."""
    return tuple({
        f"{name}_dtype": None
        for form in all_forms() if form.op == op
        for kind, name, _ in form.arguments if kind == "dtype"
    })  # fmt: skip


def _views(calls: list[Call], arg):
    """How an input is seen as what the contract calls it, each tensor of a list by itself."""
    views = [_view(call, arg) for call in calls]
    if not arg.is_list:
        return views[0]
    return lambda tensors: [view(t) for view, t in zip(views, tensors, strict=True)]


def _view(call: Call, arg):
    """How an input is seen as what the contract calls it."""
    tensor, dtype = call.tensors[arg.name], call.dtype_of(arg)
    lift = tensor.ndim == 0 and arg.lifts_scalar
    if dtype == tensor.dtype:
        return (lambda t: t.reshape(1)) if lift else (lambda t: t)
    return (lambda t: t.view(dtype).reshape(1)) if lift else (lambda t: t.view(dtype))


class _Kernel:
    """What torch calls for one form of one op of a Python backend."""

    def __init__(self, form: Form, implementation):
        self.form, self.implementation = form, implementation
        self.keywords = form.keywords()
        self.names = {keyword: name for _, name, keyword in form.arguments}
        self.plans: dict[tuple, _Plan] = {}
        self.__name__ = implementation.id

    def use(self, implementation) -> None:
        """From now on this one; plans hold what the other one said."""
        if implementation is not self.implementation:
            self.implementation, self.plans = implementation, {}

    def __call__(self, *args, **kwargs):
        key = (*map(_key, args), *((name, _key(value)) for name, value in kwargs.items()))
        plan = self.plans.get(key)
        if plan is None:
            plan = _Plan(self.form, self.implementation, args, kwargs)
            if len(self.plans) >= _REMEMBERED:
                self.plans.clear()
            self.plans[key] = plan
        given = dict(zip(self.keywords, args, strict=False)) | kwargs
        given = {self.names[keyword]: value for keyword, value in given.items()}
        inputs = plan.tensors(given)
        if self.form.kind == "functional":
            return self._fresh(plan, inputs)
        return self._into(plan, inputs, self._targets(plan, given))

    def _run(self, plan: _Plan, inputs: list, **out) -> tuple:
        result = self.implementation.function(*inputs, **plan.options, **out)
        return result if isinstance(result, tuple) else (result,)

    def _fresh(self, plan: _Plan, inputs: list):
        given = _flat(inputs)
        results = []
        for made, expected in zip(self._run(plan, inputs), plan.expected, strict=True):
            if isinstance(expected, list):
                pairs = zip(made, expected, strict=True)
                results.append([self._checked(t, *one, given) for t, one in pairs])
            else:
                results.append(self._checked(made, *expected, given))
        return tuple(results) if len(results) > 1 else results[0]

    def _checked(self, tensor: torch.Tensor, shape: tuple, dtype: torch.dtype, inputs: list):
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            raise PestleError(
                f"{self.implementation.id} gave {tensor.dtype} of shape {list(tensor.shape)} "
                f"where the contract says {dtype} of shape {list(shape)}"
            )
        is_input = any(torch._C._is_alias_of(t, tensor) for t in inputs)
        return tensor.clone() if is_input else tensor.contiguous()

    def _targets(self, plan: _Plan, given: dict) -> list[torch.Tensor]:
        names = self.form.outputs if self.form.kind == "out" else self.form.aliases
        targets = []
        for name, expected in zip(names, plan.expected, strict=True):
            if isinstance(expected, list):
                pairs = zip(given[name], expected, strict=True)
                targets.append([t.view(dtype).view(shape) for t, (shape, dtype) in pairs])
            else:
                shape, dtype = expected
                targets.append(given[name].view(dtype).view(shape))
        return targets

    def _into(self, plan: _Plan, inputs: list, targets: list[torch.Tensor]) -> None:
        if self.implementation.takes_out and self._may_write_directly(plan, inputs, targets):
            self._run(plan, inputs, out=targets[0] if len(targets) == 1 else tuple(targets))
            return
        for target, tensor in zip(_flat(targets), _flat(self._run(plan, inputs)), strict=True):
            target.copy_(tensor)

    def _may_write_directly(self, plan: _Plan, inputs: list, targets: list) -> bool:
        """No output shares memory with an input, but for the one whose place it may take."""
        if plan.lists:
            every = _flat(inputs)
            return not any(torch._C._is_alias_of(t, o) for t in every for o in _flat(targets))
        for arg, target in zip(plan.outputs, targets, strict=True):
            for other, tensor in zip(plan.inputs, inputs, strict=True):
                if tensor is None or not torch._C._is_alias_of(tensor, target):
                    continue
                same = tensor.data_ptr() == target.data_ptr() and (
                    tensor.stride() == target.stride() and tensor.dtype == target.dtype
                )
                if other.name != arg.in_place_of or not same:
                    return False
        return True
