"""What happens when a gradient is asked for. No op has a backward op that torch can call yet, so
each backward says why, in the words of its contract; forms that write into given memory refuse
tensors that require a gradient, as torch's own out= functions do."""

from __future__ import annotations

import torch

from ._forms import Form, all_forms
from .errors import NoGradientError

_BELOW = torch._C._after_autograd_keyset
_BELOW_INPLACE = torch._C._after_ADInplaceOrView_keyset


def _reason(form: Form) -> str:
    backward = form.contract.backward
    if backward["op"]:
        return f"its backward, {backward['op']}, is not bound to autograd yet"
    return backward["why_not"]


def _no_gradient(form: Form):
    def backward(context, *gradients):
        raise NoGradientError(f"{form.op} has no gradient: {_reason(form)}")

    return backward


def _guard_written_memory(form: Form, overload: torch._ops.OpOverload):
    written = [i for i, name in enumerate(form.keywords()) if name in form.written]
    names = form.keywords()

    def guard(keyset, *args, **kwargs):
        tensors = [*args, *kwargs.values()]
        if torch.is_grad_enabled() and any(
            isinstance(t, torch.Tensor) and t.requires_grad for t in tensors
        ):
            raise NoGradientError(
                f"{form.name} writes into given memory, which autograd can't follow: call "
                f"{form.op}, or wrap the call in torch.no_grad()"
            )
        for i in written:
            torch.autograd.graph.increment_version(args[i] if i < len(args) else kwargs[names[i]])
        with torch._C._AutoDispatchBelowADInplaceOrView():
            return overload.redispatch(keyset & _BELOW_INPLACE, *args, **kwargs)

    return guard


def register_form(
    form: Form, overload: torch._ops.OpOverload, library: torch.library.Library, backend: str = ""
) -> None:
    """Gradients of one overload that computes a form: the library's, or a Python backend's."""
    if form.kind == "functional":
        torch.library.register_autograd(overload, _no_gradient(form), lib=library)
    else:
        guard = _guard_written_memory(form, overload)
        library.impl(form.name, guard, "Autograd", with_keyset=True)


def register(library: torch.library.Library) -> None:
    for form in all_forms():
        register_form(form, form.overload, library)
