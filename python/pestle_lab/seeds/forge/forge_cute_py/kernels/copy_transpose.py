import pestle  # noqa: F401  (registers torch.ops.pestle)
import torch
from torch import Tensor


def copy_transpose(x: Tensor, out: Tensor, tile_size: int) -> None:
    torch.ops.pestle.copy_transpose.out(x, tile_size=tile_size, out=out)
