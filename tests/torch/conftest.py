"""These tests run where the wheel is installed (tools/test_wheel.sh), beside a release build."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "python"))  # pestle_ctypes

# What stands in for a GPU, and what needs one.
collect_ignore = ["test_triton_alone.py" if torch.cuda.is_available() else "test_cuda.py"]
