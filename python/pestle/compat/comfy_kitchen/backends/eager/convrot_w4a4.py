"""Functions of the eager backend, under the name of comfy-kitchen's module."""

from ..._backend_module import attributes
from ..._nibbles import pack_int4 as _pack_int4_row_major  # noqa: F401
from ..._nibbles import unpack_int4 as _unpack_int4_row_major  # noqa: F401
from ...tensor.int8_utils import _build_hadamard, _rotate_activation, _rotate_weight  # noqa: F401


def validate_w4a4_shape(tensor, convrot_groupsize: int, quant_group_size: int) -> None:
    """Raises where the rows of a matrix can't be rotated and quantised."""
    if tensor.ndim != 2:
        raise ValueError(f"W4A4 takes a 2D tensor, got shape {tuple(tensor.shape)}")
    sizes = {"convrot_groupsize": convrot_groupsize, "quant_group_size": quant_group_size}
    for name, size in sizes.items():
        if tensor.shape[1] % size:
            raise ValueError(f"in_features {tensor.shape[1]} not divisible by {name} {size}")


__getattr__, __dir__ = attributes("eager", __name__)
