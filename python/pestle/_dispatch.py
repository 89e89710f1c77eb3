"""Where a call goes. The functions of _functions.py call the library's op at once when the caller
selected nothing; all other cases, refusals and torch.compile come here.

A candidate is tried, and the next one when it refuses: that costs nothing where the first takes
the call, and a refusal is always raised before anything is written.
"""

from __future__ import annotations

import sys

import torch

from . import _backends, _python_ops, _why
from ._backends import LIBRARY, logger
from .errors import InvalidArgumentError, NoCapableBackendError, UnsupportedError, typed

COMPILED = "pestle"  # the namespace of the library's ops


def _space(name: str) -> str:
    return COMPILED if name in LIBRARY else _python_ops.namespace(name)


def first(tensors) -> torch.Tensor:
    """The first of a list, which decides over the backend."""
    if isinstance(tensors, list | tuple) and tensors:
        return tensors[0]
    raise InvalidArgumentError("the first argument must be a list of at least one tensor")


def _device(args: tuple) -> torch.device | None:
    for value in args:
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, torch.Tensor):
                return one.device
    return None


def choose(op: str, backend, *inputs) -> str:
    """The namespace of the first candidate that may take this call."""
    device = _device(inputs)
    for name in _backends.order(backend):
        if not _backends.refusal(name, op, device):
            logger.debug("%s on %s: %s", op, device, name)
            return _space(name)
    raise _nobody(op, backend, inputs, {})


def after(
    error: RuntimeError, tried: tuple[str, ...], op: str, backend, inputs: tuple, options: dict
) -> str:
    """The namespace to try when the last of those `tried` failed with this error; raises what the
    caller sees. The library's namespace stands for both of its backends: its op asks every
    implementation of either."""
    failed = typed(error)
    if any(isinstance(value, list | tuple) and not value for value in inputs):
        raise InvalidArgumentError(f"{op}: a list of tensors is empty: it has at least one")
    if not isinstance(failed, UnsupportedError):
        raise failed from None
    device = _device(inputs)
    for name in _backends.order(backend):
        if _space(name) not in tried and not _backends.refusal(name, op, device):
            logger.debug("%s: %s; goes to %s", op, failed, name)
            return _space(name)
    raise _nobody(op, backend, inputs, options) from None


def _nobody(op: str, backend, inputs: tuple, options: dict) -> Exception:
    """The error with every candidate's reason; or the contract's, if the call breaks that."""
    given = {name: value for name, value in options.items() if value is not None}
    candidates = _backends.order(backend)
    try:
        verdicts = _why.why(op, *inputs, **given, backend=candidates).verdicts
    except InvalidArgumentError:
        if options:
            raise
        # The options are not known here, so whether the call keeps the contract isn't either.
        device = _device(inputs)
        reasons = [f"  {name}: {_backends.refusal(name, op, device)}" for name in candidates]
    else:
        reasons = [f"  {v.implementation}: {v.refusal or 'takes it'}" for v in verdicts]
    return NoCapableBackendError("\n".join([f"{op}: no backend takes this call", *reasons]))


def _static(op: str, names: tuple[str, ...], device: torch.device) -> str:
    """The first candidate that has the op for this kind of device."""
    for name in names:
        if not _backends.refusal(name, op, device):
            return name
    reasons = [f"  {name}: {_backends.refusal(name, op, device)}" for name in names]
    raise NoCapableBackendError("\n".join([f"{op}: no backend takes this call", *reasons]))


def traced(op: str, backend, device_type: str) -> str:
    """What choose() answers, for torch.compile: a constant of the graph, guarded by the selection.

    A refusal that depends on more than op and device is an error when the graph runs.
    """
    guard_result(_backends.__name__, "state")
    return _space(_static(op, _backends.order(backend), torch.device(device_type)))


# What torch.compiler.assume_constant_result does, without importing dynamo.
traced._dynamo_marked_constant = True


def of_backward(op: str, backend: str, inputs: list) -> tuple[str, ...] | None:
    """Backends for a backward op: first the Python one that ran the forward op, if one did.

    While torch traces, the one that the graph will call: nothing could try another later.
    """
    names = _backends.order(None)
    names = (backend, *(name for name in names if name != backend)) if backend else names
    tensors = [t for t in inputs if t is not None]
    fake = torch._subclasses.FakeTensor
    if any(isinstance(t, fake) or torch._is_functional_tensor(t) for t in tensors):
        return (_static(op, names, tensors[0].device),)
    return names if backend else None


class _Answers:
    """What functions without arguments answer now, as attributes: every dynamo can guard these."""


_answers = _Answers()


def guard_result(module: str, function: str) -> None:
    """Makes dynamo compile again when this function without arguments gives another answer."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        translator = InstructionTranslator.current_tx()
    except AttributeError:
        translator = None
    if translator is None:  # torch.export without dynamo: nothing is kept that could be stale
        return
    from torch._dynamo.guards import GuardBuilder, install_guard
    from torch._dynamo.source import AttrSource

    name = f"{module}.{function}".replace(".", "_")
    if not hasattr(_Answers, name):
        answer = getattr(sys.modules[module], function)
        setattr(_Answers, name, property(lambda self: answer()))
    source = AttrSource(AttrSource(translator.import_source(__name__), "_answers"), name)
    install_guard(source.make_guard(GuardBuilder.EQUALS_MATCH))
