"""Functions of the eager backend, under the name of comfy-kitchen's module."""

from ..._backend_module import attributes
from ...tensor.int8_utils import _build_hadamard, _rotate_activation, _rotate_weight  # noqa: F401
from .svdquant import _pack_int4_row_major, _unpack_int4_row_major  # noqa: F401

__getattr__, __dir__ = attributes("eager", __name__)
