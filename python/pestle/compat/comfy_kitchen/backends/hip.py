"""The functions of this package with backend "hip" chosen: Pestle has none of that name, so
these are somebody else's who registers one."""

from .._backend_module import attributes

_EXT_AVAILABLE = False
_C = None

__getattr__, __dir__ = attributes("hip", __name__)
