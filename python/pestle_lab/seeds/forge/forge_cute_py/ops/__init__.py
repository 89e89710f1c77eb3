"""What callers see. The same ops that fill `out` are torch.ops.forge_cute_py._copy_transpose,
_reduce, _reduce_sum, _softmax_fwd and _softmax_backward."""

from .copy_transpose import copy_transpose
from .reduce import reduce
from .reduce_sum import reduce_sum
from .softmax_online import (
    get_softmax_online_backend,
    list_softmax_online_backends,
    register_softmax_online_backend,
    set_softmax_online_backend,
    softmax_bwd,
    softmax_fwd,
    softmax_online,
)

__all__ = [
    "copy_transpose",
    "get_softmax_online_backend",
    "list_softmax_online_backends",
    "reduce",
    "reduce_sum",
    "register_softmax_online_backend",
    "set_softmax_online_backend",
    "softmax_bwd",
    "softmax_fwd",
    "softmax_online",
]
