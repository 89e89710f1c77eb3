"""What the tests of quantised tensors share: every format, and a look at what was decoded."""

from contextlib import contextmanager

import pestle
import torch
from pestle.quantized import decodes
from pestle.quantized._formats import FORMATS

NAMES = list(FORMATS)
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def weight(rows: int = 96, columns: int = 512, seed: int = 0, dtype=torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator).to(dtype)


def quantized(name: str, values: torch.Tensor) -> pestle.QuantizedTensor:
    return pestle.QuantizedTensor.from_float(values, name)


@contextmanager
def nothing_decoded(elements: int = 0):
    """Inside the block no operator falls back, and no more than so many values are decoded."""
    before = (decodes.fallbacks, decodes.elements)
    with pestle.strict():
        yield
    assert decodes.fallbacks == before[0]
    assert decodes.elements - before[1] <= elements


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())
