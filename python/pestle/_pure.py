"""`torch.ops.pestle` without the compiled library: the same schemas, served by whichever backend
written in Python takes the call."""

from __future__ import annotations

import torch

from . import _dispatch, _python_ops
from ._forms import TENSORS, Form, all_forms
from .errors import UnsupportedError


def _kernel(form: Form):
    overloads = _python_ops.overloads(form)
    kinds = [kind for kind, _, _ in form.arguments]

    def call(*args, **kwargs):
        inputs = tuple(value for value, kind in zip(args, kinds, strict=False) if kind in TENSORS)
        space, tried = _dispatch.choose(form.op, None, *inputs), ()
        while True:
            try:
                return overloads[space](*args, **kwargs)
            except UnsupportedError as error:
                tried += (space,)
                space = _dispatch.after(error, tried, form.op, None, inputs, {})

    return call


def register(library: torch.library.Library) -> None:
    for form in all_forms():
        library.define(form.schema)
        library.impl(form.name, _kernel(form), "CompositeExplicitAutograd")
