"""Functions of the eager backend, under the name of comfy-kitchen's module."""

from ..._backend_module import attributes

__getattr__, __dir__ = attributes("eager", __name__)
