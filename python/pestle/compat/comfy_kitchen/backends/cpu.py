"""The functions of this package with backend "cpu" chosen."""

from .._backend_module import attributes

__getattr__, __dir__ = attributes("cpu", __name__)
