import pytest

from forge_cute_py import ops, ref

DIMS = pytest.mark.parametrize("dim", [-1, 0, 1])


@DIMS
@pytest.mark.parametrize("op", ["sum", "amax", "amin", "prod"])
def test_correctness(values, close, shape, dtype, dim, op):
    x = values(shape, dtype)
    close(ops.reduce(x, dim, op), ref.reduce(x, dim, op))


@DIMS
def test_correctness_of_sums(values, close, shape, dtype, dim):
    x = values(shape, dtype)
    close(ops.reduce_sum(x, dim), ref.reduce_sum(x, dim))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", [ops.reduce, ops.reduce_sum])
def test_gradients(gradients, call):
    gradients(call)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", [ops.reduce, ops.reduce_sum])
def test_one_graph(one_graph, call):
    one_graph(call)
