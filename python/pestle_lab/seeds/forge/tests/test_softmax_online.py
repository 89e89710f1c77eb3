import pytest
import torch

from forge_cute_py import ops, ref


@pytest.fixture(params=["ref", "kernel"])
def backend(request):
    before = ops.get_softmax_online_backend()
    ops.set_softmax_online_backend(request.param)
    yield request.param
    ops.set_softmax_online_backend(before)


def test_correctness(values, close, shape, dtype, backend):
    x, dy = values(shape, dtype).requires_grad_(), values(shape, dtype, seed=1)
    y = ops.softmax_online(x)
    close(y, ref.softmax_online(x))
    y.backward(dy)
    close(x.grad, ref.softmax_backward(dy, y))


def test_rows_add_up_to_one_and_do_not_see_a_shift(values, close, backend):
    x = values((17, 100), torch.float32)
    y = ops.softmax_online(x)
    close(y.sum(-1), torch.ones_like(y[:, 0]))
    close(ops.softmax_online(x + 100), y)


@pytest.mark.filterwarnings("ignore")
def test_one_graph(one_graph, backend):
    one_graph(ops.softmax_online)
