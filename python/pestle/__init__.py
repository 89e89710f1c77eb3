"""Pestle: fast, checked kernels for quantised models, as PyTorch ops.

Every op of the table is a function here and under `torch.ops.pestle`; docs/notes/python.md says how
the one becomes the other.
"""

import torch as _torch

from . import _autograd, _fakes, _functions, _library, _pure
from ._attention import scaled_dot_product_attention
from ._backends import (
    Backend,
    disable_backend,
    enable_backend,
    implements,
    list_backends,
    set_backend_priority,
    use_backend,
)
from ._files import dequantize_file, diff, inspect, load_file, quantize_file, save_file
from ._why import Verdict, Why, list_ops, load_tuned, overloads, why
from .errors import (
    CorruptFileError,
    DeviceError,
    FileError,
    InterruptedByCallerError,
    InvalidArgumentError,
    NoCapableBackendError,
    NoGradientError,
    NotCompiledError,
    OutOfMemoryError,
    PestleError,
    UnsupportedError,
)

__version__ = _library.version()

# Kept for the life of the process: torch forgets the registrations of a library that goes away.
_torch_library = _library.keep(_torch.library.Library("pestle", "FRAGMENT"))
with _library.uncollected():
    if _library.LIBRARY is None:
        _pure.register(_torch_library)
    _fakes.register(_torch_library)
    _autograd.register(_torch_library)

from .quantized import (  # noqa: E402 (its handlers are made of the ops above)
    DecodedError,
    DecodeWarning,
    QuantizedLayout,
    QuantizedTensor,
    add_lora_,
    get_layout_class,
    load_model_,
    load_quantized,
    merge_lora_,
    quantize_,
    register_layout_class,
    register_layout_op,
    remove_lora_,
    report,
    save_model,
    strict,
    unmerge_lora_,
)

__all__ = [
    "Backend",
    "CorruptFileError",
    "DecodeWarning",
    "DecodedError",
    "DeviceError",
    "FileError",
    "InterruptedByCallerError",
    "InvalidArgumentError",
    "NoCapableBackendError",
    "NoGradientError",
    "NotCompiledError",
    "OutOfMemoryError",
    "PestleError",
    "QuantizedLayout",
    "QuantizedTensor",
    "UnsupportedError",
    "Verdict",
    "Why",
    "add_lora_",
    "dequantize_file",
    "diff",
    "disable_backend",
    "enable_backend",
    "get_layout_class",
    "implements",
    "inspect",
    "list_backends",
    "list_ops",
    "load_file",
    "load_model_",
    "load_quantized",
    "load_tuned",
    "merge_lora_",
    "overloads",
    "quantize_",
    "quantize_file",
    "register_layout_class",
    "register_layout_op",
    "remove_lora_",
    "report",
    "save_file",
    "save_model",
    "scaled_dot_product_attention",
    "set_backend_priority",
    "strict",
    "unmerge_lora_",
    "use_backend",
    "why",
    *_functions.names(),
]


def __getattr__(name: str):
    if name in __all__:
        made = _functions.function(name)
        globals()[name] = made
        return made
    raise AttributeError(f"module 'pestle' has no attribute {name!r}")


def __dir__():
    return sorted(__all__)
