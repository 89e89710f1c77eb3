import pestle  # noqa: F401  (registers torch.ops.pestle)
import torch
from torch import Tensor


def reduce_sum(x: Tensor, out: Tensor, dim: int) -> None:
    """dim is 0 or 1."""
    torch.ops.pestle.reduce.out(x, dims=1 << dim, op="sum", out=out)
