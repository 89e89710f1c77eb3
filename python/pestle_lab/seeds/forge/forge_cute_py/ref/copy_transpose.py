from torch import Tensor


def copy_transpose(x: Tensor, tile_size: int = 16) -> Tensor:
    """tile_size is of the kernel, and changes nothing here."""
    return x.mT.contiguous()
