"""These tests run where the wheel is installed (tools/test_wheel.sh), beside a release build."""

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "python"))  # pestle_ctypes

# What needs a GPU, and what stands in for one; test_triton.py also runs in Triton's interpreter.
GPU, INTERPRETED = torch.cuda.is_available(), os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore = ["test_triton_alone.py"] if GPU else ["test_cuda.py"]
if not GPU and not INTERPRETED:
    collect_ignore.append("test_triton.py")


@pytest.fixture
def kitchen_eager():
    """comfy-kitchen's calls go to its eager backend, the only one that runs everywhere."""
    import comfy_kitchen

    with comfy_kitchen.use_backend("eager"):
        yield


@pytest.fixture(params=["cpu", "cuda"] if GPU else ["cpu"])
def device(request):
    return request.param
