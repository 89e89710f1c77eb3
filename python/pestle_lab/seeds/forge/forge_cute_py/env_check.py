"""python -m forge_cute_py.env_check: what this machine has, and whether an op runs on it. Exit 0 if
it does; a GPU or CuTe DSL that is missing is said, and ops then run on the CPU."""

from __future__ import annotations

import importlib.util
import platform
import sys

import torch


def describe() -> list[tuple[str, str]]:
    found = [
        ("python", platform.python_version()),
        ("torch", torch.__version__),
        ("CUDA of torch", str(torch.version.cuda)),
    ]
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found += [
            ("GPU", properties.name),
            ("compute capability", f"sm_{properties.major}{properties.minor}"),
            ("torch is built for", " ".join(torch.cuda.get_arch_list())),
        ]
    else:
        found.append(("GPU", "none: ops run on the CPU, and times are the CPU's"))
    has_cute = importlib.util.find_spec("cutlass") is not None
    found.append(("CuTe DSL", "yes" if has_cute else "not installed: nvidia-cutlass-dsl"))
    return found


def main() -> int:
    for name, value in describe():
        print(f"{name + ':':22}{value}")
    from .ops import copy_transpose

    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.arange(16, dtype=torch.float32, device=device).reshape(4, 4)
    if not torch.equal(copy_transpose(x), x.mT):
        print(f"copy_transpose of 4 x 4 on {device} is WRONG")
        return 4
    print(f"copy_transpose of 4 x 4 on {device} is right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
