"""One compiled function for all the modules of a class, kept as long as a model uses it."""

from __future__ import annotations

import inspect
import types
import weakref
from collections.abc import Callable

import torch
from torch import nn

from . import fusing
from .settings import CompileSettings, known_options
from .shapes import mark_open

# Of what a patcher passes down with every call. Its keys are bookkeeping (step, block, seeds),
# unless it holds functions, which may read all of them.
_OPTIONS = "transformer_options"
_FUNCTIONS = ("patches", "patches_replace", "optimized_attention_override")


def guard_filter(entries: list) -> list[bool]:
    """Which guards dynamo keeps. The compiled code asks transformer_options for functions; as long
    as it has none (which stays guarded), what else lies in it does not matter."""
    values = [e.value for e in entries if e.has_value and isinstance(e.value, dict)
              and e.name.endswith(_OPTIONS)]  # fmt: skip
    functions = any(value.get(name) for value in values for name in _FUNCTIONS)
    if functions or not values:
        return [True] * len(entries)
    return [_OPTIONS not in e.name or e.guard_type == "DICT_CONTAINS" for e in entries]


def has_guard_filter() -> bool:
    """Where dynamo lacks it (before PyTorch 2.8), the option would be an error."""
    from torch._dynamo import eval_frame

    optimize = getattr(eval_frame, "_optimize", None) or eval_frame.optimize
    return "guard_filter_fn" in inspect.signature(optimize).parameters


class CompiledFunction:
    """forward of a class of modules, compiled; called with the module first."""

    def __init__(self, function: Callable, settings: CompileSettings):
        self.name = getattr(function, "__qualname__", repr(function))
        self.function = _own(function)
        options, _ = settings.options()
        if has_guard_filter():
            options["guard_filter_fn"] = guard_filter
        if settings.backend == "inductor" and "pre_grad_custom_pass" in known_options():
            options["pre_grad_custom_pass"] = fusing.fuse
            if "unsafe_marked_cacheable_functions" in known_options():
                options["unsafe_marked_cacheable_functions"] = fusing.CACHEABLE
        self.marks = bool(settings.dynamic)
        # Marked dimensions are open; dynamic=True would open every one, heads and channels too.
        self.compiled = torch.compile(
            self.function, backend=settings.backend, fullgraph=settings.fullgraph,
            dynamic=None if self.marks else settings.dynamic, options=options,
        )  # fmt: skip

    def __call__(self, *args, **kwargs):
        args = tuple(_in_rows(value) for value in args)
        kwargs = {name: _in_rows(value) for name, value in kwargs.items()}
        if self.marks:
            mark_open(args, kwargs)
        return self.compiled(*args, **kwargs)


def _in_rows(value):
    """Tokens that lie channel by channel, as the first block of some models gets them from a
    convolution, are laid out as the other blocks get them: otherwise it has a graph of its own."""
    if isinstance(value, torch.Tensor) and value.ndim == 3 and value.stride(-1) != 1:
        return value.contiguous()
    return value


def _own(function: Callable) -> Callable:
    """A copy with a code object of its own: dynamo keeps what it compiled with the code object, so
    other users of the class see nothing of it, and it goes when the copy goes."""
    if not isinstance(function, types.FunctionType):
        return function
    name = function.__qualname__.split("<locals>.")[-1].replace(".", "_")
    code = function.__code__.replace(co_name=name)  # as reports and torch's logs call it
    made = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__, made.__module__ = function.__qualname__, function.__module__
    return made


_SHARED: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


def compiled_function(
    module: nn.Module, settings: CompileSettings
) -> tuple[CompiledFunction, bool]:
    """For the modules of a class, and whether it was there already. With reuse_if_similar all
    models whose blocks have this code get the same one; dynamo's guards then see to dtypes,
    shapes and devices."""
    function = type(module).forward
    if not settings.reuse_if_similar:
        return CompiledFunction(function, settings), False
    key = (function, *settings.key(), torch.__version__, _triton())
    found = _SHARED.get(key)
    if found is not None:
        return found, True
    made = CompiledFunction(function, settings)
    _SHARED[key] = made
    return made, False


def _triton() -> str:
    try:
        import triton
    except ImportError:
        return ""
    return triton.__version__
