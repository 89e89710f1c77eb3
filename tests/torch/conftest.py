"""These tests run where the wheel is installed (tools/test_wheel.sh), beside a release build."""

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "python"))  # pestle_ctypes

# What needs a GPU, and what stands in for one; test_triton.py also runs in Triton's interpreter.
GPU, INTERPRETED = torch.cuda.is_available(), os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore = ["test_triton_alone.py"] if GPU else ["test_cuda.py"]
if not GPU and not INTERPRETED:
    collect_ignore.append("test_triton.py")
