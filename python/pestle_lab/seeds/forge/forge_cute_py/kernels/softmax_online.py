import pestle  # noqa: F401  (registers torch.ops.pestle)
import torch
from torch import Tensor


def softmax(x: Tensor, dim: int, out: Tensor | None = None) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    torch.ops.pestle.softmax.out(x, dim=dim, out=out)
    return out


def softmax_backward(dy: Tensor, y: Tensor, dim: int, out: Tensor | None = None) -> Tensor:
    out = torch.empty_like(y) if out is None else out
    torch.ops.pestle.softmax_backward.out(dy, y, dim=dim, d_x=out)
    return out
