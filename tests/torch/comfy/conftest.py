"""The small model, and what torch remembers between tests taken away."""

import pytest
import torch
from comfy_models import Model


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture
def make_model():
    return Model


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
