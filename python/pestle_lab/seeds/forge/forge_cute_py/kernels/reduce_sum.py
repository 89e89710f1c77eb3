from torch import Tensor

from .reduce import reduce


def reduce_sum(x: Tensor, out: Tensor, dim: int) -> None:
    """dim is 0 or 1."""
    reduce(x, out, dim, "sum")
