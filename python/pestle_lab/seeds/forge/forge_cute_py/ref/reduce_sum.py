from torch import Tensor


def reduce_sum(x: Tensor, dim: int = -1) -> Tensor:
    return x.float().sum(dim).to(x.dtype)
