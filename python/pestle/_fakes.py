"""What torch.compile, export and meta tensors see: outputs of the contract's symbolic shapes."""

from __future__ import annotations

import torch

from ._forms import Form, all_forms


def _like(call, arg, dtype: torch.dtype) -> torch.Tensor:
    first = next(iter(call.tensors.values()))
    return torch.empty(call.shape(arg), dtype=dtype, device=first.device)


def _outputs(calls: list, arg, asked: torch.dtype | None):
    made = [_like(call, arg, call.dtype(arg, asked)) for call in calls]
    return made if arg.is_list else made[0]


def _fake_of(form: Form):
    def fake(*args, **kwargs):
        whole, asked = form.call(args, kwargs)
        calls = whole.positions()
        for call in calls:
            call.bind()
            call.check()
        if form.kind != "functional":
            return None
        outputs = [call.op.by_name[name] for name in form.outputs]
        for arg in call.op.of_role("output"):
            if call.wants(arg) != (arg in outputs):
                raise call.error(
                    arg, f"is there when {arg.present_if}: call another overload of the op"
                )
        made = tuple(_outputs(calls, arg, asked.get(arg.name)) for arg in outputs)
        return made if len(made) > 1 else made[0]

    return fake


def register_form(form: Form, qualified_name: str, library: torch.library.Library) -> None:
    fake = _fake_of(form)
    try:
        # What register_fake calls in the end. Before, it looks up its caller's file, line and
        # module, which takes as long as all else of it.
        entry = torch._library.simple_registry.singleton.find(qualified_name)
        entry.fake_impl.register(fake, __name__, lib=library)
    except (AttributeError, TypeError):  # another torch than 2.11
        torch.library.register_fake(qualified_name, fake, lib=library)


def register(library: torch.library.Library) -> None:
    for form in all_forms():
        register_form(form, form.qualified_name, library)
