import pytest
import torch

from forge_cute_py import ops, ref


@pytest.mark.parametrize("tile", [16, 32])
def test_correctness(values, shape, dtype, tile):
    x = values(shape, dtype)
    assert torch.equal(ops.copy_transpose(x, tile), ref.copy_transpose(x))


@pytest.mark.filterwarnings("ignore")
def test_gradients(gradients):
    gradients(ops.copy_transpose)


@pytest.mark.filterwarnings("ignore")
def test_one_graph(one_graph):
    one_graph(ops.copy_transpose)
