"""comfy-kitchen's public names over Pestle's ops: the same arguments, order, layouts, defaults and
return types. docs/comfy-kitchen.md lists where results differ, and what is not here yet.

    import pestle.compat.comfy_kitchen as ck
    q, scales = ck.quantize_nvfp4(x, global_scale, pad_16x=True)
"""

from contextlib import AbstractContextManager

from . import (  # noqa: F401
    _backends,
    backends,
    constraints,
    exceptions,
    flash_attention,
    float_utils,
    gated_delta,
    sage_attention,
    scaled_mm_v2,
    tensor,
)
from ._functions import *  # noqa: F403
from ._functions import __all__ as _served
from ._quantizers import DTYPE_TO_CODE
from ._refused import *  # noqa: F403
from ._refused import __all__ as _not_served
from .allocation import set_allocation_context
from .exceptions import (
    BackendError,
    BackendNotFoundError,
    BackendNotImplementedError,
    NoCapableBackendError,
)
from .float_utils import from_blocked, swap_nibbles, to_blocked
from .registry import registry

_backends.register_all(registry)


def list_backends() -> dict[str, dict]:
    """Of every backend: available, disabled, unavailable_reason, capabilities."""
    return registry.list_backends()


def set_backend_priority(priority: list[str]) -> None:
    """The order in which backends are asked; one that it leaves out is not asked at all."""
    registry.set_priority(priority)


def enable_backend(name: str) -> None:
    """Undoes disable_backend."""
    registry.enable(name)


def disable_backend(name: str) -> None:
    """No call goes to this backend any more."""
    registry.disable(name)


def use_backend(name: str) -> AbstractContextManager[None]:
    """Inside the block calls go to this backend if it takes them, and to the others if not."""
    return registry.use_backend(name)


__all__ = [
    "DTYPE_TO_CODE",
    "BackendError",
    "BackendNotFoundError",
    "BackendNotImplementedError",
    "NoCapableBackendError",
    "constraints",
    "disable_backend",
    "enable_backend",
    "exceptions",
    "float_utils",
    "from_blocked",
    "list_backends",
    "registry",
    "set_allocation_context",
    "set_backend_priority",
    "swap_nibbles",
    "tensor",
    "to_blocked",
    "use_backend",
    *_served,
    *_not_served,
]
