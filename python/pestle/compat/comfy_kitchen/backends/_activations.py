"""What a linear applies to x before it and to the result, under the name of comfy-kitchen's
module."""

from .._linears import activated as apply_input_act
from .._linears import added as apply_residual

__all__ = ["apply_input_act", "apply_residual"]
