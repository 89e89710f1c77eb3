"""The functions of this package with backend "cuda" chosen."""

import pestle

from .._backend_module import attributes

# Whether its kernels are there; comfy-kitchen's own extension module never is.
_EXT_AVAILABLE = any(b.name == "cuda" and b.available for b in pestle.list_backends())
_C = None

__getattr__, __dir__ = attributes("cuda", __name__)
