"""What the tests of every op share: devices, values, and how near an answer must be."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pytest
import torch

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
SHAPES = [(32, 64), (15, 37), (128, 1000), (1, 1)]
LIMIT = {torch.float16: 1e-2, torch.bfloat16: 1e-2, torch.float32: 1e-4}


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


@pytest.fixture(params=SHAPES, ids=str)
def shape(request):
    return request.param


@pytest.fixture
def values(device):
    """values(shape, dtype, seed=0) -> a tensor on the device."""

    def make(shape, dtype, seed=0):
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)

    return make


@pytest.fixture
def close():
    def check(got, want):
        torch.testing.assert_close(got, want, atol=LIMIT[want.dtype], rtol=LIMIT[want.dtype])

    return check


@pytest.fixture
def gradients(values):
    """gradients(call): those of an op against small differences."""

    def check(call):
        x = values((5, 7), torch.float32).requires_grad_()
        # In f32, as the kernels are.
        options = {"eps": 1e-2, "atol": 2e-3, "rtol": 2e-2}
        assert torch.autograd.gradcheck(call, x, **options)

    return check


@pytest.fixture
def one_graph(values, close):
    """one_graph(call): torch.compile takes the op as it is."""

    def check(call):
        x = values((8, 24), torch.float32)
        close(torch.compile(call, fullgraph=True, backend="aot_eager")(x), call(x))

    return check
