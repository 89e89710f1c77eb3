"""Host cost of a call through torch, beside torch's own ops: prints microseconds, best of many.
Needs an interpreter that has the wheel: build/wheel-venv/bin/python bench/torch_host_cost.py [cuda]

The floor is torch_floor.cpp: kernels registered as ours are, which only allocate their outputs. It
is compiled here, unless PESTLE_TORCH_FLOOR names the library. On a GPU a launch comes on top of it.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pestle
import torch

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
# As little work as the fast kernels take: on the CPU it would show, on a GPU it is hidden.
SHAPE = (1, 256) if DEVICE == "cpu" else (16, 512)
X, Y = torch.randn(2, *SHAPE, device=DEVICE)
SCALE = torch.ones(1, device=DEVICE)
CODES = torch.zeros(SHAPE, dtype=torch.uint8, device=DEVICE)


def floor_library() -> str:
    if made := os.environ.get("PESTLE_TORCH_FLOOR"):
        return made
    root = Path(__file__).resolve().parents[1]
    sources = [root / "bench/torch_floor.cpp", root / "python/csrc/torch_abi.cpp"]
    library = str(Path(tempfile.mkdtemp()) / "floor.so")
    command = ["c++", "-std=c++20", "-O2", "-shared", "-fPIC", f"-I{root}", *sources, "-ldl"]
    subprocess.run([*command, "-o", library], check=True)
    return library


ctypes.CDLL(floor_library())
# Each op as a caller holds it: looking it up costs another 0.04 us a dot.
OPS, FLOOR = torch.ops.pestle, torch.ops.pestle_floor
SWAP, HADAMARD = OPS.swap_nibbles.default, OPS.hadamard.default
FP8, FP8_SCALE, MXFP8 = OPS.quantize_fp8.default, OPS.quantize_fp8.scale, OPS.quantize_mxfp8.default
ADD, ATEN_ADD, STD_MEAN = torch.add, torch.ops.aten.add.Tensor, torch.std_mean
ONE, TWO, OPTIONS = FLOOR.one.default, FLOOR.two.default, FLOOR.options.default
CALLS = {
    "torch.add": lambda: ADD(X, Y),
    "torch.ops.aten.add.Tensor": lambda: ATEN_ADD(X, Y),
    "floor: one output": lambda: ONE(X),
    "floor: one output, quantize_fp8's options": lambda: OPTIONS(X, SCALE),
    "torch.ops.pestle.swap_nibbles": lambda: SWAP(CODES),
    "torch.ops.pestle.hadamard": lambda: HADAMARD(X),
    "torch.ops.pestle.quantize_fp8.scale": lambda: FP8_SCALE(X, SCALE),
    "torch.std_mean": lambda: STD_MEAN(X),
    "floor: two outputs": lambda: TWO(X),
    # Two outputs by one kernel, which is what torch.std_mean does too.
    "torch.ops.pestle.quantize_mxfp8": lambda: MXFP8(X),
    "torch.ops.pestle.quantize_fp8, by row": lambda: FP8(X, granularity="row"),
    "torch.ops.pestle.quantize_fp8": lambda: FP8(X),
    "pestle.swap_nibbles": lambda: pestle.swap_nibbles(CODES),
    "pestle.quantize_fp8 with scale": lambda: pestle.quantize_fp8(X, SCALE),
    "pestle.quantize_mxfp8": lambda: pestle.quantize_mxfp8(X),
    "pestle.quantize_fp8, by row": lambda: pestle.quantize_fp8(X, granularity="row"),
}

# Linear layers of a quantised weight, by torch's own function: x @ W^T + bias.
FORMATS = ("fp8", "nvfp4", "mxfp8", "int8-row", "int4-g32", "w4a8")
BIAS = torch.randn(16, device=DEVICE, dtype=torch.bfloat16)
TOKEN = X[:1, :256].to(torch.bfloat16)
LEAF = TOKEN.clone().requires_grad_()
LINEAR, WEIGHTS = torch.nn.functional.linear, {}
for name in FORMATS:
    made = pestle.QuantizedTensor.from_float(torch.randn(16, 256, dtype=torch.bfloat16), name)
    WEIGHTS[name] = torch.nn.Parameter(made.to(DEVICE), requires_grad=False)
CALLS |= {f"linear, {n}": lambda w=w: LINEAR(TOKEN, w, BIAS) for n, w in WEIGHTS.items()}
DECODED = WEIGHTS["fp8"].dequantize()
GAIN, NORM = torch.ones(256, device=DEVICE, dtype=torch.bfloat16), torch.nn.functional.rms_norm
GROWTH = torch.ones_like(LEAF)


def with_backward(call):
    return lambda: torch.autograd.grad(call(), LEAF, GROWTH)


def torch_norm():
    return NORM(LEAF, (256,), GAIN, 1e-6)


def pestle_norm():
    return pestle.rms_norm(LEAF, weight=GAIN, eps=1e-6)


NORMS = {
    "torch rms_norm": torch_norm, "pestle.rms_norm": pestle_norm,
    "torch rms_norm, and backward": with_backward(torch_norm),
    "pestle.rms_norm, and backward": with_backward(pestle_norm),
}  # fmt: skip
WITH_GRADIENT = {
    "torch.add": lambda: ADD(LEAF, LEAF),
    **NORMS,
    "linear, bf16": lambda: LINEAR(LEAF, DECODED, BIAS),
    **{f"linear, {n}": lambda w=w: LINEAR(LEAF, w, BIAS) for n, w in WEIGHTS.items()},
}


def one_round(call, count: int = 500) -> float:
    """Microseconds of one call."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    if DEVICE != "cpu":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / count * 1e6


def best_of_all(calls: dict, rounds: int = 40) -> dict[str, float]:
    """The quickest round of each call; the calls take turns, so that all see the same machine."""
    found = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            found[name] = min(found[name], one_round(call))
    return found


def import_ms() -> float:
    code = (
        "import torch, time; start = time.perf_counter(); import pestle; "
        "print((time.perf_counter() - start) * 1e3)"
    )
    run = [sys.executable, "-c", code]
    return min(float(subprocess.run(run, capture_output=True, check=True).stdout) for _ in range(3))


def main() -> None:
    for title, mode, calls in (
        ("inference mode", torch.inference_mode, CALLS),
        ("no_grad", torch.no_grad, CALLS),
        ("with a gradient", torch.enable_grad, WITH_GRADIENT),
    ):
        with mode():
            found = best_of_all(calls)
        add = found["torch.add"]
        for name, us in found.items():
            print(f"{title:16} {name:42} {us:6.2f} us {us / add:5.2f} x torch.add")
    print(f"import pestle beyond torch: {import_ms():.0f} ms")


if __name__ == "__main__":
    main()
