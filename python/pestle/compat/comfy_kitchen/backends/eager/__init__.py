"""The functions of this package with backend "eager" chosen; comfy-kitchen's modules below hold
the same ones."""

from ..._backend_module import attributes
from . import adaln as _adaln
from . import sol_attn as _sol_attn

__getattr__, __dir__ = attributes("eager", __name__)

# Modules have these two names, but it is the functions that are asked for here.
adaln = _adaln.adaln
sol_attn = _sol_attn.sol_attn
