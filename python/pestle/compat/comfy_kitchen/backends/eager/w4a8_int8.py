"""Functions of the eager backend, under the name of comfy-kitchen's module, and W4A8's codes."""

from ..._backend_module import attributes
from ..._w4a8 import check_stored as validate_w4a8_operands  # noqa: F401
from ..._w4a8 import check_weight as validate_w4a8_weight_shape  # noqa: F401
from ..._w4a8 import geometry as _w4a8_geometry  # noqa: F401
from ..._w4a8 import integers as _dequant_int4_grouped_to_int8  # noqa: F401
from ..._w4a8 import unpack_records as unpack_w4a8_mma_weight  # noqa: F401
from ...tensor.w4a8_packed import _FIXED_LUT, _pack_codes, _unpack_codes  # noqa: F401

__getattr__, __dir__ = attributes("eager", __name__)
