#!/usr/bin/env python3
"""Host cost of a call through torch, beside torch's own ops: prints microseconds, best of many.
Needs an interpreter that has the wheel: build/wheel-venv/bin/python bench/torch_host_cost.py [cuda]
"""

import subprocess
import sys
import time

import pestle
import torch

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
# As little work as the fast kernels take: on the CPU it would show, on a GPU it is hidden.
SHAPE = (1, 16) if DEVICE == "cpu" else (16, 512)
X, Y = torch.randn(2, *SHAPE, device=DEVICE)
SCALE = torch.ones(1, device=DEVICE)
CODES = torch.zeros(SHAPE, dtype=torch.uint8, device=DEVICE)
OPS = torch.ops.pestle
CALLS = {
    "torch.add": lambda: torch.add(X, Y),
    "torch.ops.aten.add.Tensor": lambda: torch.ops.aten.add.Tensor(X, Y),
    "torch.ops.pestle.swap_nibbles": lambda: OPS.swap_nibbles.default(CODES),
    "torch.ops.pestle.hadamard": lambda: OPS.hadamard.default(X, hadamard=16),
    "torch.ops.pestle.quantize_fp8.scale": lambda: OPS.quantize_fp8.scale(X, SCALE),
    "torch.ops.pestle.quantize_fp8": lambda: OPS.quantize_fp8.default(X),
    # Two outputs by one kernel, which is what torch.std_mean does too.
    "torch.ops.pestle.quantize_fp8, by row": lambda: OPS.quantize_fp8.default(X, granularity="row"),
    "torch.std_mean": lambda: torch.std_mean(X),
    "pestle.swap_nibbles": lambda: pestle.swap_nibbles(CODES),
    "pestle.quantize_fp8 with scale": lambda: pestle.quantize_fp8(X, SCALE),
    "pestle.quantize_fp8, by row": lambda: pestle.quantize_fp8(X, granularity="row"),
}


def best(call, rounds: int = 20, count: int = 1000) -> float:
    """The quickest round's time of one call, in microseconds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(count):
            call()
        if DEVICE != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times) / count * 1e6


def import_ms() -> float:
    code = (
        "import torch, time; start = time.perf_counter(); import pestle; "
        "print((time.perf_counter() - start) * 1e3)"
    )
    run = [sys.executable, "-c", code]
    return min(float(subprocess.run(run, capture_output=True, check=True).stdout) for _ in range(5))


def main() -> None:
    for title, mode in (("inference mode", torch.inference_mode), ("no_grad", torch.no_grad)):
        with mode():
            for name, call in CALLS.items():
                try:
                    print(f"{title:16} {name:40} {best(call):6.2f} us")
                except RuntimeError as error:
                    print(f"{title:16} {name:40} {str(error).splitlines()[0]}")
    print(f"import pestle beyond torch: {import_ms():.0f} ms")


if __name__ == "__main__":
    main()
