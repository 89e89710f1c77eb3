"""The functions of this package with backend "triton" chosen."""

from .._backend_module import attributes

__getattr__, __dir__ = attributes("triton", __name__)
