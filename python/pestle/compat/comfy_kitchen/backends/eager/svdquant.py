"""Functions of the eager backend, under the name of comfy-kitchen's module, and its codes of 4
bits."""

from ..._backend_module import attributes
from ..._nibbles import INT4_MAX as _INT4_MAX  # noqa: F401
from ..._nibbles import UINT4_MAX as _UINT4_MAX  # noqa: F401
from ..._nibbles import pack_int4 as _pack_int4_row_major  # noqa: F401
from ..._nibbles import unpack_int4 as _unpack_int4_row_major  # noqa: F401
from ..._nibbles import unpack_uint4 as _unpack_uint4_row_major  # noqa: F401

__getattr__, __dir__ = attributes("eager", __name__)
