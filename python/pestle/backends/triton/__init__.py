"""Triton kernels, for every GPU that Triton supports; on the CPU under TRITON_INTERPRET=1."""

import importlib.util
import os


def unavailable() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    return None


def refuses_device(device) -> str | None:
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"the tensors lie on {device}"
    return None
