"""The operators that are promised to decode nothing, on layouts that files bring and that no
quantiser here makes: AWQ as ComfyUI stores it, INT4 with zero points, and a layout of one's own
that inherits its handlers."""

import pestle
import pytest
import torch
import torch.nn.functional as F
from pestle.quantized import INT4Layout, TensorCoreAWQW4A16Layout, register_layout_class
from quantized_cases import nothing_decoded, relative, weight


class Inherited(INT4Layout):
    """A layout that adds nothing."""


def awq(rows: int = 96, columns: int = 512, seed: int = 0) -> pestle.QuantizedTensor:
    make = torch.Generator().manual_seed(seed)
    codes = torch.randint(-128, 128, (rows, columns // 2), dtype=torch.int8, generator=make)
    scale, zeros = torch.rand(2, columns // 64, rows, generator=make)
    params = TensorCoreAWQW4A16Layout.Params(scale, torch.bfloat16, (rows, columns), zeros)
    return pestle.QuantizedTensor(codes, "TensorCoreAWQW4A16Layout", params)


def int4(rows: int = 96, columns: int = 512, seed: int = 0, layout="INT4Layout"):
    how = {"mode": "asymmetric", "group_size": 64}
    return pestle.QuantizedTensor.from_float(weight(rows, columns, seed), layout, **how)


def inherited(rows: int = 96, columns: int = 512, seed: int = 0):
    register_layout_class("Inherited", Inherited)
    return int4(rows, columns, seed, "Inherited")


@pytest.fixture(params=[awq, int4, inherited], ids=lambda make: make.__name__)
def make(request):
    return request.param


def same(found, expected):
    assert isinstance(found, pestle.QuantizedTensor)
    assert found.shape == expected.shape and torch.equal(found.dequantize(), expected)


def test_moves_and_parts(make):
    made, other = make(200), make(40, seed=1)
    values, others = made.dequantize(), other.dequantize()
    with nothing_decoded():
        filled = torch.empty_like(made)
        filled.copy_(made)
        assert torch.equal(filled, made) and not torch.equal(made, make(200, seed=2))
        found = [
            (made.clone(), values),
            (made.detach(), values),
            (made.contiguous(), values),
            (made.to(torch.bfloat16), values),
            (made.t(), values.t()),
            (made.transpose(0, 1), values.t()),
            (made.view(200, 512), values),
            (made.reshape(1, 200, 512), values[None]),
            (made[5:131], values[5:131]),
            (made.narrow(0, 128, 72), values[128:]),
            (made[3], values[3]),
            (made[torch.tensor([5, 180, 5])], values[[5, 180, 5]]),
            (made.chunk(3)[1], values.chunk(3)[1]),
            (made.split([50, 150])[1], values[50:]),
            (made[:, 64:192], values[:, 64:192]),
            (torch.cat([made, other]), torch.cat([values, others])),
            (torch.stack([other, other]), torch.stack([others, others])),
        ]
        half = made.to(torch.float16)
    for one, expected in found:
        same(one, expected)
    assert half.dtype == torch.float16


def test_products(make):
    made, x, bias = make(), weight(15, seed=1), torch.linspace(-3, 3, 96, dtype=torch.bfloat16)
    values = made.dequantize().double()
    exact = x.double() @ values.t()
    batch = torch.stack([made, made])
    with nothing_decoded():
        found = [F.linear(x, made), torch.mm(x, made.t()), x @ made.t()]
        biased = [F.linear(x, made, bias), torch.addmm(bias, x, made.t())]
        batched = torch.bmm(x.view(3, 5, 512)[:2], batch.transpose(1, 2))
    for one in found:
        assert relative(one, exact) < 6e-3
    for one in biased:
        assert relative(one, exact + bias.double()) < 6e-3
    assert relative(batched, exact[:10].view(2, 5, 96)) < 6e-3


def test_embedding_decodes_the_rows_it_gathers(make):
    made, where = make(300), torch.tensor([[7, 299, 7], [0, 130, 128]])
    values = made.dequantize()
    with nothing_decoded(elements=6 * 512):
        found = F.embedding(where, made)
    assert torch.equal(found, values[where])
