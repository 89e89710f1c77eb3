"""Every op against its reference, on the GPU and on the CPU."""

import pytest
import torch

from forge_cute_py import ops, ref

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
SHAPES = [(32, 64), (15, 37), (128, 1000), (1, 1)]
LIMIT = {torch.float16: 1e-2, torch.bfloat16: 1e-2, torch.float32: 1e-4}


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def values(shape, dtype, device, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def close(got, want):
    torch.testing.assert_close(got, want, atol=LIMIT[want.dtype], rtol=LIMIT[want.dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_correctness(device, dtype, shape):
    x = values(shape, dtype, device)
    for tile in (16, 32):
        assert torch.equal(ops.copy_transpose(x, tile), ref.copy_transpose(x))
    for dim in (-1, 0, 1):
        close(ops.reduce_sum(x, dim), ref.reduce_sum(x, dim))
        for op in ("sum", "amax", "amin", "prod"):
            close(ops.reduce(x, dim, op), ref.reduce(x, dim, op))


@pytest.mark.parametrize("backend", ["ref", "kernel"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_softmax(device, dtype, backend):
    ops.set_softmax_online_backend(backend)
    x, dy = values((17, 100), dtype, device).requires_grad_(), values((17, 100), dtype, device, 1)
    y = ops.softmax_online(x)
    close(y, ref.softmax_online(x))
    y.backward(dy)
    close(x.grad, ref.softmax_backward(dy, y))


@pytest.mark.parametrize("call", [ops.copy_transpose, ops.reduce, ops.reduce_sum])
def test_gradients(device, call):
    x = values((5, 7), torch.float32, device).requires_grad_()
    assert torch.autograd.gradcheck(call, x, eps=1e-2, atol=2e-3, rtol=2e-2)


@pytest.mark.filterwarnings("ignore")
def test_one_graph(device):
    x = values((8, 24), torch.float32, device)
    both = lambda x: ops.copy_transpose(x).sum() + ops.reduce_sum(x).sum()  # noqa: E731
    close(torch.compile(both, fullgraph=True, backend="aot_eager")(x), both(x))
