import torch
from torch import Tensor

_BY_NAME = {
    "sum": torch.sum,
    "prod": torch.prod,
    "max": torch.amax,
    "amax": torch.amax,
    "min": torch.amin,
    "amin": torch.amin,
}


def reduce(x: Tensor, dim: int = -1, op: str = "sum") -> Tensor:
    if op not in _BY_NAME:
        raise ValueError(f'reduce: op is "{op}": use one of {", ".join(_BY_NAME)}')
    return _BY_NAME[op](x.float(), dim).to(x.dtype)
